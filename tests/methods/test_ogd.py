"""The OGD family against projection with explicit gradients of every remembered output."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from orthocl.errors import SettingsError
from orthocl.methods import OGD, PCAOGD, OGDPlus
from orthocl.nets import MLP, MultiHead
from orthocl.streams import Task, TensorSplit
from orthocl.training import attach


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def jacobian(net, inputs, targets, variant):
    """One explicit gradient per remembered output, by autograd, one at a time."""
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        outputs = net(x[None])[0]
        chosen = {"gtl": [outputs[y]], "ave": [outputs.mean()], "all": list(outputs)}[variant]
        rows += [flat(torch.autograd.grad(o, list(net.parameters()), retain_graph=True)) for o in chosen]
    return torch.stack(rows)


def complement(rows):
    """The projector on the orthogonal complement of the rows' span."""
    _, s, v = torch.linalg.svd(rows, full_matrices=False)
    basis = v[s > 1e-9 * s[0]]
    return torch.eye(rows.shape[1], dtype=rows.dtype) - basis.T @ basis


def reference_run(net, data, variant, memories, refresh, lr=0.1):
    """OGD as published: explicit gradients, a dense projector, plain steps."""
    stored = []
    for number, split in enumerate(data):
        if refresh and stored:
            stored = [(index, n, jacobian(net, *data[n].samples(index), variant)) for index, n, _ in stored]
        rows = torch.cat([r for _, _, r in stored]) if stored else None
        projector = None if rows is None else complement(rows)
        for step in range(6):
            inputs, targets = split.samples(torch.arange(step * 4, step * 4 + 4) % 12)
            net.zero_grad()
            cross_entropy(net(inputs), targets).backward()
            gradient = flat([p.grad for p in net.parameters()])
            update = gradient if projector is None else projector @ gradient
            start = 0
            with torch.no_grad():
                for p in net.parameters():
                    p -= lr * update[start : start + p.numel()].view_as(p)
                    start += p.numel()
        index = memories[number + 1]
        stored.append((index, number, jacobian(net, *split.samples(index), variant)))
    return flat([p.detach() for p in net.parameters()])


@pytest.mark.parametrize("engine", ["project", "adapter"])
@pytest.mark.parametrize("variant", ["gtl", "ave", "all"])
@pytest.mark.parametrize("kind", [OGD, OGDPlus])
def test_trajectory_is_that_of_explicit_projection(make, data, learn, kind, variant, engine):
    learner = make(kind(memory_per_task=3, variant=variant, engine=engine))
    start = {name: value.clone() for name, value in learner.model.state_dict().items()}
    for split in data:
        learn(learner, split)
    found = flat([p.detach() for p in learner.model.parameters()])
    learner.detach()
    learner.model.load_state_dict(start)
    expected = reference_run(learner.model, data, variant, learner.method.remembered, refresh=kind is OGDPlus)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_ogd_plus_append_keeps_old_and_new_directions(make, data, learn):
    learner = make(OGDPlus(memory_per_task=2, refresh="append"))
    learn(learner, data[0])
    net = learner.model
    index = learner.method.remembered[1]
    old = jacobian(net, *data[0].samples(index), "gtl")
    learn(learner, data[1])
    new = torch.cat(
        [jacobian(net, *data[n].samples(learner.method.remembered[n + 1]), "gtl") for n in (0, 1)]
    )
    assert learner.method.subspace.rank == torch.linalg.matrix_rank(torch.cat([old, new])) == 6
    shaped = [torch.randn_like(p) for p in net.parameters()]
    expected = complement(torch.cat([old, new])) @ flat(shaped)
    torch.testing.assert_close(flat(learner.method.subspace.outside(shaped)), expected, rtol=0, atol=1e-10)


def test_ogd_plus_shares_a_total_budget_evenly(make, data, learn):
    learner = make(OGDPlus(memory_per_task=10, memory_total=9))
    sizes = []
    for split in data:
        learn(learner, split)
        sizes.append([len(piece) for piece in learner.method.memory])
    assert sizes == [[9], [4, 4], [3, 3, 3]]


def test_pca_ogd_protects_the_leading_principal_directions(make, data, learn):
    learner = make(PCAOGD(memory_per_task=8, components=3))
    learn(learner, data[0])
    rows = jacobian(learner.model, *data[0].samples(learner.method.remembered[1]), "gtl")
    _, _, v = torch.linalg.svd(rows, full_matrices=False)
    shaped = [torch.randn_like(p) for p in learner.model.parameters()]
    expected = flat(shaped) - v[:3].T @ (v[:3] @ flat(shaped))
    torch.testing.assert_close(flat(learner.method.subspace.outside(shaped)), expected, rtol=0, atol=1e-9)
    assert learner.method.subspace.rank == 3
    with pytest.raises(SettingsError, match="components of pca-ogd must be at least 1"):
        learn(make(PCAOGD(components=0)), data[0])


def test_only_the_trunk_is_projected_and_each_task_uses_its_head(data):
    torch.manual_seed(0)
    model = MultiHead(MLP((4,), hidden=(6,)), {"a": 3, "b": 3}).double()
    learner = attach(OGDPlus(memory_per_task=4), model, torch.optim.SGD(model.parameters(), lr=0.1))
    tasks = [Task(n + 1, h, data[n], data[n], head=h, outputs=3) for n, h in enumerate("ab")]
    with learner.learning(tasks[0]):
        pass
    index = learner.method.remembered[1]
    model.select("a")
    outputs = model(data[0].inputs(index)).gather(1, data[0].targets[index][:, None])[:, 0]
    trunk = list(model.trunk.parameters())
    rows = torch.stack([flat(torch.autograd.grad(o, trunk, retain_graph=True)) for o in outputs])
    with learner.learning(tasks[1]):
        before = [p.detach().clone() for p in trunk]
        head = [p.detach().clone() for p in model.heads[1].parameters()]
        for _ in range(3):
            learner.optimizer.zero_grad()
            cross_entropy(model(data[1].inputs()), data[1].targets).backward()
            learner.optimizer.step()
        step = flat([p.detach() - b for p, b in zip(trunk, before, strict=True)])
    assert set(learner.parameters) == {n for n, _ in model.named_parameters() if n.startswith("trunk.")}
    assert float((rows @ step).abs().max()) < 1e-12 * float(rows.norm() * step.norm()) + 1e-13
    assert not any(torch.equal(p, h) for p, h in zip(model.heads[1].parameters(), head, strict=True))


def test_first_order_drift_of_remembered_outputs_is_quadratic_in_the_step(data, learn):
    """Theorem 2 on a real network: halving the step divides the drift by about four, under SGD by two."""

    def drift(method, lr):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 3)).double()
        learner = attach(method, net, torch.optim.SGD(net.parameters(), lr=lr))
        with learner.learning(data[0]):
            pass
        before = net(data[0].inputs()).gather(1, data[0].targets[:, None]).detach()
        learn(learner, data[1], steps=1)
        after = net(data[0].inputs()).gather(1, data[0].targets[:, None]).detach()
        return float((after - before).norm())

    from orthocl.methods import SGD

    protected = [drift(OGD(memory_per_task=12), lr) for lr in (2e-3, 1e-3)]
    plain = [drift(SGD(), lr) for lr in (2e-3, 1e-3)]
    assert protected[0] / protected[1] == pytest.approx(4, rel=0.05)
    assert plain[0] / plain[1] == pytest.approx(2, rel=0.05)
    assert protected[1] < 1e-2 * plain[1]


def test_regression_and_scalar_outputs(learn):
    generator = torch.Generator().manual_seed(0)
    splits = [
        TensorSplit(
            torch.randn(12, 4, generator=generator, dtype=torch.float64),
            torch.randn(12, 1, generator=generator, dtype=torch.float64),
        )
        for _ in range(2)
    ]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    learner = attach(OGD(memory_per_task=5), net, torch.optim.SGD(net.parameters(), lr=1e-4))
    learn(learner, splits[0])
    inputs = splits[0].inputs(learner.method.remembered[1])
    before = net(inputs).detach()
    moved = [p.detach().clone() for p in net.parameters()]
    learn(learner, splits[1], steps=1)
    step = sum(float((p.detach() - m).norm()) for p, m in zip(net.parameters(), moved, strict=True))
    assert float((net(inputs).detach() - before).norm()) < 1e-2 * step


def test_drift_of_long_streams_is_measured_on_some_tasks_from_the_first_to_the_last():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = attach(OGD(memory_per_task=1), model, optimizer)
    for _ in range(60):
        data = TensorDataset(torch.randn(2, 3), torch.randint(2, (2,)))
        with learner.learning(data):
            optimizer.zero_grad()
            model(data.tensors[0]).square().sum().backward()
            optimizer.step()
    tasks = [piece.task for piece, _ in learner.method.watcher.watched()]
    assert len(learner.method.watcher.probes) == 60
    assert len(tasks) == len(set(tasks)) == 50
    assert (tasks[0], tasks[-1], tasks) == (1, 60, sorted(tasks))


def test_an_error_in_a_task_takes_the_adapter_off(net, data, learn, make):
    """The weights keep what they have learnt, in the model's own layers."""
    learner = make(OGD(memory_per_task=3, engine="adapter"))
    learn(learner, data[0])
    reached = []

    def interrupted():
        with learner.learning(data[1]):
            for _ in range(3):
                learner.optimizer.zero_grad()
                learner.loss(net(data[1].inputs()), data[1].targets).backward()
                learner.optimizer.step()
            reached.append(net(data[1].inputs()).detach())
            assert learner.method.adapter is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert learner.method.adapter is None
    assert {type(layer) for layer in net} == {nn.Linear, nn.Tanh, nn.Dropout}
    torch.testing.assert_close(net(data[1].inputs()).detach(), reached[0])


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.9}, {}])
def test_the_adapter_takes_the_steps_of_the_weights_own_group(optimizer, data):
    """Two groups with rates of their own; momentum lasts over the tasks. As projecting every gradient."""
    found = []
    for engine in ("adapter", "project"):
        torch.manual_seed(0)
        model = MultiHead(MLP((4,), hidden=(6,)), {"a": 3}).double()
        groups = [
            {"params": list(model.heads.parameters()), "lr": 0.3},
            {"params": list(model.trunk.parameters()), "lr": 0.1},
        ]
        learner = attach(
            OGD(memory_per_task=4, engine=engine), model, torch.optim.SGD(groups, lr=0.2, **optimizer)
        )
        for number, split in enumerate(data):
            with learner.learning(Task(number + 1, "a", split, split, head="a", outputs=3)):
                for _ in range(4):
                    learner.optimizer.zero_grad()
                    cross_entropy(model(split.inputs()), split.targets).backward()
                    learner.optimizer.step()
            assert learner.method.adapter is None
        found.append(flat([p.detach() for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)
