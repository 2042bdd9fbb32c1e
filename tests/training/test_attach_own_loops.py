"""What people do in their own training loops, and what must then happen."""

from __future__ import annotations

import copy
import gc
import pickle
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset, TensorDataset

from orthocl import AGEM, EWC, MAS, OGD, SGD, SI, MultiHead, OGDPlus, StableSGD, attach
from orthocl.errors import DataError, SettingsError, UnsupportedError
from orthocl.methods import METHODS
from orthocl.nets import MLP


def task(seed=0, samples=30, features=8, classes=3):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(samples, features, generator=generator).double(),
        torch.randint(classes, (samples,), generator=generator),
    )


def network(features=8, width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 3)).double()


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), lr=0.05, **settings)


def steps(learner, data, loss=cross_entropy):
    for x, y in DataLoader(data, batch_size=6):
        learner.optimizer.zero_grad()
        (loss(learner.model(x), y) + learner.penalty()).backward()
        learner.optimizer.step()


def fit(learner, data, loss=cross_entropy):
    with learner.learning(data):
        learner.model.train()
        steps(learner, data, loss)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def displacement_leak(learner, data, train=steps):
    """Share of a second task's displacement that lies in the memory of the first."""
    fit(learner, task(1))
    start = [p.detach().clone() for p in learner.parameters.values()]
    subspace = copy.deepcopy(learner.method.subspace)
    with learner.learning(data):
        train(learner, data)
    moved = [p.detach() - s for p, s in zip(learner.parameters.values(), start, strict=True)]
    assert any(m.abs().max() > 1e-4 for m in moved)
    return subspace.leak(moved)


def closures(learner, data, keyword=False):
    for x, y in DataLoader(data, batch_size=6):

        def closure(x=x, y=y):
            learner.optimizer.zero_grad()
            loss = cross_entropy(learner.model(x), y) + learner.penalty()
            loss.backward()
            return loss

        if keyword:
            learner.optimizer.step(closure=closure)
        else:
            learner.optimizer.step(closure)


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd"}))
def test_a_closure_gives_the_same_steps(name, keyword):
    ends = []
    for closed in (False, True):
        model = network()
        learner = attach(METHODS[name](), model, sgd(model, momentum=0.5))
        for seed in (1, 2):
            data = task(seed)
            with learner.learning(data):
                closures(learner, data, keyword) if closed else steps(learner, data)
        ends.append(weights(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_the_constraint_holds_after_each_step_of_lbfgs(search):
    """It evaluates the loss at many weights, some of them off the constraint; those that it leaves are not."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn=search)
    learner = attach(OGD(memory_per_task=9), model, optimizer)
    fitted = []

    def train(learner, data):
        start = [p.detach().clone() for p in model.parameters()]
        for x, y in DataLoader(data, batch_size=10):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            before = optimizer.step(closure).item()
            fitted.append(cross_entropy(model(x), y).item() < before)
            if learner.tasks_done:
                moved = [p.detach() - s for p, s in zip(model.parameters(), start, strict=True)]
                assert learner.method.subspace.leak(moved) < 1e-12

    with learner.learning(task(1)):
        train(learner, task(1))
    with learner.learning(task(2)):
        train(learner, task(2))
    assert learner.method.watcher.report["leak"] < 1e-12
    assert any(fitted[3:])


def test_the_adapter_takes_the_learning_rate_of_the_protected_parameters():
    ends = {}
    for engine in ("adapter", "project"):
        model = network()
        optimizer = torch.optim.SGD(
            [{"params": model[2].parameters(), "lr": 0.5}, {"params": model[0].parameters(), "lr": 0.01}]
        )
        learner = attach(OGD(memory_per_task=9, engine=engine), model, optimizer, protect=["0"])
        assert displacement_leak(learner, task(2)) < 1e-10
        ends[engine] = weights(model)
    torch.testing.assert_close(ends["adapter"], ends["project"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"weight_decay": 0.1}])
def test_settings_of_the_optimizer_may_change_between_tasks(change):
    model = network()
    groups = [{"params": layer.parameters()} for layer in (model[0], model[2])]
    learner = attach(OGD(memory_per_task=9), model, torch.optim.SGD(groups, lr=0.05))
    first = task(1)
    fit(learner, first)
    learner.optimizer.param_groups[0].update(change)
    assert displacement_leak(learner, task(2)) < 1e-10


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd"}))
def test_layers_frozen_between_tasks_stay_frozen_or_are_refused(name):
    model = network()
    learner = attach(METHODS[name](), model, sgd(model))
    fit(learner, task(1))
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    if learner.method.projects:
        with pytest.raises(UnsupportedError, match=r"'0\.weight', were frozen after `attach`"):
            fit(learner, task(2))
        model[0].requires_grad_(True)
        fit(learner, task(2))
        return
    for seed in (2, 3):
        fit(learner, task(seed))
    assert torch.equal(model[0].weight, before)


def test_ewc_with_averaged_gradients_allows_frozen_layers():
    model = network()
    learner = attach(EWC(fisher_batch=4), model, sgd(model))
    model[0].requires_grad_(False)
    fit(learner, task(1))
    assert learner.method.importance[0].abs().max() == 0
    assert learner.method.importance[2].abs().max() > 0


def test_layers_unfrozen_after_attach_are_not_protected_and_said_to_be():
    model = network()
    model[0].requires_grad_(False)
    learner = attach(OGD(memory_per_task=4), model, sgd(model))
    fit(learner, task(1))
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match=r"'0\.weight', were frozen when the method was attached"):
        fit(learner, task(2))


def test_an_unknown_head_leaves_the_learner_usable():
    model = MultiHead(MLP((8,), hidden=(6,)), {"a": 3, "b": 3}).double()
    learner = attach(OGD(memory_per_task=4), model, sgd(model))
    with pytest.raises(SettingsError, match="unknown head 'c'"), learner.learning(task(), head="c"):
        pass
    with learner.learning(task(), head="b"):
        assert model.selected == "b"


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_heads_are_found_inside_of_a_wrapper(wrap):
    model = MultiHead(MLP((8,), hidden=(6,)), {"a": 3, "b": 3}).double()
    wrapped = wrap(model)
    learner = attach(OGDPlus(memory_per_task=4), wrapped, sgd(wrapped))
    assert not any("heads" in name for name in learner.parameters)
    for seed, head in enumerate("ab"):
        other = model.heads["ba".index(head)].weight
        before = other.detach().clone()
        with learner.learning(task(seed), head=head):
            assert model.selected == head
            steps(learner, task(seed))
        assert torch.equal(other, before)
    assert [piece.head for piece in learner.method.memory] == ["a", "b"]


def test_batch_norm_keeps_its_mode():
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    learner = attach(OGD(memory_per_task=4), model, sgd(model))
    fit(learner, task(1))
    statistics = model[1].running_mean.clone()
    with learner.learning(task(2)):
        model.train()
        steps(learner, task(2))
        assert model[1].training
        model.eval()
        model(task(2).tensors[0])
        assert not model[1].training
        model.train()
        pickle.loads(pickle.dumps(model))
    assert all(module.training for module in model.modules())
    assert torch.equal(model[1].running_mean, statistics)


@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd"])
def test_an_error_restores_a_memory_that_was_not_copied(name):
    model = network()
    learner = attach(METHODS[name](), model, sgd(model, momentum=0.5))
    fit(learner, task(1))
    fit(learner, task(2))
    before = learner.method.state_dict()
    own = {t.data_ptr() for t in tensors(learner.method.snapshot())}
    assert {t.data_ptr() for t in tensors(learner.method.subspace.state_dict())} <= own

    def broken():
        with learner.learning(task(3)):
            steps(learner, task(3))
            learner.method.end_task(learner)
            raise RuntimeError("after the memory has grown")

    with pytest.raises(RuntimeError, match="has grown"):
        broken()
    after = learner.method.state_dict()
    assert str(after) == str(before)
    for one, other in zip(tensors(before), tensors(after), strict=True):
        assert torch.equal(one, other)


def tensors(state):
    if isinstance(state, torch.Tensor):
        return [state] if state.numel() else []
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def test_an_error_restores_the_random_draws_too():
    model = network()
    learner = attach(AGEM(memory_per_task=5), model, sgd(model))
    fit(learner, task(1))
    before = learner.generator.get_state()
    with pytest.raises(IndexError), learner.learning(task(2)):
        steps(learner, TensorDataset(task(2).tensors[0], torch.arange(30)))  # labels without a logit, later
    assert torch.equal(learner.generator.get_state(), before)


@pytest.mark.parametrize("earlier", [1, 2])
@pytest.mark.parametrize("method", [EWC(), SI(), MAS()])
def test_a_forgotten_penalty_is_noticed(method, earlier):
    model = network()
    learner = attach(copy.deepcopy(method), model, sgd(model))
    for number in range(1, earlier + 1):
        fit(learner, task(number))  # with the penalty: no warning, which would be an error
    with learner.learning(task(3)):
        cross_entropy(model(task(3).tensors[0]), task(3).tensors[1]).backward()
        with pytest.warns(UserWarning, match=r"add `learner\.penalty\(\)`"):
            learner.optimizer.step()


@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd", "a-gem", "ewc", "si", "mas"])
def test_training_inside_of_autocast(name):
    torch.manual_seed(0)
    model = network(features=64, width=64).float()
    learner = attach(METHODS[name](), model, sgd(model))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for seed in (1, 2, 3):
            data = task(seed, features=64)
            fit(learner, TensorDataset(data.tensors[0].float(), data.tensors[1]))
    assert weights(model).isfinite().all()
    if learner.method.projects:
        assert learner.method.monitor(learner)["leak"] < 1e-4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd", "a-gem", "ewc", "mas"])
def test_labels_of_any_integer_type(name, dtype):
    inputs, targets = task(classes=2).tensors
    ends = []
    for labels in (targets, targets.to(dtype)):
        model = network()
        learner = attach(METHODS[name](), model, sgd(model))
        for _ in range(2):
            fit(learner, TensorDataset(inputs, labels), loss=lambda o, y: cross_entropy(o, y.long()))
        ends.append(weights(model))
    assert torch.equal(*ends)


def test_labels_without_a_logit_and_outputs_that_are_no_numbers_are_explained():
    inputs, targets = task().tensors
    for data, outputs, reason in (
        (TensorDataset(inputs, targets + 10), None, r"label \d+ has no logit: the model has 3 outputs"),
        (
            TensorDataset(inputs * float("nan"), targets),
            None,
            "sample 0 of task 1 has NaN or infinite values",
        ),
        (TensorDataset(inputs, targets), lambda m, x: m(x) / 0, "not finite: the network has diverged"),
    ):
        model = network()
        learner = attach(OGD(memory_per_task=4), model, sgd(model), outputs=outputs)
        with pytest.raises(DataError, match=reason), learner.learning(data):
            pass
        assert learner.tasks_done == 0


@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd", "ewc", "mas"])
def test_models_whose_outputs_cannot_be_guessed_are_refused(name):
    class Scores(nn.Linear):
        def forward(self, x):
            return {"scores": super().forward(x)}

    model = Scores(8, 3).double()
    learner = attach(METHODS[name](), model, sgd(model))
    with (
        pytest.raises(UnsupportedError, match=r"got a dict with the keys 'scores': .* outputs=lambda"),
        learner.learning(task()),
    ):
        pass


@pytest.mark.parametrize("item", [("text", 1), (None, 1)])
def test_items_that_are_no_tensors_are_explained(item):
    class Items(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return item

    model = network()
    learner = attach(SGD(), model, sgd(model))
    with (
        pytest.raises(DataError, match="each input of a data set must be a tensor"),
        learner.learning(Items()),
    ):
        pass


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd"}))
def test_one_output_without_an_axis(name):
    model = nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)).double()
    learner = attach(METHODS[name](), model, sgd(model))
    data = TensorDataset(task().tensors[0], torch.randn(30).double())
    for _ in range(2):
        fit(learner, data, mse_loss)
    assert weights(model).isfinite().all()


class Scalar(nn.Linear):
    """A layer with a forward of its own: what it does with its weight is not known."""

    def forward(self, x):
        return super().forward(x)[:, 0]


@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd", "sketch-ogd", "orfit"])
def test_layers_with_a_forward_of_their_own_are_protected_by_whole_tangents(name):
    model = Scalar(8, 1).double()
    learner = attach(METHODS[name](), model, sgd(model))
    data = TensorDataset(task().tensors[0], torch.randn(30).double())
    for _ in range(2):
        fit(learner, data, mse_loss)
    assert learner.method.nbytes() > 0


@pytest.mark.parametrize("name", ["gpm", "sgp", "kron-ogd", "adam-nscl"])
def test_layers_with_a_forward_of_their_own_cannot_be_read(name):
    model = Scalar(8, 1).double()
    learner = attach(METHODS[name](), model, sgd(model))
    data = TensorDataset(task().tensors[0], torch.randn(30).double())
    with pytest.raises(
        UnsupportedError, match=f"{name} protects what .* none of the protected parameters' layers"
    ):
        fit(learner, data, mse_loss)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd"}))
def test_sparse_gradients(name):
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(20, 3)).double()
        learner = attach(METHODS[name](), model, sgd(model))
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):
            words = torch.randint(9, (20, 5), generator=generator)
            fit(learner, TensorDataset(words, torch.randint(3, (20,), generator=generator)))
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-10)


def test_lazy_modules_need_a_shape_first():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(UnsupportedError, match="send one batch through"):
        attach(OGD(), model, sgd(model))


def test_a_scheduler_and_stable_sgd_both_setting_the_rate_is_said():
    model = network()
    optimizer = sgd(model)
    learner = attach(StableSGD(dropout=None), model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def one_step():
        with learner.learning(task(1)):
            optimizer.step()
            scheduler.step()

    with pytest.warns(UserWarning, match="stable-sgd"):
        one_step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_step_of_another_optimizer_is_noticed():
    model = network()
    learner = attach(OGD(memory_per_task=4), model, sgd(model))
    fit(learner, task(1))
    other = torch.optim.Adam(model.parameters())

    def train():
        with learner.learning(task(2)):
            cross_entropy(model(task(2).tensors[0]), task(2).tensors[1]).backward()
            other.step()

    with pytest.warns(UserWarning, match="not with the optimizer that ogd is attached to"):
        train()
    anew = attach(OGD(memory_per_task=4), model, other)
    anew.load_state_dict(learner.state_dict())
    learner.detach()
    fit(anew, task(3))
    assert anew.method.subspace.owners == (1, 2, 3)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (OGDPlus(refresh="refill"), r"unknown refresh of ogd\+ 'refill'.*append, replace"),
        (OGD(engine="fast"), "unknown engine of ogd"),
        (OGD(storage="float16"), "unknown storage of ogd"),
        (OGD(memory_per_task=2.5), "memory_per_task of ogd must be int, got 2.5"),
        (OGD(memory_per_task=-1), "memory_per_task of ogd must be at least 0, got -1"),
        (OGD(memory_per_task=True), "memory_per_task of ogd must be int"),
        (EWC(fisher="true"), "unknown fisher of ewc"),
        (EWC(strength="1"), "strength of ewc must be float"),
        (EWC(strength=-1.0), "at least 0"),
        (EWC(strength=float("nan")), "finite number, got nan"),
        (EWC(fisher_batch=0), "fisher_batch of ewc must be at least 1"),
        (EWC(online=1), "online of ewc must be bool"),
        (SI(damping=0.0), "damping of si"),
        (AGEM(reference_batch=0), "reference_batch of a-gem must be at least 1"),
        (StableSGD(decay=-0.5), "decay of stable-sgd"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(method, reason):
    model = network()
    with pytest.raises(SettingsError, match=reason):
        attach(method, model, sgd(model))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd"}))
def test_tasks_with_samples_of_another_shape(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    learner = attach(METHODS[name](), model, sgd(model))
    for side in (5, 7, 6):
        fit(learner, TensorDataset(torch.randn(12, 1, side, side).double(), torch.arange(12) % 3))
    assert weights(model).isfinite().all()


def test_weights_in_half_precision_are_warned_of():
    model = nn.Linear(4, 3).bfloat16()
    with pytest.warns(UserWarning, match="rounding the weights"):
        attach(OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("name", ["a-gem", "a-gem-nt", "ogd", "er"])
def test_models_that_return_a_dict(name):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, x):
            return {"logits": self.layers(x)}

    ends = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        model = Named() if wrapped else network()
        learner = attach(METHODS[name](memory_per_task=5), model, sgd(model), seed=3)
        for seed in (1, 2, 3):
            data = task(seed)
            with learner.learning(data):
                outputs = model(data.tensors[0])
                loss = cross_entropy(outputs["logits"] if wrapped else outputs, data.tensors[1])
                learner.optimizer.zero_grad()
                (loss + learner.penalty()).backward()
                learner.optimizer.step()
        ends.append(weights(model))
    assert torch.equal(*ends)


def alive() -> int:
    """Bytes of all plain tensors in this process."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            with suppress(RuntimeError, NotImplementedError):  # sparse or wrapped, of other tests
                storage = thing.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.parametrize("name", ["sgd", "ewc", "si", "mas", "a-gem", "er", "ogd", "ogd+", "gpm"])
def test_from_task_to_task_nothing_is_kept_but_what_is_counted(name):
    model = network()
    learner = attach(METHODS[name](), model, sgd(model))
    beyond = []
    for number in range(1, 31):
        fit(learner, task(number))
        if number in (10, 30):
            beyond.append(alive() - learner.method.nbytes())
    assert beyond[1] - beyond[0] < 20 * 1000  # the places of remembered samples, a few numbers a task
