"""Models that grow between tasks: more outputs, new layers, new heads."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from orthocl import EWC, OGD, MultiHead, OGDPlus, attach
from orthocl.errors import SettingsError, UnsupportedError
from orthocl.methods import METHODS
from orthocl.nets import MLP, grown_linear
from orthocl.tangents import collect
from orthocl.tangents.growing import grown_tangents

LR = 0.1


def task(seed, classes=3, features=4, samples=10):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(samples, features, generator=generator).double(),
        torch.randint(classes, (samples,), generator=generator),
    )


class Net(nn.Module):
    def __init__(self, outputs=3):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 6).double(), nn.Linear(6, outputs).double()

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def grow(model, optimizer, outputs=5):
    torch.manual_seed(1)
    model.head = grown_linear(model.head, outputs)
    optimizer.add_param_group({"params": list(model.head.parameters())})


def steps(learner, data, count=4):
    x, y = data.tensors
    for _ in range(count):
        learner.optimizer.zero_grad()
        (cross_entropy(learner.model(x), y) + learner.penalty()).backward()
        learner.optimizer.step()


def attached(method, model=None):
    model = model or Net()
    return attach(method, model, torch.optim.SGD(model.parameters(), lr=LR), seed=0)


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def dense_padded(before, small, large):
    """Rows of explicit tangents of a small model in the coordinates of a large one."""
    parts, start = [], 0
    for name, shape in small.items():
        size = shape.numel()
        rows = before[:, start : start + size].unflatten(1, tuple(shape))
        start += size
        whole = rows.new_zeros(len(rows), *large[name])
        whole[(slice(None), *(slice(0, n) for n in shape))] = rows
        parts.append(whole.flatten(1))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("engine", ["auto", "adapter", "project"])
def test_after_growth_the_steps_are_those_of_dense_projection_on_padded_tangents(engine):
    learner = attached(OGD(memory_per_task=6, engine=engine))
    model, optimizer = learner.model, learner.optimizer
    with learner.learning(task(1)):
        steps(learner, task(1))
    before = learner.method.subspace.tangents.dense().clone()
    small = {name: p.shape for name, p in learner.parameters.items()}
    grow(model, optimizer)
    large = {name: p.shape for name, p in model.named_parameters()}
    basis = torch.linalg.svd(dense_padded(before, small, large), full_matrices=False)[2]
    reference = Net(5)
    reference.load_state_dict(model.state_dict())
    data = task(2, classes=5)
    for _ in range(4):
        reference.zero_grad()
        cross_entropy(reference(data.tensors[0]), data.tensors[1]).backward()
        gradient = flat(p.grad for p in reference.parameters())
        step = gradient - basis.t() @ (basis @ gradient)
        with torch.no_grad():
            for p, change in zip(
                reference.parameters(), step.split([p.numel() for p in reference.parameters()]), strict=True
            ):
                p -= LR * change.view_as(p)
    with learner.learning(data):
        assert [tuple(p.shape) for p in learner.parameters.values()] == [tuple(s) for s in large.values()]
        steps(learner, data)
    assert torch.allclose(flat(model.parameters()), flat(reference.parameters()), rtol=0, atol=1e-12)
    assert learner.method.subspace.owners == (1, 2)
    assert learner.method.watcher.report["leak"] < 1e-12


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd"}))
def test_every_method_goes_on_with_a_grown_head_and_a_new_layer(name):
    small = {"memory_per_task": 4} if "memory_per_task" in METHODS[name]().settings() else {}

    class Deeper(Net):
        def forward(self, x):
            hidden = torch.tanh(self.body(x))
            return self.head(self.extra(hidden) if hasattr(self, "extra") else hidden)

    learner = attached(METHODS[name](**small), Deeper())
    with learner.learning(task(1)):
        steps(learner, task(1))
    grow(learner.model, learner.optimizer)
    with learner.learning(task(2, classes=5)):
        steps(learner, task(2, classes=5))
    learner.model.extra = nn.Linear(6, 6).double()
    learner.optimizer.add_param_group({"params": list(learner.model.extra.parameters())})
    start = learner.model.extra.weight.detach().clone()

    def third():
        with learner.learning(task(3, classes=5)):
            steps(learner, task(3, classes=5))

    if isinstance(learner.method, OGD) and not isinstance(learner.method, OGDPlus):
        with pytest.warns(UserWarning, match=r"2 parameters, such as 'extra.weight', are new") as found:
            third()
        assert [each.filename for each in found if "are new" in str(each.message)] == [__file__]
    else:
        third()
    assert "extra.weight" in learner.parameters
    assert float((learner.model.extra.weight.detach() - start).abs().max()) > 0
    with learner.learning(task(4, classes=5)):
        steps(learner, task(4, classes=5))
    assert flat(learner.model.parameters()).isfinite().all()


def test_ogd_plus_takes_its_tangents_again_for_a_new_layer():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    learner = attached(OGDPlus(memory_per_task=4), model)
    with learner.learning(task(1)):
        pass
    model.append(nn.Linear(3, 3).double())
    learner.optimizer.add_param_group({"params": list(model[3].parameters())})
    piece = learner.method.memory.pieces[1]
    expected = collect(model, piece.inputs, piece.targets, parameters=dict(model.named_parameters()))
    with learner.learning(task(2)):
        found = learner.method.subspace.tangents
        assert torch.allclose(found.gram(expected), expected.gram(), rtol=1e-10)


def test_quadratic_penalties_ignore_new_weights():
    learner = attached(EWC(strength=3.0))
    with learner.learning(task(1)):
        steps(learner, task(1))
    old = [part.clone() for part in learner.method.importance]
    grow(learner.model, learner.optimizer)
    with learner.learning(task(2, classes=5)):
        found = learner.method.importance
        assert [tuple(f.shape) for f in found] == [(6, 4), (6,), (5, 6), (5,)]
        assert torch.equal(found[2][:3], old[2])
        assert float(found[2][3:].abs().max()) == 0
        assert float(learner.penalty().detach()) == pytest.approx(0.0, abs=1e-20)


@pytest.mark.parametrize("method", [OGD(memory_per_task=4), OGDPlus(memory_per_task=4), EWC()])
def test_a_saved_memory_is_loaded_by_name_into_a_grown_model(tmp_path, method):
    learner = attached(method)
    with learner.learning(task(1)):
        steps(learner, task(1))
    learner.save(tmp_path / "memory")
    grow(learner.model, learner.optimizer)
    other = Net(5)
    other.load_state_dict(learner.model.state_dict())
    again = attached(type(method)(**method.settings()), other)
    again.load(tmp_path / "memory")
    for each in (learner, again):
        with each.learning(task(2, classes=5)):
            steps(each, task(2, classes=5))
    assert torch.allclose(flat(learner.model.parameters()), flat(other.parameters()), rtol=0, atol=1e-13)


def test_a_new_head_of_a_multi_head_model_is_used_and_not_protected():
    model = MultiHead(MLP((4,), hidden=(6,)), {"one": 3}).double()
    learner = attached(OGD(memory_per_task=4), model)
    with learner.learning(task(1), head="one"):
        steps(learner, task(1))
    old = model(task(1).tensors[0]).detach()
    learner.optimizer.add_param_group({"params": list(model.add_head("two", 5).double().parameters())})
    with learner.learning(task(2, classes=5), head="two"):
        steps(learner, task(2, classes=5))
    assert all(not name.startswith("heads") for name in learner.parameters)
    assert learner.method.watcher.report["leak"] < 1e-12
    model.select("one")
    assert float((model(task(1).tensors[0]).detach() - old).abs().max()) < 0.5
    with pytest.raises(SettingsError, match="there is a head 'two' already"):
        model.add_head("two", 2)


def test_growth_that_cannot_be_followed_is_refused():
    learner = attached(OGD(memory_per_task=4))
    with learner.learning(task(1)):
        steps(learner, task(1))
    grown = grown_linear(learner.model.head, 5)
    head = learner.model.head
    learner.model.head = grown
    with (
        pytest.raises(SettingsError, match=r"'head.weight', are not in the optimizer"),
        learner.learning(task(2)),
    ):
        pass
    learner.model.head = nn.Linear(6, 2).double()
    with pytest.raises(UnsupportedError, match=r"shape \(2, 6\) now"), learner.learning(task(2)):
        pass
    learner.model.head = nn.Linear(6, 5).double()
    learner.optimizer.add_param_group({"params": list(learner.model.head.parameters())})

    def train():
        with learner.learning(task(2)):
            pass

    with pytest.warns(UserWarning, match="does not begin with its values"):
        train()
    with pytest.raises(SettingsError, match="cannot grow"):
        grown_linear(head, 1)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3, groups=2), nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4)],
)
def test_tangents_of_every_kind_of_block_are_padded(layer):
    class Model(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            z = self.layer(x)
            return z.tanh().flatten(2).sum(2)[:, :3] if z.dim() > 2 else z.tanh()[:, :3]

    torch.manual_seed(0)
    model = Model(layer).double()
    x = torch.randn(5, 4).double()
    if isinstance(layer, nn.Conv2d):
        x = torch.randn(5, 2, 5, 5).double()
    if isinstance(layer, nn.Embedding):
        x = torch.randint(7, (5, 4))
    y = torch.tensor([0, 1, 2, 0, 1])
    small = dict(model.named_parameters())
    tangents = collect(model, x, y, parameters=small)
    large = {
        name: nn.Parameter(torch.zeros(p.shape[0] + 2, *p.shape[1:]).double()) for name, p in small.items()
    }
    grown = grown_tangents(tangents, model, large)
    expected = dense_padded(
        tangents.dense(), {n: p.shape for n, p in small.items()}, {n: p.shape for n, p in large.items()}
    )
    assert torch.equal(grown.dense(), expected)
    assert torch.allclose(grown.gram(), tangents.gram())


def test_grouped_convolutions_keep_their_groups_over_tasks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)).double()
    learner = attached(OGD(memory_per_task=3), model)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.randn(9, 4, 5, 5, generator=generator).double()
        data = TensorDataset(x, torch.randint(3, (9,), generator=generator))
        with learner.learning(data):
            steps(learner, data)
    assert learner.method.watcher.report["leak"] < 1e-10
