"""The loop against a hand-written one, its curves, its errors, and its resumption."""

import math
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from orthocl.errors import SettingsError, StoreError, TrainingError
from orthocl.methods import METHODS, OGD, SGD, OGDPlus, StableSGD, make_method
from orthocl.metrics import AccuracyMatrix, compute
from orthocl.nets import MLP
from orthocl.streams import TensorSplit, from_arrays, make
from orthocl.tangents.adapter_layer import AdapterLayer
from orthocl.training import Observer, Progress, TrainSettings, attach, evaluate, train
from orthocl.training.checkpoint import load_checkpoint, save_checkpoint
from orthocl.training.evaluation import accuracy
from orthocl.training.seeds import derive_generator


def stream(tasks=2, samples=10):
    generator = torch.Generator().manual_seed(0)
    return from_arrays(
        [
            (
                torch.randn(samples, 4, generator=generator),
                torch.arange(samples) % 3,
                torch.randn(7, 4, generator=generator),
                torch.arange(7) % 3,
            )
            for _ in range(tasks)
        ],
        outputs=3,
    )


def learner(method=None, lr=0.1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 3))
    return attach(method or SGD(), model, torch.optim.SGD(model.parameters(), lr=lr))


def test_it_is_the_loop_one_would_write_by_hand():
    tasks, settings = stream(), TrainSettings(epochs=3, batch_size=4, learning_rate=0.1)
    one = learner()
    progress = train(one, tasks, settings, seed=5)
    two = learner().model
    optimizer = torch.optim.SGD(two.parameters(), lr=0.1)
    rows, losses = [evaluate(two, tasks)], []
    for task in tasks:
        for epoch in range(3):
            order = torch.randperm(10, generator=derive_generator("order", 5, task.number, epoch))
            total = 0.0
            for index in order.split(4):
                optimizer.zero_grad()
                loss = cross_entropy(two(task.train.inputs(index)), task.train.targets[index])
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) / 3
            losses.append(total)
        rows.append(evaluate(two, tasks))
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.parameters(), strict=True))
    assert progress.accuracies == rows
    assert [v for task in progress.losses for v in task] == pytest.approx(losses)
    assert compute("aac", AccuracyMatrix.from_rows(progress.accuracies)) == sum(rows[-1]) / 2


def test_accuracy_is_over_samples_not_a_mean_of_batch_means(monkeypatch):
    monkeypatch.setattr("orthocl.training.evaluation.CHUNK", 4)
    task = stream().task(1)
    model = learner().model
    right = (model(task.test.inputs()).argmax(1) == task.test.targets).sum().item()
    assert accuracy(model, task, task.test) == right / 7


def test_evaluation_restores_the_mode_and_uses_eval():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9), nn.BatchNorm1d(3))
    model[0].eval()
    tasks = stream()
    first, second = evaluate(model, tasks), evaluate(model, tasks)
    assert first == second
    assert [m.training for m in model] == [False, True, True]
    assert int(model[2].num_batches_tracked) == 0


def test_curves_every_k_steps():
    progress = train(learner(), stream(), TrainSettings(epochs=2, batch_size=4, evaluate_every=2))
    assert [(c["task"], c["step"]) for c in progress.curves] == [(t, s) for t in (1, 2) for s in (2, 4, 6)]
    assert progress.curves[2]["accuracies"] == progress.accuracies[1]
    assert progress.curves[5]["accuracies"] == progress.accuracies[2]


def test_curves_do_not_change_a_run_and_do_not_pay_for_the_adapter(monkeypatch):
    """Evaluations in the middle of a task use plain layers: only the batches of training meet the adapter."""
    met = []
    kernel = AdapterLayer.kernel

    def noted(self, x):
        met.append(len(x))
        return kernel(self, x)

    monkeypatch.setattr(AdapterLayer, "kernel", noted)
    tasks = make("permuted-mnist-mini", tasks=2, train_size=60, test_size=40)

    def run(every):
        torch.manual_seed(0)
        model = MLP(tasks.input_shape, (20, 15), 10)
        method = OGD(memory_per_task=10, engine="adapter", input_cache=0)
        one = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.05))
        met.clear()
        settings = TrainSettings(epochs=2, batch_size=13, learning_rate=0.05, evaluate_every=every)
        progress = train(one, tasks, settings, seed=1)
        return progress, [p.detach().clone() for p in model.parameters()], list(met)

    (plain, weights, batches), (watched, same, also) = run(None), run(3)
    assert all(map(torch.equal, weights, same))
    assert watched.accuracies == plain.accuracies
    assert batches == also
    assert set(batches) == {13, 8}
    assert len(watched.curves) == 6
    assert watched.curves[-1]["accuracies"] != watched.accuracies[1]


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where():
    with pytest.raises(TrainingError, match=r"task 1 .* at step \d+ with learning rate 1e\+30"):
        train(learner(lr=1e30), stream(), TrainSettings(learning_rate=1e30, batch_size=4))


def test_no_step_is_taken_on_a_loss_that_is_not_finite():
    one = learner()
    one.loss = lambda outputs, targets: outputs.sum() * math.nan
    before = one.model[0].weight.detach().clone()
    with pytest.raises(TrainingError, match=r"the loss became nan on task 1 .* at step 1 "):
        train(one, stream(), TrainSettings(learning_rate=0.1, batch_size=4))
    assert torch.equal(one.model[0].weight, before)


def test_time_is_counted_by_activity_and_the_data_are_fetched_once_per_task(monkeypatch):
    class Slow(SGD):
        def end_task(self, learner):
            time.sleep(0.05)

    fetched = []
    samples = TensorSplit.samples
    monkeypatch.setattr(
        TensorSplit, "samples", lambda self, *index: (fetched.append(index), samples(self, *index))[1]
    )
    monkeypatch.setattr(
        "orthocl.training.loop.evaluate", lambda model, stream: (time.sleep(0.05), [0.0] * len(stream))[1]
    )
    start = time.perf_counter()
    settings = TrainSettings(epochs=2, batch_size=4, evaluate_every=2)
    seconds = train(learner(Slow()), stream(), settings).seconds
    whole = time.perf_counter() - start
    assert seconds["remember"] >= 2 * 0.05
    assert seconds["evaluate"] >= (3 + 2 * 3) * 0.05
    assert 0 < seconds["train"] <= whole - 11 * 0.05  # without the evaluations in the middle of a task
    assert fetched.count(()) == 2


def test_the_order_of_samples_depends_on_the_seed_only():
    one, again, other = learner(), learner(), learner()
    for each, seed in ((one, 1), (again, 1), (other, 2)):
        train(each, stream(), TrainSettings(batch_size=4, learning_rate=0.1), seed=seed)
    assert torch.equal(one.model[0].weight, again.model[0].weight)
    assert not torch.equal(one.model[0].weight, other.model[0].weight)


def test_memorised_samples_and_monitors_are_recorded():
    progress = train(learner(OGD(memory_per_task=4)), stream(3), TrainSettings(epochs=2, batch_size=4))
    assert [sorted(row) for row in progress.memorised] == [[1], [1, 2], [1, 2, 3]]
    assert [row["rank"] for row in progress.monitors] == [4, 8, 12]
    assert all(row["leak"] < 1e-5 for row in progress.monitors[1:])
    assert all(row["learning_rate_limit"] > 0 for row in progress.monitors)
    assert all(0 < row["drift_cosine"] <= 1 + 1e-9 for row in progress.monitors[1:])


def test_tangents_drift_under_ogd_and_less_under_ogd_plus():
    """The paper's point: stored tangents grow stale; refreshed ones are stale by one task at most."""
    tasks = stream(5, samples=30)
    settings = TrainSettings(epochs=20, batch_size=4, learning_rate=0.1)
    stale, fresh = (
        train(learner(kind(memory_per_task=3)), tasks, settings).monitors[-1] for kind in (OGD, OGDPlus)
    )
    assert stale["drift_cosine"] < fresh["drift_cosine"] < 1
    assert stale["drift_outside"] > fresh["drift_outside"]


def test_peak_memory_counts_the_adapter_and_its_cache():
    sizes = []

    class Peak(Observer):
        def on_task(self, learner, progress):
            sizes.append((learner.method.peak_bytes(), learner.method.nbytes()))

    tasks = make("rotated-mnist-mini", tasks=2, train_size=200, test_size=50)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10))
    one = attach(OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.01))
    train(one, tasks, TrainSettings(epochs=1, learning_rate=0.01), observers=(Peak(),))
    assert sizes[0][0] == sizes[0][1]  # nothing to protect yet, no adapter
    kernel = 200 * 20 * 4
    assert sizes[1][0] > sizes[1][1] - sizes[0][1] + kernel


def test_stable_sgd_decays_the_rate_per_task_and_brings_its_batch_size():
    rates, sizes = [], []

    class Watch(Observer):
        def on_step(self, learner, progress, loss):
            rates.append((progress.task, learner.optimizer.param_groups[0]["lr"]))
            sizes.append(progress.step)

    one = learner(StableSGD(decay=0.5, dropout=0.2, batch_size=5), lr=0.4)
    train(one, stream(3), TrainSettings(epochs=1, batch_size=4, learning_rate=0.4), observers=(Watch(),))
    assert sorted(set(rates)) == [(1, 0.4), (2, 0.2), (3, 0.1)]
    assert sizes == [1, 2] * 3
    assert one.optimizer.param_groups[0]["lr"] == 0.4
    assert one.model[2].p == 0.0


def test_regression_streams_are_scored_by_r_squared():
    x = torch.linspace(-1, 1, 20)[:, None]
    tasks = from_arrays([(x, 2 * x, x, 2 * x)], kind="regression")
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    one = attach(OGD(memory_per_task=3), model, torch.optim.SGD(model.parameters(), lr=0.1))
    progress = train(one, tasks, TrainSettings(epochs=60, learning_rate=0.1))
    assert progress.accuracies[0][0] < 0.9 < progress.accuracies[1][0] <= 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_resume_at_every_step_gives_the_same_weights(tmp_path, method, optimizer):
    """A checkpoint after every step of a run, each resumed in a fresh learner: all end in the same bits."""
    settings = TrainSettings(epochs=2, batch_size=4, learning_rate=0.01)
    small = {k: 3 for k in ("memory_per_task",) if k in METHODS[method]().settings()}
    tasks = stream(2)

    def fresh():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        kind = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
            "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
            "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        }[optimizer]
        return attach(make_method(method, small), model, kind(model.parameters()))

    class Save(Observer):
        def on_step(self, learner, progress, loss):
            save_checkpoint(tmp_path / f"{progress.task}-{progress.step}", learner, progress)

        def on_task(self, learner, progress):
            save_checkpoint(tmp_path / f"{progress.task}-{progress.step}", learner, progress)

    whole = fresh()
    expected = train(whole, tasks, settings, observers=(Save(),))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) >= 5
    for path in paths[:: max(1, len(paths) // 5)]:
        again = fresh()
        torch.rand(3)  # whatever was drawn before must not matter
        progress = train(again, tasks, settings, progress=load_checkpoint(path, again, tasks))
        assert all(
            torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True)
        ), path.name
        assert progress.accuracies == expected.accuracies
        assert progress.losses == expected.losses
        assert progress.memorised == expected.memorised


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    one = learner()
    save_checkpoint(tmp_path / "c", one, Progress())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    other = attach(SGD(), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(StoreError, match="does not fit"):
        load_checkpoint(tmp_path / "c", other, stream())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"evaluate_every": 0}, "evaluate_every"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        TrainSettings(**settings)


def test_ogd_plus_forgets_less_than_sgd_on_real_digits():
    tasks = make("rotated-mnist-mini", tasks=3, train_size=600, test_size=300, options={"step": 30})
    ends = {}
    for method in (SGD(), OGDPlus(memory_per_task=60)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 100), nn.ReLU(), nn.Linear(100, 10))
        one = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.05))
        progress = train(one, tasks, TrainSettings(epochs=5, batch_size=32, learning_rate=0.05))
        ends[method.name] = AccuracyMatrix.from_rows(progress.accuracies)
    assert compute("aac", ends["ogd+"]) > compute("aac", ends["sgd"]) + 0.02
    assert compute("forgetting", ends["ogd+"]) < compute("forgetting", ends["sgd"])


def test_an_observer_reads_whole_weights_and_leaves_no_trace():
    """What an observer reads is complete, although the adapter keeps a part of it, and the run stays the same."""

    class Reader(Observer):
        def __init__(self):
            self.gaps, self.leaks = [], []

        def on_step(self, learner, progress, loss):
            if progress.task == 1 or learner.method.adapter is None:
                return
            kept = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
            inputs = torch.linspace(-1, 1, 64).repeat(5, 1)
            plain = MLP((64,), (64,), 3)
            plain.load_state_dict(kept)
            self.gaps.append(float((plain(inputs) - learner.model(inputs)).detach().abs().max()))
            moved = [kept[name] - learner.started_from[name] for name in learner.parameters]
            self.leaks.append(learner.method.subspace.leak(moved))

    ends, reader = [], Reader()
    for observers in ((), (reader,)):
        generator = torch.Generator().manual_seed(0)
        arrays = [
            (torch.randn(40, 64, generator=generator), torch.randint(3, (40,), generator=generator)) * 2
            for _ in range(2)
        ]
        torch.manual_seed(0)
        model = MLP((64,), (64,), 3)
        learner = attach(OGD(memory_per_task=10), model, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
        train(
            learner, from_arrays(arrays), TrainSettings(epochs=2, batch_size=8), seed=0, observers=observers
        )
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)
    assert len(reader.gaps) == 10
    assert max(reader.gaps) == 0
    assert max(reader.leaks) < 1e-5


def test_several_optimizers_are_for_loops_of_ones_own():
    model = MLP((4,), (6,), 3)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    two = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    with pytest.raises(SettingsError, match="`train` steps one optimizer, this learner was attached to 2"):
        train(attach(OGD(), model, two), stream(), TrainSettings())
