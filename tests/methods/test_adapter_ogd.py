"""One memory for many adapters: derived tangents are autograd's, and protection survives merging and new adapters."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import orthocl
from orthocl.errors import UnsupportedError
from orthocl.storage import read_state, write_state
from orthocl.tangents.adapted_weights import adapted_layers, collect_whole, derived, whole_weight
from orthocl.tangents.collect import collect
from orthocl.tangents.remembering import Remembering


class LoRA(nn.Module):
    """Written in ten lines."""

    def __init__(self, base, rank=2, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(
            torch.randn(rank, base.in_features, generator=generator, dtype=torch.float64)
        )
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, dtype=torch.float64))

    def forward(self, x):
        return self.base(x) + 0.5 * x @ self.down.t() @ self.up.t()

    def merged(self):
        layer = nn.Linear(self.base.in_features, self.base.out_features).double()
        layer.weight.data = (self.base.weight + 0.5 * self.up @ self.down).detach()
        layer.bias.data = self.base.bias.detach().clone()
        return layer.requires_grad_(False)


class Net(nn.Module):
    """Layers see one position per sample, or several."""

    def __init__(self, positions):
        super().__init__()
        self.positions = positions
        self.query, self.value, self.out = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.tanh(self.value(torch.tanh(self.query(x))))
        return self.out(hidden.mean(1) if self.positions else hidden)


def network(positions=False):
    torch.manual_seed(0)
    return Net(positions).double().requires_grad_(False)


def adapt(model, seed):
    for name in ("query", "value"):
        setattr(model, name, LoRA(getattr(model, name), seed=seed))


def merge(model):
    for name in ("query", "value"):
        setattr(model, name, getattr(model, name).merged())


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def samples(positions=False, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (24, 4, 5) if positions else (24, 5)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (24,), generator=generator)


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_derived_tangents_are_those_of_autograd(positions, variant):
    model = network(positions)
    x, y = samples(positions)
    adapt(model, 1)
    for name in ("query", "value"):
        torch.nn.init.normal_(getattr(model, name).up)
    layers = adapted_layers(model, trained(model))
    assert sorted(layers) == ["query", "value"]
    stored = collect_whole(
        model, x, y, parameters=trained(model), layers=layers, remember=Remembering(variant)
    )
    same = derived(model, stored, trained(model), layers).dense()
    torch.testing.assert_close(same, collect(model, x, y, parameters=trained(model), variant=variant).dense())
    # Merged and adapted anew: the stored tangents give those of the new adapter, without data.
    merge(model)
    adapt(model, 2)
    fresh = derived(model, stored, trained(model), adapted_layers(model, trained(model))).dense()
    expected = collect(model, x, y, parameters=trained(model), variant=variant).dense()
    assert float((fresh - expected).norm() / expected.norm()) < 1e-12
    assert float(expected.norm()) > 0


def learn(model, method, optimizer, data, steps=12):
    learner = orthocl.attach(method, model, optimizer, seed=0)
    x, y = data
    with learner.learning(TensorDataset(x, y)):
        for step in range(steps):
            rows = torch.arange(24)[step % 3 :: 3]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    learner.detach()
    return learner


def change_of_remembered_outputs(method, optimizer, merging, rate, steps=12):
    """Relative change of task 1's remembered outputs while task 2 trains an adapter of its own."""
    model = network()
    adapt(model, 1)
    first, second = samples(seed=1), samples(seed=2)
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), first)
    index = method.remembered.get(1, torch.arange(6))
    if merging:
        merge(model)
        adapt(model, 2)
    before = model(first[0][index]).gather(1, first[1][index][:, None]).detach()
    learner = learn(model, method, optimizer(trained(model).values(), lr=rate), second, steps)
    after = model(first[0][index]).gather(1, first[1][index][:, None]).detach()
    return float((after - before).norm() / before.norm()), learner


@pytest.mark.parametrize("merging", [True, False])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_adapter_per_task_keeps_the_protection(merging, optimizer):
    rate = 0.1 if optimizer is torch.optim.SGD else 0.01
    plain, _ = change_of_remembered_outputs(orthocl.SGD(), optimizer, merging, rate)
    kept, learner = change_of_remembered_outputs(
        orthocl.AdapterOGD(memory_per_task=6), optimizer, merging, rate
    )
    assert kept < plain / 5
    assert learner.method.stored.rows == 12
    assert learner.method.report["leak"] < 0.05


def test_what_is_left_is_of_second_order():
    """Half the rate, with as many steps: a quarter of the change, up to higher orders."""
    changes = [
        change_of_remembered_outputs(orthocl.AdapterOGD(memory_per_task=6), torch.optim.SGD, True, rate)[0]
        for rate in (0.02, 0.01)
    ]
    assert changes[1] < changes[0] / 3


def changes_said(method, model, data):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.05), data)
    return sum("whole weights have changed" in str(one.message) for one in found)


def test_merging_is_no_change_of_whole_weights_but_an_earlier_epoch_is():
    method, model = orthocl.AdapterOGD(memory_per_task=6), network().float()
    for name in ("query", "value"):
        setattr(model, name, LoRA(getattr(model, name)).float())
    data = [(x.float(), y) for x, y in (samples(seed=number) for number in range(5))]
    assert changes_said(method, model, data[0]) == 0
    assert changes_said(method, model, data[1]) == 0
    with torch.no_grad():  # in float32, up to rounding
        for layer in (model.query, model.value):
            layer.base.weight.add_(layer.up @ layer.down, alpha=0.5)
            layer.up.zero_()
    assert changes_said(method, model, data[2]) == 0
    with pytest.raises(KeyboardInterrupt):
        _stop_halfway(method, model, data[3])
    assert changes_said(method, model, data[3]) == 0
    with torch.no_grad():
        model.query.up.mul_(0.9)
    assert changes_said(method, model, data[4]) == 1


def _stop_halfway(method, model, data):
    optimizer = torch.optim.SGD(trained(model).values(), lr=0.05)
    learner = orthocl.attach(method, model, optimizer, seed=0)
    with learner.learning(TensorDataset(*data)):
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
        raise KeyboardInterrupt


def test_compressed_and_saved_memory(tmp_path):
    model = network(positions=True)
    adapt(model, 1)
    method = orthocl.AdapterOGD(memory_per_task=6, energy=0.999)
    assert method.nbytes() == 0
    learner = learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), samples(True))
    write_state(tmp_path / "memory.safetensors", learner.state_dict())
    other = orthocl.AdapterOGD(memory_per_task=6, energy=0.999)
    again = orthocl.attach(other, model, torch.optim.SGD(trained(model).values(), lr=0.1))
    again.load_state_dict(read_state(tmp_path / "memory.safetensors"))
    torch.testing.assert_close(other.stored.dense(), method.stored.dense())
    assert other.nbytes() == method.nbytes() == method.stored.nbytes + 6 * 8  # and which samples these are
    assert method.monitor(learner)["tangents"] == other.monitor(again)["tangents"] == method.stored.rows == 6
    assert orthocl.AdapterOGD().monitor(learner)["tangents"] == 0


def test_a_layer_that_was_not_remembered_is_an_error():
    model = network()
    model.query = LoRA(model.query, seed=1)
    method = orthocl.AdapterOGD(memory_per_task=4)
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), samples())
    model.query = model.query.merged()
    model.value = LoRA(model.value, seed=2)
    with pytest.raises(UnsupportedError, match="layers="):
        learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), samples())
    model = network()
    model.query = LoRA(model.query, seed=1)
    method = orthocl.AdapterOGD(memory_per_task=4, layers=("query", "value"))
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), samples())
    model.query = model.query.merged()
    model.value = LoRA(model.value, seed=2)
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), samples(seed=2))
    assert method.report["leak"] < 0.05


def test_parameters_beside_the_adapters_are_protected_too():
    model = network()
    adapt(model, 1)
    model.out.requires_grad_(True)
    method = orthocl.AdapterOGD(memory_per_task=4)
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), samples())
    assert {"query", "value", "out.weight", "out.bias"} == set(method.stored.names)
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.1), samples(seed=2))
    assert method.report["leak"] < 0.05


def test_with_peft():
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install 'orthocl[integrations]'")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    x, y = samples()
    model = peft.get_peft_model(network(), config).double()
    method = orthocl.AdapterOGD(memory_per_task=6)
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.5), (x, y))
    assert set(method.stored.names) == {"query", "value"}
    model = peft.get_peft_model(model.merge_and_unload(), config).double()
    fresh = derived(model, method.stored, trained(model), adapted_layers(model, trained(model))).dense()
    index = method.remembered[1]
    expected = collect(model, x[index], y[index], parameters=trained(model)).dense()
    assert float((fresh - expected).norm() / expected.norm()) < 1e-6
    learn(model, method, torch.optim.SGD(trained(model).values(), lr=0.5), samples(seed=2))
    assert method.report["leak"] < 0.05


def test_directions_are_derived_again_every_so_many_steps(monkeypatch):
    """refresh_every=3: at the start of the second task, and after the third and sixth of its seven steps."""
    seen, derive = [], orthocl.AdapterOGD._derive

    def note(self, learner):
        seen.append(self._steps)
        derive(self, learner)

    monkeypatch.setattr(orthocl.AdapterOGD, "_derive", note)
    model = network()
    adapt(model, 0)
    optimizer = torch.optim.SGD(trained(model).values(), lr=1e-3)
    learner = orthocl.attach(orthocl.AdapterOGD(memory_per_task=2, refresh_every=3), model, optimizer)
    x, y = samples()
    for _ in range(2):
        del seen[:]
        with learner.learning(TensorDataset(x, y)):
            start = learner.method._steps
            for _ in range(7):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    assert [step - start for step in seen if step > start] == [3, 6]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_what_is_linear_and_what_is_not_in_any_units(scale):
    class Bent(LoRA):
        def forward(self, x):
            return super().forward(x) + 0.1 * scale * x.square().sum(-1, keepdim=True)

    base = nn.Linear(5, 8).double()
    base.weight.data *= scale
    base.bias.data *= scale
    weight, bias = whole_weight(LoRA(base), "layer")
    torch.testing.assert_close(weight, base.weight.data)
    torch.testing.assert_close(bias, base.bias.data)
    with pytest.raises(UnsupportedError, match="does not map its inputs linearly"):
        whole_weight(Bent(base), "layer")


@pytest.mark.parametrize("rate", [0.2, 1e-6])
def test_the_leak_is_a_share_of_the_change_of_whole_weights(rate):
    """Without projection some of the change of the merged weights lies in the span: by explicit tangents."""
    model = network()
    adapt(model, 0)
    learner = orthocl.attach(
        orthocl.AdapterOGD(memory_per_task=4), model, torch.optim.SGD(trained(model).values(), lr=rate)
    )
    x, y = samples()

    def steps():
        for _ in range(4):
            learner.optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            learner.optimizer.step()

    with learner.learning(TensorDataset(x, y)):
        steps()
    stored = learner.method.stored
    learner.method.inside = lambda learner, displacement: [torch.zeros_like(part) for part in displacement]
    with learner.learning(TensorDataset(x, 2 - y)):
        before = {name: weight.clone() for name, weight in learner.method._whole_weights(learner).items()}
        steps()
        after = learner.method._whole_weights(learner)
        moved = torch.cat([(after[name] - before[name]).flatten() for name in stored.names])
        # Each block's parameters side by side, in the order of the stored names.
        rows = torch.stack(
            [
                torch.cat([part.flatten() for part in stored.combine(unit)])
                for unit in torch.eye(stored.rows, dtype=torch.float64)
            ]
        )
    inside = torch.linalg.pinv(rows, rtol=1e-9) @ (rows @ moved)
    assert learner.method.report["leak"] == pytest.approx(float(inside.norm() / moved.norm()), rel=1e-6)
    assert learner.method.report["leak"] > 1e-3
