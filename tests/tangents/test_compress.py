"""Which directions are kept: in any units, whatever is zero, and no more than the bound needs."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from orthocl.methods import OGD
from orthocl.tangents.blocks import Compressed, Patches
from orthocl.tangents.compress import Compression, _rows, compress
from orthocl.training import attach


def sums(rows: int, inputs: int = 8, outputs: int = 6, bias: bool = True, decay: float = 0.6) -> Patches:
    """Tangents of a linear layer with three positions, whose directions matter less and less."""
    generator = torch.Generator().manual_seed(rows)
    sides = []
    for width in (inputs, outputs):
        basis = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
        values = torch.randn(rows, 3, width, generator=generator, dtype=torch.float64)
        sides.append(values * decay ** torch.arange(width, dtype=torch.float64) @ basis)
    names, shapes = ("w", "b"), ((outputs, inputs), (outputs,))
    count = 2 if bias else 1
    return Patches(names[:count], shapes[:count], *sides)


def scaled(block: Patches, scale: float | Tensor) -> Patches:
    return Patches(block.names, block.shapes, block.inputs, block.deltas * scale)


def kept(block: Patches, energy: float = 0.9, **rules) -> tuple[Compressed, Tensor]:
    """The compressed block and the errors, which are those of its rows."""
    (found,), errors = compress([block], Compression(energy=energy, rows=10_000, **rules), {})
    assert isinstance(found, Compressed)
    truth, rows = block.dense(), found.dense()
    measured = (rows - truth).norm(dim=1) / truth.norm(dim=1).clamp(min=1e-300)
    torch.testing.assert_close(errors, measured, rtol=1e-6, atol=1e-7)
    return found, errors


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_what_is_kept_does_not_depend_on_units(scale):
    block = sums(20)
    (plain, errors), (found, other) = kept(block), kept(scaled(block, scale))
    assert found.ranks == plain.ranks
    torch.testing.assert_close(other, errors)
    torch.testing.assert_close(found.dense() / scale, plain.dense())
    assert 0 < float(errors.square().mean()) <= 0.1


def test_zero_tangents_do_not_make_room_for_the_errors_of_others():
    alive = torch.zeros(40, 1, 1, dtype=torch.float64)
    alive[::4] = 1.0
    _, errors = kept(scaled(sums(40), alive))
    assert float(errors.square().sum()) <= 0.1 * 10
    assert float(errors[alive[:, 0, 0] == 0].abs().max()) == 0


@pytest.mark.parametrize("coarse", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_directions_are_those_of_the_tangents_and_their_transposes(bias, coarse):
    """Gram matrices of the stacked rows, each divided by its norm; the bias counts among the inputs of one side."""
    block = sums(5, bias=bias)
    dense = block.dense()
    scale = dense.square().sum(1).reciprocal()
    empty = tuple(torch.zeros(1, width, 0, dtype=torch.float64) for width in (8, 6))
    pieces = list(_rows(block, scale, empty, coarse=coarse))
    inputs, outputs = (torch.cat([piece[side] for piece in pieces], 1)[0] for side in (0, 1))
    whole = dense * scale.sqrt()[:, None]
    weight = whole[:, :48].view(5, 6, 8)
    torch.testing.assert_close(inputs.T @ inputs, torch.einsum("noi,noj->ij", weight, weight))
    both = torch.cat([weight, whole[:, 48:, None]], 2) if bias else weight
    torch.testing.assert_close(outputs.T @ outputs, torch.einsum("noi,npi->op", both, both))


def test_tangents_of_a_bias_alone_are_kept():
    block = sums(20)
    silent = Patches(block.names, block.shapes, torch.zeros_like(block.inputs), block.deltas)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, errors = kept(silent)
    assert found.ranks[0] == 0
    assert float(errors.square().mean()) <= 0.1


def test_layers_that_would_become_larger_stay_exact():
    block = sums(20, decay=1.0)
    (found,), errors = compress([block], Compression(energy=0.99999, rows=20), {})
    assert not isinstance(found, Compressed)
    assert torch.equal(errors, torch.zeros(20, dtype=torch.float64))
    torch.testing.assert_close(found.dense(), block.dense(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.99])
def test_bases_are_no_larger_than_the_bound_alone_would_have_them(energy):
    """The bound: all that is cut from both sides together is at most what may be left out."""
    block = sums(20, inputs=16, outputs=12, bias=False, decay=0.8)
    dense = block.dense()
    weight = (dense / dense.norm(dim=1, keepdim=True)).view(20, 12, 16)
    values = [
        torch.linalg.eigvalsh(torch.einsum(sides, weight, weight)) for sides in ("noi,noj->ij", "noi,npi->op")
    ]
    ordered = torch.cat(values).sort()[0]
    cut = int((ordered.cumsum(0) <= (1 - energy) * 20).sum())
    bound = [int((side > ordered[cut - 1]).sum()) for side in values]
    found, errors = kept(block, energy)
    assert all(size <= most for size, most in zip(found.ranks, bound, strict=True))
    assert float(errors.square().mean()) <= 1 - energy


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("worst", [0.0, 0.85, 0.899])
def test_every_tangent_keeps_its_share(worst, bias):
    """One tangent is unlike the others, so that more directions are needed than for the mean."""
    block = sums(30, inputs=16, outputs=12, bias=bias)
    block.inputs[7] = block.inputs[7].flip(1)
    block.deltas[7] = block.deltas[7].flip(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, errors = kept(block, 0.9, worst=worst)
    assert float(errors.square().mean()) <= 0.1
    assert float(errors.square().max()) <= 1 - worst


def test_many_small_tasks_never_make_a_linear_layer_larger_than_exact():
    """Each task brings directions of its own: bases that fit the first task would grow until cores outgrow factors."""
    torch.manual_seed(0)
    sizes = {}
    for energy in (0.9, 1.0):
        model = nn.Sequential(nn.Linear(200, 60), nn.Tanh(), nn.Linear(60, 3))
        learner = attach(
            OGD(memory_per_task=10, energy=energy), model, torch.optim.SGD(model.parameters(), 0.01)
        )
        for _ in range(12):
            inputs = torch.randn(10, 3) @ torch.randn(3, 200)
            with learner.learning(TensorDataset(inputs, torch.arange(10) % 3)):
                pass
        sizes[energy] = learner.method.subspace.tangents.nbytes
    assert sizes[0.9] <= sizes[1.0]
