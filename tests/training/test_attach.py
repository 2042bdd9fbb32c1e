"""Methods on a user's own model, optimizer and loop: what is protected, what is refused, and how it is said."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

import orthocl
from orthocl.errors import DataError, SettingsError, StoreError, TrainingError, UnsupportedError
from orthocl.methods import AGEM, EWC, OGD, SGD, OGDPlus, StableSGD
from orthocl.training import attach


def tasks(count=3, samples=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        TensorDataset(
            torch.randn(samples, 4, generator=generator), torch.randint(3, (samples,), generator=generator)
        )
        for _ in range(count)
    ]


def network(*extra, width=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), *extra, nn.Tanh(), nn.Linear(width, 3))


def fit(learner, data, epochs=1):
    with learner.learning(data):
        learner.model.train()
        for _ in range(epochs):
            for x, y in DataLoader(data, batch_size=6):
                learner.model.zero_grad()
                (cross_entropy(learner.model(x), y) + learner.penalty()).backward()
                for optimizer in learner.optimizers:
                    optimizer.step()


def remembered_logits(model, data):
    modes = [m.training for m in model.modules()]
    model.eval()
    with torch.no_grad():
        out = model(data.tensors[0]).gather(1, data.tensors[1][:, None])
    for m, mode in zip(model.modules(), modes, strict=True):
        m.training = mode
    return out


def drift(method, make_optimizer, *layers, **settings):
    """Change of the remembered outputs over a task, relative to the displacement of the weights."""
    first, second = tasks(2)
    model = network(*copy.deepcopy(layers))
    learner = attach(method, model, make_optimizer(model.parameters()), **settings)
    fit(learner, first)
    before = remembered_logits(model, first)
    start = [p.detach().clone() for p in model.parameters()]
    fit(learner, second)
    moved = (
        sum(float((p.detach() - s).square().sum()) for p, s in zip(model.parameters(), start, strict=True))
        ** 0.5
    )
    assert moved > 0
    return float((remembered_logits(model, first) - before).norm()) / moved


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, nesterov=True),
    "weight decay": lambda p: torch.optim.SGD(p, lr=1e-4, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-5),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-5, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-5),
    "groups": lambda p: torch.optim.SGD(
        [{"params": [q], "lr": 1e-4 * (i + 1)} for i, q in enumerate(p)], lr=1e-4
    ),
    "two optimizers": lambda p: [torch.optim.SGD([next(p)], lr=1e-4), torch.optim.AdamW(p, lr=1e-5)],
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_remembered_outputs_are_protected_to_first_order_under(name):
    protected = drift(OGD(memory_per_task=24), OPTIMIZERS[name])
    plain = drift(SGD(), OPTIMIZERS[name])
    assert protected < 2e-2 * plain


def test_projecting_the_gradient_instead_of_the_displacement_would_fail_under_adam():
    """Why weights are projected after the step: a method that projects before Adam forgets."""

    class Before(OGD):
        protects = False

        def transform(self, learner, gradient):
            return gradient if self.subspace is None else self.subspace.outside(gradient)

    protected = drift(OGD(memory_per_task=24), OPTIMIZERS["adam"])
    with pytest.warns(UserWarning, match="lies in the space that ogd protects"):
        assert drift(Before(memory_per_task=24), OPTIMIZERS["adam"]) > 10 * protected


def test_momentum_of_the_old_task_does_not_leak_into_the_new_one():
    first, second = tasks(2)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.99)
    learner = attach(OGD(memory_per_task=24), model, optimizer)
    fit(learner, first, epochs=4)
    before = [p.detach().clone() for p in model.parameters()]
    fit(learner, second)
    update = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
    spans = learner.method.subspace
    spans.remove(2)
    assert spans.leak(update) < 1e-4


def test_batch_statistics_are_frozen_after_the_first_task_and_protected():
    layers = (nn.BatchNorm1d(64),)
    frozen = drift(OGD(memory_per_task=24), OPTIMIZERS["sgd"], *layers)
    with pytest.warns(UserWarning, match="batch statistics"):
        moving = drift(OGD(memory_per_task=24), OPTIMIZERS["sgd"], *layers, batch_norm="keep")
    assert frozen < 2e-2 * drift(SGD(), OPTIMIZERS["sgd"], *layers)
    assert moving > 10 * frozen


def test_batch_statistics_that_keep_moving_are_reported_with_the_measured_drift():
    model = network(nn.BatchNorm1d(64))
    learner = attach(
        OGDPlus(memory_per_task=8), model, OPTIMIZERS["sgd"](model.parameters()), batch_norm="keep"
    )
    first, second, _ = tasks()
    fit(learner, first)
    with pytest.warns(UserWarning, match=r"batch statistics .* changed remembered outputs by [0-9.]+ ?%"):
        fit(learner, second)


def test_dropout_is_off_where_tangents_are_taken():
    protected = drift(OGD(memory_per_task=24), OPTIMIZERS["sgd"], nn.Dropout(0.5))
    assert protected < 2e-2 * drift(SGD(), OPTIMIZERS["sgd"], nn.Dropout(0.5))


def test_a_penalty_is_asked_for_once_however_many_optimizers_take_the_step():
    model = network()
    learner = attach(EWC(), model, OPTIMIZERS["two optimizers"](model.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in tasks(2):
            fit(learner, data)
    with learner.learning(tasks(3)[2]), pytest.warns(UserWarning, match=r"add `learner\.penalty\(\)`"):
        learner.optimizer.step()


@pytest.mark.parametrize("method", [AGEM(), orthocl.SI(), orthocl.chain(orthocl.SI(), OGD())])
def test_what_acts_on_all_weights_at_once_is_refused_with_several_optimizers(method):
    model = network()
    with pytest.raises(UnsupportedError, match="which 2 optimizers take in parts"):
        attach(method, model, OPTIMIZERS["two optimizers"](model.parameters()))


class TwoSequences(torch.optim.SGD):
    """As optimizers without a schedule are: `eval` puts other weights into the model."""

    def train(self): ...

    def eval(self): ...


def test_refusals_say_why():
    model = network()
    with pytest.raises(
        UnsupportedError, match="TwoSequences trains one sequence of weights and evaluates another"
    ):
        attach(OGD(), model, TwoSequences(model.parameters(), lr=0.1))
    attach(EWC(), model, TwoSequences(model.parameters(), lr=0.1)).detach()
    with pytest.raises(UnsupportedError, match="no dropout layers"):
        attach(StableSGD(), model, torch.optim.SGD(model.parameters(), lr=0.1))
    frozen = network().requires_grad_(False)
    with pytest.raises(UnsupportedError, match="no trainable parameter"):
        attach(OGD(), frozen, torch.optim.SGD(frozen.parameters(), lr=0.1))
    with pytest.raises(SettingsError, match="not in the optimizer"):
        attach(OGD(), model, torch.optim.SGD(network().parameters(), lr=0.1))
    with pytest.raises(SettingsError, match="unknown trainable parameter 'encoder'"):
        attach(OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1), protect=["encoder"])
    with pytest.raises(SettingsError, match="batch_norm"):
        attach(OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1), batch_norm="froze")


def test_a_memory_that_will_not_fit_is_noticed_before_training(monkeypatch):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr("orthocl.tangents.memory_plan.available_bytes", lambda: 10_000)
    with pytest.warns(UserWarning, match=r"each of 50 tasks will need .* are available"):
        attach(OGD(), model, optimizer, tasks=50, example_input=torch.zeros(1, 4)).detach()
    learner = attach(OGD(), model, optimizer, tasks=50)
    with pytest.warns(UserWarning, match="each of 50 tasks"):
        fit(learner, tasks(1)[0])
    monkeypatch.setattr("orthocl.tangents.memory_plan.available_bytes", lambda: 10**9)
    learner.detach()
    learner = attach(OGD(), model, optimizer, tasks=50, example_input=torch.zeros(1, 4))
    assert not learner._warned


@pytest.mark.parametrize("disturbance", ["none", "accumulation", "a batch that is skipped", "clipping"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_adapter_by_name_takes_the_steps_of_projection_or_says_why_not(disturbance, momentum):
    generator = torch.Generator().manual_seed(0)
    data = [
        TensorDataset(
            torch.randn(60, 256, generator=generator).double(), torch.randint(3, (60,), generator=generator)
        )
        for _ in range(2)
    ]

    def train(engine):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 3)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, dampening=momentum / 2)
        learner = attach(OGD(memory_per_task=20, engine=engine), model, optimizer)
        used = []
        for task in data:
            with learner.learning(task):
                used.append(learner.method.adapter is not None)
                for start in range(0, 60, 6):
                    if disturbance == "a batch that is skipped":
                        cross_entropy(model(task.tensors[0][:3]), task.tensors[1][:3]).backward()
                    optimizer.zero_grad()
                    for part in range(2 if disturbance == "accumulation" else 1):
                        x, y = (t[start + 3 * part : start + 3 * part + 3] for t in task.tensors)
                        cross_entropy(model(x), y).backward()
                    if disturbance == "clipping":
                        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
        assert used == [False, engine == "adapter"]
        assert learner.method.watcher.report["leak"] < 1e-9
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    expected = train("project")
    assert torch.equal(train("auto"), expected), "in another loop than that of this library auto projects"
    if disturbance == "clipping":
        with pytest.raises(TrainingError, match="were clipped, penalized, accumulated or computed past"):
            train("adapter")
    else:
        torch.testing.assert_close(train("adapter"), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("adamw", "AdamW scales"), ("weight decay", "plain steps"), ("groups", "different learning rates")],
)
def test_the_adapter_by_name_is_refused_before_the_first_step_where_it_is_not_exact(name, reason):
    model = network()
    learner = attach(OGD(engine="adapter"), model, OPTIMIZERS[name](model.parameters()))
    with pytest.raises(UnsupportedError, match=f"ogd cannot use its adapter, because .*{reason}.*engine="):
        fit(learner, tasks(1)[0])
    assert learner.tasks_done == 0


def test_protect_names_a_part_of_the_model():
    model = network()
    learner = attach(OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1), protect=["0"])
    assert list(learner.parameters) == ["0.weight", "0.bias"]


def test_a_step_outside_a_task_nested_tasks_and_empty_tasks_are_errors():
    model = network()
    learner = attach(OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TrainingError, match=r"with learner\.learning"):
        learner.optimizer.step()
    first, second, _ = tasks()
    with (
        pytest.raises(TrainingError, match="cannot be nested"),
        learner.learning(first),
        learner.learning(second),
    ):
        pass
    with pytest.raises(DataError, match="no training samples"), learner.learning(tasks(1, samples=0)[0]):
        pass
    with learner.learning(first), pytest.raises(TrainingError, match="leave the"):
        learner.detach()


def test_an_error_inside_a_task_leaves_the_memory_as_before():
    model = network()
    learner = attach(OGDPlus(memory_per_task=5), model, torch.optim.SGD(model.parameters(), lr=0.1))
    first, second, _ = tasks()
    fit(learner, first)
    rank, size = learner.method.subspace.rank, len(learner.method.memory)
    with pytest.raises(KeyboardInterrupt), learner.learning(second):
        raise KeyboardInterrupt
    assert (learner.method.subspace.rank, len(learner.method.memory), learner.tasks_done) == (rank, size, 1)
    fit(learner, second)
    assert learner.tasks_done == 2


@pytest.mark.parametrize("method", [OGD(memory_per_task=5), OGDPlus(memory_per_task=5), EWC()])
def test_save_and_load_continue_to_the_same_weights(tmp_path, method):
    first, second, third = tasks()
    model = network()
    learner = attach(copy.deepcopy(method), model, torch.optim.SGD(model.parameters(), lr=0.1))
    fit(learner, first)
    fit(learner, second)
    learner.save(tmp_path / "memory.safetensors")
    weights = copy.deepcopy(model.state_dict())
    fit(learner, third)
    again = network()
    again.load_state_dict(weights)
    other = attach(copy.deepcopy(method), again, torch.optim.SGD(again.parameters(), lr=0.1), seed=9)
    other.load(tmp_path / "memory.safetensors")
    fit(other, third)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert other.tasks_done == 3


def test_files_that_do_not_fit_are_refused(tmp_path):
    model = network()
    learner = attach(OGD(memory_per_task=5), model, torch.optim.SGD(model.parameters(), lr=0.1))
    fit(learner, tasks(1)[0])
    path = tmp_path / "memory.safetensors"
    learner.save(path)
    wide = network(width=65)
    with pytest.raises(StoreError, match="another model"):
        attach(OGD(memory_per_task=5), wide, torch.optim.SGD(wide.parameters(), lr=0.1)).load(path)
    with pytest.raises(StoreError, match="method 'ogd', not of 'ewc'"):
        attach(EWC(), network(), torch.optim.SGD(model.parameters(), lr=0.1), protect=None).load(
            path
        ) if False else (attach(EWC(), model, torch.optim.SGD(model.parameters(), lr=0.1)).load(path))
    blob = path.read_bytes()
    for damaged in (blob[: len(blob) // 2], b"", b"\x80\x04pickle"):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="damaged"):
            learner.load(path)
    with pytest.raises(StoreError, match="no such file"):
        learner.load(tmp_path / "nowhere")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    model = network()
    learner = attach(OGD(memory_per_task=5), model, torch.optim.SGD(model.parameters(), lr=0.1))
    path = tmp_path / "memory.safetensors"
    learner.save(path)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    fit(learner, tasks(1)[0])
    with pytest.raises(StoreError, match="No space left"):
        learner.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["memory.safetensors"]


def test_any_map_style_dataset_will_do():
    class Squares(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return torch.tensor([index, index**2, 1, 0], dtype=torch.float32) / 400, index % 3

    model = network()
    learner = attach(OGDPlus(memory_per_task=5), model, torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(2):
        fit(learner, Squares())
    assert len(learner.method.memory) == 10
    with pytest.raises(DataError, match="map-style"), learner.learning(iter([1, 2])):
        pass


@pytest.mark.parametrize(
    "method", [OGDPlus(memory_per_task=6), EWC(), orthocl.AGEM(memory_per_task=6), orthocl.MAS()]
)
def test_integer_inputs_reach_the_model_as_they_are(method):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.out = nn.Embedding(9, 8), nn.Linear(8, 3)

        def forward(self, words):
            return self.out(self.embedding(words).mean(1))

    torch.manual_seed(0)
    model = Words()
    learner = attach(copy.deepcopy(method), model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.embedding.weight.detach().clone()
    for _ in range(2):
        fit(learner, TensorDataset(torch.randint(9, (20, 5)), torch.randint(3, (20,))))
    assert learner.tasks_done == 2
    assert not torch.equal(model.embedding.weight, before)


def test_the_public_names():
    for name in (
        "attach",
        "OGD",
        "OGDPlus",
        "SGD",
        "EWC",
        "AGEM",
        "MAS",
        "SI",
        "PCAOGD",
        "StableSGD",
        "Method",
    ):
        assert hasattr(orthocl, name), name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda m, o: (OGDPlus, m, o), r"got the class OGDPlus: give an instance, OGDPlus\(\)"),
        (lambda m, o: ("ogd+", m, o), r"got the text 'ogd\+': give an instance such as orthocl.OGD\(\)"),
        (lambda m, o: (None, m, o), "expected a method such as .*, got None"),
        (lambda m, o: (m, OGD(), o), r"wrong order: use attach\(method, model, optimizer\)"),
        (lambda m, o: (m, o, OGD()), "wrong order"),
        (lambda m, o: (OGD(), None, o), "expected a model .* got None"),
        (lambda m, o: (OGD(), nn.Linear, o), "expected a model .* got the class Linear"),
        (lambda m, o: (OGD(), o, m), "expected a model .* got a SGD"),
        (lambda m, o: (OGD(), m, None), "expected an optimizer, .* got None"),
        (lambda m, o: (OGD(), m, torch.optim.SGD), "expected an optimizer, .* got the class SGD"),
        (lambda m, o: (OGD(), m, m.parameters()), "expected an optimizer, .* got a generator"),
    ],
)
def test_first_errors_say_what_was_expected(arguments, words):
    model = network()
    with pytest.raises(SettingsError, match=words):
        attach(*arguments(model, torch.optim.SGD(model.parameters(), lr=0.1)))


def test_the_loader_will_do_as_well_as_its_data_set():
    found = []
    for give in (lambda loader: loader, lambda loader: loader.dataset):
        model, data = network(), tasks(1)[0]
        learner = attach(OGD(memory_per_task=4), model, torch.optim.SGD(model.parameters(), lr=0.1), seed=1)
        with learner.learning(give(DataLoader(data, batch_size=6))):
            pass
        found.append(learner.method.remembered[1])
    assert torch.equal(*found)
    batches = DataLoader(data, batch_size=None)
    with pytest.raises(DataError, match="whole batches"), learner.learning(batches):
        pass


def test_a_model_that_returns_a_dict_needs_a_loss():
    class Dictionary(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return {"scores": self.net(x)}

    model, (first, second) = Dictionary(), tasks(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = attach(AGEM(memory_per_task=5), model, optimizer)
    with learner.learning(first):
        pass
    model(second.tensors[0])["scores"].sum().backward()
    with (
        pytest.raises(UnsupportedError, match=r"got a dict .*: pass attach a loss"),
        learner.learning(second),
    ):
        optimizer.step()
    learner.detach()
    learner = attach(
        AGEM(memory_per_task=5), model, optimizer, loss=lambda z, y: cross_entropy(z["scores"], y)
    )
    for data in (first, second):
        with learner.learning(data):
            optimizer.zero_grad()
            learner.loss(model(data.tensors[0]), data.tensors[1]).backward()
            optimizer.step()


def test_a_learner_says_what_it_is():
    model = nn.Linear(3, 2)
    learner = attach(OGD(memory_per_task=2), model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert repr(learner).startswith("Learner(OGD(memory_per_task=2): "), "what was chosen, not every default"
    assert "8 weights protected, 0 tasks learnt, 0 B stored" in repr(learner)
    with learner.learning(TensorDataset(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))):
        pass
    assert "1 task learnt" in repr(learner)
    assert learner._repr_html_() == f"<code>{learner!r}</code>"
