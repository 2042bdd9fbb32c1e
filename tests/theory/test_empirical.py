from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from orthocl.errors import DataError, SettingsError
from orthocl.nets import MLP, LeNet, MultiHead
from orthocl.theory import EmpiricalNTK, Points


def jacobian(model: nn.Module, x):
    """(n, outputs, p) by torch.func, in float64."""
    model = model.double().eval()
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def output(weights, one):
        return functional_call(model, weights, (one[None],))[0]

    rows = vmap(jacrev(output), (None, 0))(weights, x.double())
    return torch.cat([rows[name].flatten(2) for name in weights], 2)


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MLP((6,), hidden=(8, 7), outputs=3)


@pytest.fixture
def x():
    return torch.randn(9, 6, generator=torch.Generator().manual_seed(0))


def test_every_choice_of_outputs(model, x):
    j = jacobian(model, x)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2, 0])
    every = EmpiricalNTK(model, "all", chunk=4)
    flat = j.flatten(0, 1)
    assert torch.allclose(every.gram(x), flat @ flat.T, atol=1e-12)
    assert torch.allclose(every.gram(x[:2], x), flat[:6] @ flat.T, atol=1e-12)
    truth = j[torch.arange(9), labels]
    labelled = Points.labelled(x, labels)
    assert torch.allclose(EmpiricalNTK(model, "gtl").gram(labelled), truth @ truth.T, atol=1e-12)
    assert torch.allclose(EmpiricalNTK(model, 2).gram(x), j[:, 2] @ j[:, 2].T, atol=1e-12)
    assert torch.allclose(every.gram(labelled, x), truth @ flat.T, atol=1e-12)
    assert torch.allclose(every.diagonal(x), flat.square().sum(1), atol=1e-12)


def test_chosen_pairs(model, x):
    flat = jacobian(model, x).flatten(0, 1)
    kernel = EmpiricalNTK(model, "all")
    rows = torch.tensor([26, 3, 4, 4, 0])
    chosen = kernel.points(x).select(rows)
    assert torch.allclose(kernel.gram(chosen), flat[rows] @ flat[rows].T, atol=1e-12)
    assert torch.allclose(kernel.initial(chosen), model.double()(x.double()).flatten()[rows], atol=1e-12)


def test_convolutions_batchnorm_and_heads():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = MultiHead(LeNet((1, 8, 8), hidden=5, channels=(2, 3)), {"a": 2, "b": 3})
    net.select("b")
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    kernel = EmpiricalNTK(net, "all")
    assert kernel.outputs == 3
    flat = jacobian(net, images).flatten(0, 1)
    assert torch.allclose(kernel.gram(images), flat @ flat.T, atol=1e-10)


def test_shared_weights_and_bare_parameters():
    """Layers without factors: differentiated sample by sample."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.3]))
            self.twice = nn.Linear(4, 4)

        def forward(self, x):
            return self.twice(torch.tanh(self.twice(x * self.scale)))[:, :2]

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Odd()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    flat = jacobian(net, x).flatten(0, 1)
    assert torch.allclose(EmpiricalNTK(net, "all").gram(x), flat @ flat.T, atol=1e-12)


def test_some_parameters_only(model, x):
    kernel = EmpiricalNTK(model, 0, parameters=["1.weight", "1.bias"])
    j = jacobian(model, x)[:, 0, : 6 * 8 + 8]
    assert torch.allclose(kernel.gram(x), j @ j.T, atol=1e-12)
    with pytest.raises(SettingsError, match="did you mean"):
        EmpiricalNTK(model, 0, parameters=["1.weights"])


def test_the_kernel_is_a_snapshot(model, x):
    kernel = EmpiricalNTK(model, 0)
    before = kernel.gram(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert torch.equal(kernel.gram(x), before)
    assert model[1].weight.dtype == torch.float32  # the caller's model is not touched


def test_memory_is_priced_and_refused(model, x):
    kernel = EmpiricalNTK(model, "all", memory_limit=2000)
    assert kernel.price(x) > 8 * 27 * 27
    with pytest.raises(SettingsError, match="take fewer samples"):
        kernel.gram(x)


def test_mistakes(model, x):
    with pytest.raises(DataError, match=r"Points\.labelled"):
        EmpiricalNTK(model, "gtl").gram(x)
    with pytest.raises(SettingsError, match="needs a network of one output"):
        EmpiricalNTK(model, "scalar").gram(x)
    with pytest.raises(DataError, match="logit numbers"):
        EmpiricalNTK(model, "gtl").gram(Points.labelled(x, torch.full((9,), 3)))
    with pytest.raises(DataError, match="one logit index per input"):
        Points.labelled(x, torch.zeros(3))
    with pytest.raises(SettingsError, match="choice of outputs"):
        EmpiricalNTK(model, "every")


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("outputs", [0, "all"])
def test_kernels_computed_in_pieces_are_products_of_explicit_tangents(chunk, outputs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP((4,), hidden=(6,), outputs=2).double()
    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (5, 7))
    kernel = EmpiricalNTK(model, outputs, chunk=chunk)
    left, right = kernel.features(x), kernel.features(z)
    torch.testing.assert_close(kernel.gram(x, z), left @ right.T)
    torch.testing.assert_close(kernel.gram(z, x), right @ left.T)
    torch.testing.assert_close(kernel.gram(x), left @ left.T)
    torch.testing.assert_close(kernel.diagonal(z), right.square().sum(1))


def test_kernels_of_no_points_have_their_shape():
    kernel, x = EmpiricalNTK(torch.nn.Linear(3, 1)), torch.ones(4, 3)
    for left, right, shape in ((0, None, (0, 0)), (0, 4, (0, 4)), (4, 0, (4, 0)), (2, None, (2, 2))):
        assert kernel.gram(x[:left], None if right is None else x[:right]).shape == shape
    assert kernel.diagonal(x[:0]).shape == (0,)
    assert kernel.diagonal(x).tolist() == [4.0] * 4


def test_the_number_of_outputs_is_that_of_the_last_layer():
    narrow = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    nested = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 3))
    )
    for model in (torch.nn.Linear(4, 3), narrow, nested):
        kernel = EmpiricalNTK(model, "all")
        assert kernel.outputs == 3
        assert kernel.gram(torch.ones(2, 4)).shape == (6, 6)
