"""What a projecting method reports of its protection: numbers that can be computed another way."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from orthocl.methods import OGD
from orthocl.methods.protection_report import Watch
from orthocl.tangents import Subspace
from orthocl.training import attach


def test_the_learning_rate_limit_of_a_linear_model(data, learn):
    """Tangents of output y of a linear layer are (x, 1) in its row: the limit is n over their largest eigenvalue."""
    net = nn.Linear(4, 3).double()
    learner = attach(OGD(memory_per_task=12), net, torch.optim.SGD(net.parameters(), lr=0.01))
    learn(learner, data[0])
    inputs, targets = data[0].samples()
    rows = torch.zeros(12, 3, 5, dtype=torch.float64)
    rows[torch.arange(12), targets] = torch.cat([inputs, torch.ones(12, 1, dtype=torch.float64)], 1)
    largest = float(torch.linalg.matrix_norm(rows.flatten(1), 2)) ** 2
    assert learner.method.monitor(learner)["learning_rate_limit"] == pytest.approx(12 / largest, rel=1e-9)


@pytest.mark.parametrize(("tasks", "every"), [(7, 1), (50, 1), (99, 2), (148, 3)])
def test_of_many_tasks_fifty_are_watched_from_the_first_to_the_last(tasks, every):
    watch = Watch(probes={number: (number, None) for number in range(tasks)})  # type: ignore[misc]
    assert [piece for piece, _ in watch.watched()] == list(range(0, tasks, every))


@pytest.mark.parametrize("energy", [1.0, 0.9])
def test_drift_is_reported_with_exact_and_with_compressed_tangents(energy, data, learn):
    """With a large step tangents turn, with none they do not; both are measured, whatever is kept of them."""
    found = {}
    for lr in (0.0, 0.3):
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)).double()
        learner = attach(OGD(memory_per_task=6, energy=energy), net, torch.optim.SGD(net.parameters(), lr=lr))
        learn(learner, data[0])
        ((_, kept),) = learner.method.watcher.probes.values()
        assert (kept is None) == (energy < 1)  # compressed tangents are found in the memory itself
        learn(learner, data[1])
        found[lr] = learner.method.monitor(learner)
    assert found[0.0]["drift_norm"] == pytest.approx(1.0, abs=1e-6 if energy == 1 else 0.1)
    assert found[0.0]["drift_cosine"] == pytest.approx(1.0, abs=1e-6 if energy == 1 else 0.1)
    assert found[0.3]["drift_cosine"] < found[0.0]["drift_cosine"]
    assert 0 < found[0.3]["drift_outside"] < 1


@pytest.mark.filterwarnings("ignore:batch statistics")
def test_moving_batch_statistics_by_hand():
    """One layer of batch statistics: the share by which remembered outputs change when only these move."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    learner = attach(OGD(memory_per_task=4), model, optimizer, batch_norm="keep")
    first = torch.randn(4, 2, dtype=torch.float64)
    for number, inputs in enumerate((first, first + 3)):
        with learner.learning(TensorDataset(inputs, torch.tensor([0, 1, 0, 1]))):
            then = {name: value.clone() for name, value in model.named_buffers()}
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
            now = {name: value.clone() for name, value in model.named_buffers()}
            if number:
                model.eval()
                outputs = []
                for state in (then, now):
                    for name, buffer in model.named_buffers():
                        buffer.copy_(state[name])
                    outputs.append(model(first).detach())
                model.train()
                expected = float((outputs[1] - outputs[0]).norm() / outputs[0].norm())
    assert learner.method.monitor(learner)["batch_norm_drift"] == pytest.approx(expected, rel=1e-4)


def test_the_bytes_of_probes_grow_with_the_tasks(make, data, learn):
    learner = make(OGD(memory_per_task=4))
    sizes = []
    for split in data:
        learn(learner, split)
        sizes.append(learner.method.watcher.nbytes())
    assert sizes[0] > 0
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == sizes[0]


@pytest.mark.parametrize("energy", [1.0, 0.9])
def test_drift_need_not_be_measured(energy, data, learn, monkeypatch):
    """Without the watch nothing is collected for earlier tasks; leak and certificate are as before."""
    module, seen = sys.modules["orthocl.methods.protection_report"], []
    own = module.collect
    monkeypatch.setattr(module, "collect", lambda *args, **named: seen.append(1) or own(*args, **named))
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    learner = attach(OGD(memory_per_task=6, energy=energy, watch=False), net, optimizer)
    for split in data[:2]:
        learn(learner, split)
    found = learner.method.monitor(learner)
    assert not seen
    assert not any(name.startswith("drift") or name == "learning_rate_limit" for name in found)
    assert found["leak"] < 1e-9
    assert len(learner.certificate().probes) > 0


def test_all_tasks_are_compared_in_one_solve(data, learn, monkeypatch):
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    learner = attach(OGD(memory_per_task=6), net, torch.optim.SGD(net.parameters(), lr=0.3))
    for split in (*data[:2], *data[:2]):
        learn(learner, split)
    method, seen = learner.method, []
    own = Subspace.squares_inside
    monkeypatch.setattr(
        Subspace, "squares_inside", lambda self, tangents: seen.append(tangents.rows) or own(self, tangents)
    )
    together = method.watcher.drifts(learner, method.subspace, method.remembering(learner))
    assert seen == [4 * 6]
    monkeypatch.setattr(sys.modules["orthocl.methods.protection_report"], "TOGETHER", 0)
    one_by_one = method.watcher.drifts(learner, method.subspace, method.remembering(learner))
    for one, two in zip(one_by_one, together, strict=True):
        assert (one.cosine, one.relative_norm) == (two.cosine, two.relative_norm)
        assert one.outside == pytest.approx(two.outside, abs=1e-6)
    assert seen[1:] == [6] * 4
    assert len({one.cosine for one in together}) == 4


def test_a_state_that_was_saved_before_the_watch_was_a_setting(data, learn):
    net = nn.Linear(4, 3).double()
    learner = attach(OGD(memory_per_task=6), net, torch.optim.SGD(net.parameters(), lr=0.01))
    learn(learner, data[0])
    state = learner.state_dict()
    del state["settings"]["watch"]
    state["state"]["watch"] = state["state"].pop("watcher")
    again = attach(OGD(memory_per_task=6), net, torch.optim.SGD(net.parameters(), lr=0.01))
    again.load_state_dict(state)
    assert again.method.watcher.probes.keys() == learner.method.watcher.probes.keys() == {1}
    assert again.method.monitor(again) == learner.method.monitor(learner)
