"""Inputs and output derivatives of layers, against hooks and against autograd's gradients."""

import pytest
import torch
from torch import nn

from orthocl.errors import UnsupportedError
from orthocl.methods import OGD
from orthocl.nets import MLP, LeNet
from orthocl.tangents import layer_io
from orthocl.training import attach


class Words(nn.Module):
    """A linear layer at every word of a sequence, then one on their mean."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(5, 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.norm(torch.tanh(self.each(x))).mean(1))


CASES = {
    "perceptron": (lambda: MLP((4,), (7, 6), 3), (4,)),
    "convolutions": (lambda: LeNet((1, 16, 16), 5, 3), (1, 16, 16)),
    "padding, stride, dilation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1, dilation=2, padding_mode="circular"),
            nn.ReLU(inplace=True),
            nn.Conv2d(3, 4, 2, bias=False, padding="same"),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (2, 9, 8),
    ),
    "sequences": (Words, (7, 5)),
}


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    make, shape = CASES[request.param]
    model = make()
    with torch.no_grad():
        model(torch.zeros(1, *shape))
    return model.double(), torch.randn(6, *shape, dtype=torch.float64)


def weights(model):
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    }


def test_derivatives_times_inputs_are_the_gradient(case):
    model, x = case
    found = layer_io(model, x)
    assert found.keys() == weights(model).keys()
    model.eval()
    model(x).sum().backward()
    for name, module in weights(model).items():
        torch.testing.assert_close(found[name].gradient(), module.weight.grad.flatten(1))


def test_for_any_quantity_and_for_every_single_sample(case):
    model, x = case
    y = torch.arange(len(x)) % 3

    def loss(outputs):
        return nn.functional.cross_entropy(outputs, y[: len(outputs)], reduction="none")

    found = layer_io(model, x, quantity=loss)
    model.eval()
    for sample in range(len(x)):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[sample : sample + 1]), y[sample : sample + 1]).backward()
        for name, module in weights(model).items():
            own = found[name].derivatives[sample].T @ found[name].inputs[sample]
            torch.testing.assert_close(own, module.weight.grad.flatten(1))


def test_inputs_are_what_hooks_see(case):
    model, x = case
    seen = {}
    modules = {name: m for name, m in weights(model).items() if isinstance(m, nn.Linear)}
    for name, module in modules.items():
        module.register_forward_hook(lambda _, inputs, __, name=name: seen.update({name: inputs[0].detach()}))
    found = layer_io(model, x)
    for name, module in modules.items():
        rows = found[name].inputs
        assert torch.equal(rows.reshape(-1, module.in_features), seen[name].reshape(-1, module.in_features))


def test_patches_of_a_convolution_give_its_outputs():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    x = torch.randn(4, 2, 7, 6)
    io = layer_io(nn.Sequential(layer), x)["0.weight"]
    outputs = io.inputs @ layer.weight.flatten(1).T + layer.bias
    torch.testing.assert_close(outputs.transpose(1, 2).reshape_as(layer(x)), layer(x))


def test_only_the_protected_layers_and_no_trace_on_the_model():
    model = MLP((4,), (7, 6), 3, dropout=0.5).train()
    x = torch.randn(5, 4)
    chosen = {name: p for name, p in model.named_parameters() if name.startswith("1.")}
    first, second = (layer_io(model, x, parameters=chosen) for _ in range(2))
    assert list(first) == ["1.weight"]
    assert torch.equal(first["1.weight"].derivatives, second["1.weight"].derivatives)  # dropout is off
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    model[1].weight.requires_grad_(False)
    frozen = layer_io(model, x, parameters=chosen)["1.weight"]
    assert torch.equal(frozen.derivatives, first["1.weight"].derivatives)
    assert not model[1].weight.requires_grad


def test_what_cannot_be_read_off_is_left_out_or_refused():
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 2, 3))
    assert list(layer_io(grouped, torch.randn(2, 4, 8, 8))) == ["1.weight"]
    shared = nn.Linear(4, 4)
    with pytest.raises(UnsupportedError, match="called 2 times"):
        layer_io(nn.Sequential(shared, nn.ReLU(), shared), torch.randn(2, 4))
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    tied[1].weight = tied[0].weight
    assert list(layer_io(tied, torch.randn(2, 4))) == ["2.weight"]


def test_inside_a_task_with_an_adapter_on_the_layers():
    torch.manual_seed(0)
    model = MLP((256,), (64,), 3).double()
    learner = attach(
        OGD(memory_per_task=5, engine="adapter"), model, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    data = torch.utils.data.TensorDataset(torch.randn(9, 256).double(), torch.arange(9) % 3)
    for number in range(2):
        with learner.learning(data):
            for _ in range(3):
                learner.optimizer.zero_grad()
                learner.loss(model(data.tensors[0]), data.tensors[1]).backward()
                learner.optimizer.step()
            found = layer_io(model, data.tensors[0], parameters=learner.parameters)
            if number:
                assert learner.method.adapter is not None
                assert learner.method.adapter.layers
            copy = MLP((256,), (64,), 3).double()
            copy.load_state_dict(model.state_dict())
            copy(data.tensors[0]).sum().backward()
    for name, parameter in copy.named_parameters():
        if name in found:
            torch.testing.assert_close(found[name].gradient(), parameter.grad)
