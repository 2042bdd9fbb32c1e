from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from orthocl.errors import DataError, SettingsError, UnsupportedError
from orthocl.tangents import Tangents, collect
from orthocl.tangents.blocks import Dense, inner_products
from orthocl.tangents.collect import _Truth

EXPECTED_KINDS = {
    "mlp": {"factored"},
    "lenet": {"dense", "factored"},
    "heads": {"factored"},
    "transformer": {"dense", "factored"},
    "convolutions": {"dense", "patches", "factored"},
    "sequence": {"dense", "patches", "factored"},
}


@pytest.mark.parametrize("variant", ["gtl", "ave", "all"])
def test_rows_are_the_gradients_of_the_remembered_outputs(problem, variant):
    tangents = collect(
        problem.model, problem.x, problem.y, parameters=problem.parameters, variant=variant, chunk=4
    )
    truth = problem.jacobian(variant)
    assert tangents.rows == len(truth) == len(problem.x) * (3 if variant == "all" else 1)
    torch.testing.assert_close(tangents.dense(), truth, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_products_without_the_matrix(problem, variant):
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant=variant)
    truth = problem.jacobian(variant)
    gradient = [torch.randn_like(p) for p in problem.parameters.values()]
    weights = torch.randn(len(truth), dtype=torch.float64)
    vector = torch.cat([g.reshape(-1) for g in gradient])
    combined = torch.cat([g.reshape(-1) for g in tangents.combine(weights)])
    torch.testing.assert_close(tangents.gram(), truth @ truth.t(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(tangents.coefficients(gradient), truth @ vector, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(combined, truth.t() @ weights, rtol=1e-10, atol=1e-12)
    some = torch.tensor([4, 1, 1])
    part = tangents.select(some)
    torch.testing.assert_close(part.dense(), truth[some], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(tangents.gram(part), truth @ truth[some].t(), rtol=1e-10, atol=1e-12)
    both = Tangents.concatenate([part, tangents])
    torch.testing.assert_close(both.dense(), torch.cat([truth[some], truth]), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(part.gram(both), truth[some] @ both.dense().t(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", list(EXPECTED_KINDS))
def test_the_cost_model_chooses_each_representation(make_problem, name):
    problem = make_problem(name)
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    assert {block.kind for block in tangents.blocks} == EXPECTED_KINDS[name]


def test_state_survives_saving(problem):
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant="all")
    again = Tangents.from_state_dict(tangents.state_dict())
    assert torch.equal(again.dense(), tangents.dense())
    assert again.nbytes == tangents.nbytes


def test_model_is_left_as_it_was(make_problem):
    problem = make_problem("lenet")
    problem.model.train()
    problem.model[1].eval()
    problem.model[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in problem.model.state_dict().items()}
    collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    assert problem.model.training
    assert not problem.model[1].training
    assert not problem.model[0].weight.requires_grad
    assert all(p.grad is None for p in problem.model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in problem.model.state_dict().items())
    assert not any(module._forward_hooks for module in problem.model.modules())


def test_all_logits_share_their_inputs(make_problem):
    problem = make_problem("mlp")
    one = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    every = collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant="all")
    assert every.blocks[0].inputs.shape == one.blocks[0].inputs.shape
    assert every.blocks[0].deltas.shape[0] == 3 * one.blocks[0].deltas.shape[0]


def test_symmetric_products_in_blocks():
    torch.manual_seed(0)
    left = torch.randn(600, 7)
    torch.testing.assert_close(inner_products(left, left), left.double() @ left.double().t())
    torch.testing.assert_close(inner_products(left, left[:5]), left.double() @ left[:5].double().t())


def test_default_chunks_shrink_with_the_number_of_outputs():
    torch.manual_seed(0)
    model = nn.Linear(3, 100).double()
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.zeros(5, dtype=torch.long)
    tangents = collect(model, x, y, parameters=dict(model.named_parameters()), variant="all")
    assert seen == [2, 2, 2, 1]
    assert tangents.rows == 500


def test_bfloat16_factors_are_the_tangents(problem):
    exact = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    stored = collect(
        problem.model, problem.x, problem.y, parameters=problem.parameters, dtype=torch.bfloat16, chunk=3
    )
    assert stored.nbytes <= exact.nbytes // 4 + 8 * 64
    rows = stored.dense().double()
    torch.testing.assert_close(stored.gram(), rows @ rows.t(), rtol=1e-6, atol=1e-8)
    assert 1e-5 < (rows - exact.dense()).norm() / exact.dense().norm() < 2e-2


class Centred(nn.Module):
    """Adds a shift and takes it away again: its gradient is zero up to rounding."""

    def __init__(self, scale: float):
        super().__init__()
        self.inner, self.shift, self.last = nn.Linear(6, 6), nn.Linear(6, 1), nn.Linear(6, 3)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x) + self.shift(x)
        return self.scale * self.last(inner - inner.mean(1, keepdim=True))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounding_is_told_from_disagreement_in_any_units(scale):
    torch.manual_seed(0)
    model, x = Centred(scale).double(), torch.randn(9, 6, dtype=torch.float64)
    y = torch.arange(9) % 3
    tangents = collect(model, x, y, parameters=dict(model.named_parameters()))
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(model(x)[row, y[row]], model.parameters())])
        for row in range(9)
    ]
    torch.testing.assert_close(tangents.dense(), torch.stack(rows), rtol=1e-10, atol=1e-12 * scale)
    assert {block.kind for block in tangents.blocks} == {"factored"}


def test_sequence_first_layout_is_not_taken_for_samples():
    # Attention with the sequence first: the layers' leading dimension is not the sample.
    class SequenceFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 5)
            self.last = nn.Linear(5, 2)

        def forward(self, x):
            return self.last(torch.tanh(self.inner(x.transpose(0, 1))).sum(0))

    torch.manual_seed(0)
    model, y = SequenceFirst().double(), torch.tensor([0, 1, 1])
    x = torch.randn(3, 3, 4, dtype=torch.float64)  # as many positions as samples: shapes say nothing
    parameters = dict(model.named_parameters())
    truth = []
    for i in range(3):
        found = torch.autograd.grad(model(x[i : i + 1])[0, y[i]], list(parameters.values()))
        truth.append(torch.cat([g.reshape(-1) for g in found]))
    torch.testing.assert_close(collect(model, x, y, parameters=parameters).dense(), torch.stack(truth))


def test_models_that_mix_samples_are_refused():
    model = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 2)
    ).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.zeros(6, dtype=torch.long)
    with pytest.raises(UnsupportedError, match=r"mixes samples|one sample at a time"):
        collect(model, x, y, parameters=dict(model.named_parameters()))


def test_models_that_torch_func_cannot_transform_still_work():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4, dtype=torch.float64))

        def forward(self, x):
            if float(x.abs().sum()) < 0:  # data-dependent control flow
                return x
            return x * self.scale

    model, x = Branching(), torch.randn(5, 4, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 0])
    rows = collect(model, x, y, parameters=dict(model.named_parameters())).dense()
    torch.testing.assert_close(
        rows, torch.zeros(5, 4, dtype=torch.float64).scatter(1, y[:, None], x.gather(1, y[:, None]))
    )


def test_regression_and_scalar_outputs():
    model = nn.Linear(3, 1).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    rows = collect(model, x, torch.randn(4), parameters=dict(model.named_parameters()))
    torch.testing.assert_close(rows.dense(), torch.cat([x, torch.ones(4, 1).double()], 1))
    wide = nn.Linear(3, 2).double()
    with pytest.raises(SettingsError, match="'all' or 'ave'"):
        collect(wide, x, torch.randn(4, 2), parameters=dict(wide.named_parameters()))
    with pytest.raises(SettingsError, match="unknown variant"):
        collect(wide, x, torch.randn(4, 2), parameters=dict(wide.named_parameters()), variant="gtk")
    with pytest.raises(DataError, match="one target for each input"):
        collect(wide, x, torch.randn(3, 2), parameters=dict(wide.named_parameters()), variant="all")


def test_a_layer_outside_the_forward_pass_has_zero_rows_in_no_memory(make_problem):
    problem = make_problem("heads")
    parameters = dict(problem.model.named_parameters())
    tangents = collect(problem.model, problem.x, problem.y, parameters=parameters)
    place = {block.names: block for block in tangents.blocks}["heads.0.weight", "heads.0.bias"]
    assert place.dense().abs().max() == 0
    assert tangents.dense().shape == (7, sum(p.numel() for p in parameters.values()))


def test_labels_end_before_the_number_of_outputs(make_problem):
    problem = make_problem("mlp")
    for label, fine in ((2, True), (3, False), (-1, False)):
        labels = torch.full_like(problem.y, label)
        if fine:
            collect(problem.model, problem.x, labels, parameters=problem.parameters)
        else:
            with pytest.raises(DataError, match=f"label {label} has no logit"):
                collect(problem.model, problem.x, labels, parameters=problem.parameters)


def test_silent_layers_that_share_a_weight_are_one(make_problem):
    problem = make_problem("mlp")
    model = nn.Module()
    model.used, model.one, model.two = problem.model, nn.Linear(6, 5).double(), nn.Linear(6, 5).double()
    model.two.weight = model.one.weight
    model.forward = problem.model.forward  # type: ignore[method-assign]
    parameters = dict(model.named_parameters())
    tangents = collect(model, problem.x, problem.y, parameters=parameters)
    assert sorted(name for block in tangents.blocks for name in block.names) == sorted(parameters)
    expected = torch.cat([problem.jacobian(), torch.zeros(7, 30 + 5 + 5, dtype=torch.float64)], 1)
    torch.testing.assert_close(tangents.dense(), expected)


@st.composite
def networks(draw):
    """A stack of layers with random shapes, whether the bias or the weight is protected, and its input."""
    sample_shape = draw(st.sampled_from([(5,), (3, 5), (2, 3, 5)]))
    width, layers = sample_shape[-1], []
    for _ in range(draw(st.integers(1, 3))):
        new = draw(st.integers(1, 9))
        layers += [nn.Linear(width, new, bias=draw(st.booleans())), nn.Tanh()]
        if new > 2 and draw(st.booleans()):  # of one or two numbers it leaves only amplified rounding
            layers.append(nn.LayerNorm(new))
        width = new
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2)).double()
    return model, sample_shape, draw(st.sampled_from(["both", "weight", "bias"])), draw(st.integers(1, 5))


@given(networks())
@settings(max_examples=25, deadline=None)
def test_any_stack_of_linear_layers(network):
    model, shape, protected, samples = network
    x = torch.randn(samples, *shape, dtype=torch.float64)
    model(x)
    parameters = {
        name: p for name, p in model.named_parameters() if protected in ("both", name.rpartition(".")[2])
    }
    if not parameters:
        return
    y = torch.randint(0, 2, (samples,))
    tangents = collect(model, x, y, parameters=parameters)
    rows = []
    for i in range(samples):
        found = torch.autograd.grad(model(x[i : i + 1])[0, y[i]], list(parameters.values()))
        rows.append(torch.cat([g.reshape(-1) for g in found]))
    truth = torch.stack(rows)
    torch.testing.assert_close(tangents.dense(), truth, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(tangents.gram(), truth @ truth.t(), rtol=1e-9, atol=1e-11)


@given(
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_any_convolution(channels, groups, kernel, stride, padding, dilation, bias):
    model = nn.Sequential(
        nn.Conv2d(
            channels[0] * groups, channels[1] * groups, kernel, stride, padding, dilation, groups, bias
        ),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.LazyLinear(2),
    ).double()
    x, y = torch.randn(3, channels[0] * groups, 6, 7, dtype=torch.float64), torch.tensor([0, 1, 1])
    model(x)
    parameters = dict(model.named_parameters())
    rows = []
    for i in range(3):
        found = torch.autograd.grad(model(x[i : i + 1])[0, y[i]], list(parameters.values()))
        rows.append(torch.cat([g.reshape(-1) for g in found]))
    tangents = collect(model, x, y, parameters=parameters)
    torch.testing.assert_close(tangents.dense(), torch.stack(rows), rtol=1e-9, atol=1e-11)
    assert tangents.blocks[0].names == (("0.weight", "0.bias") if bias else ("0.weight",))  # not the fallback


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(
    ("dtype", "rounding", "wrong"),
    [(torch.bfloat16, 1e-2, 1e-1), (torch.float32, 1e-3, 1e-2), (torch.float64, 1e-8, 1e-6)],
)
def test_rows_agree_with_autograd_up_to_the_rounding_of_their_type(scale, dtype, rounding, wrong):
    """Two rows of a layer with weights 1 and 0.5, whose combination is 4 in each place."""
    truth = torch.full((2, 3), 4.0 * scale, dtype=dtype)
    weights = torch.tensor([[1.0], [0.5]], dtype=dtype)
    rows = torch.full((2, 6), 8 / 3 * scale, dtype=torch.float64)
    found = _Truth(weights, {"w": truth}, dtype, rounding=0.0)
    for share, believed in (
        (0.0, True),
        (rounding, True),
        (-rounding, True),
        (wrong, False),
        (-wrong, False),
    ):
        block = Dense(("w",), ((2, 3),), (rows * (1 + share)).to(dtype))
        assert found.agrees(block) is believed


class _Base16(nn.Module):
    """Adapters in float32 on frozen layers in bfloat16, with outputs that are converted back to float32."""

    def __init__(self, mixing):
        super().__init__()
        layers = [nn.Linear(16, 16) for _ in range(6)]
        self.bases = nn.ModuleList(layers[:3]).bfloat16().requires_grad_(False)
        self.adapters, self.mixing = nn.ModuleList(layers[3:]), mixing

    def forward(self, x):
        hidden = x.bfloat16()
        for base, adapter in zip(self.bases, self.adapters, strict=True):
            hidden = (base(hidden) + adapter(hidden.float()).bfloat16()).tanh()
        return (hidden - hidden.mean(0) if self.mixing else hidden).float()


def test_exactness_is_judged_by_the_activations():
    """A base in bfloat16 rounds the gradients of float32 adapters; a model that mixes samples is still refused."""
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(20, 16), torch.randint(3, (20,))
        for mixing in (False, True):
            model = _Base16(mixing)
            parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
            if mixing:
                with pytest.raises(UnsupportedError, match="mixes samples"):
                    collect(model, x, y, parameters=parameters)
            else:
                assert collect(model, x, y, parameters=parameters).rows == 20
