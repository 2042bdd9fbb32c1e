"""Compressed tangents: two bases and a core per tangent, exact for what is stored."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.errors import SettingsError
from orthocl.tangents import Subspace, collect
from orthocl.tangents.blocks import Compressed, extended
from orthocl.tangents.compress import Compression
from orthocl.tangents.range_finder import spectrum
from orthocl.tangents.tangents import Tangents


def network(groups: int = 1) -> nn.Module:
    """Convolutions with several positions, with and without bias, a norm layer and a linear head."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(12, 16, 3, padding=1, groups=groups, bias=False),
        nn.GroupNorm(2, 16),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 9, 4),
    ).double()


def samples(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Inputs of low rank and a little noise, as images are.
    shapes = torch.randn(4, 3 * 36, generator=generator, dtype=torch.float64)
    mixed = torch.randn(count, 4, generator=generator, dtype=torch.float64) @ shapes
    noise = 0.05 * torch.randn(count, 3 * 36, generator=generator, dtype=torch.float64)
    return (mixed + noise).view(count, 3, 6, 6), torch.randint(4, (count,), generator=generator)


@pytest.fixture(params=[1, 2], ids=["plain", "grouped"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return network(request.param)


def compressed(model: nn.Module, x, y, energy=0.99, earlier=None, **rules) -> Tangents:
    parameters = dict(model.named_parameters())
    settings = Compression(energy=energy, rows=10_000, **rules)
    return collect(model, x, y, parameters=parameters, compression=settings, earlier=earlier)


def exact(model: nn.Module, x, y) -> torch.Tensor:
    return collect(model, x, y, parameters=dict(model.named_parameters())).dense()


@pytest.mark.parametrize("energy", [0.9, 0.99, 0.9999])
def test_reported_errors_are_the_distances_from_the_true_tangents(model, energy):
    x, y = samples(20)
    found, truth = compressed(model, x, y, energy), exact(model, x, y)
    assert any(isinstance(block, Compressed) for block in found.blocks)
    measured = (found.dense() - truth).norm(dim=1) / truth.norm(dim=1)
    torch.testing.assert_close(found.errors, measured, rtol=1e-5, atol=1e-7)
    assert float(measured.square().mean()) <= 1 - energy + 1e-12


def test_less_energy_is_less_memory(model):
    x, y = samples(20)
    sizes = [compressed(model, x, y, energy).nbytes for energy in (0.9, 0.99, 0.9999)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]


def test_the_worst_tangent_is_bounded_too(model):
    x, y = samples(20)
    loose = compressed(model, x, y, 0.9)
    tight = compressed(model, x, y, 0.9, worst=0.98)
    assert float(loose.errors.square().max()) > 0.02
    assert float(tight.errors.square().max()) <= 0.02


def test_products_are_those_of_the_stored_rows(model):
    x, y = samples(15)
    found = compressed(model, x, y)
    dense = found.dense()
    torch.testing.assert_close(found.gram(), dense @ dense.t(), rtol=1e-9, atol=1e-10)
    gradient = [torch.randn_like(p) for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in gradient])
    torch.testing.assert_close(found.coefficients(gradient), dense @ flat, rtol=1e-9, atol=1e-10)
    weights = torch.randn(15, dtype=torch.float64)
    combined = torch.cat([part.flatten() for part in found.combine(weights)])
    torch.testing.assert_close(combined, dense.t() @ weights, rtol=1e-9, atol=1e-10)
    for block in found.blocks:
        own = [torch.zeros(shape, dtype=torch.float64) for shape in block.shapes]
        block.add_combination(weights, own, 2.0)
        for one, other in zip(own, block.combine(weights), strict=True):
            torch.testing.assert_close(one, 2 * other)
    torch.testing.assert_close(torch.stack([b.squares() for b in found.blocks]).sum(0), dense.square().sum(1))


def test_inner_products_with_exact_tangents(model):
    x, y = samples(9)
    stored = compressed(model, x, y)
    now = collect(model, x + 0.1, y, parameters=dict(model.named_parameters()))
    expected = stored.dense() @ now.dense().t()
    torch.testing.assert_close(stored.gram(now), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(now.gram(stored), expected.t(), rtol=1e-9, atol=1e-10)


def test_growing_keeps_old_tangents_exactly(model):
    first = compressed(model, *samples(10))
    second = compressed(model, *samples(10, seed=5), earlier=first)
    both = Tangents.concatenate([first, second])
    torch.testing.assert_close(both.dense()[:10], first.dense(), rtol=0, atol=1e-14)
    torch.testing.assert_close(both.dense()[10:], second.dense(), rtol=0, atol=1e-14)
    torch.testing.assert_close(both.gram(), both.dense() @ both.dense().t(), rtol=1e-9, atol=1e-10)
    assert both.errors.shape == (20,)
    for block in both.blocks:
        if isinstance(block, Compressed):
            for basis in (block.input_basis, block.output_basis):
                eye = torch.eye(basis.shape[2], dtype=torch.float64).expand(len(basis), -1, -1)
                torch.testing.assert_close(basis.mT @ basis, eye, rtol=0, atol=1e-12)


def test_tangents_of_unrelated_bases_can_be_joined(model):
    first, second = compressed(model, *samples(10)), compressed(model, *samples(10, seed=5))
    both = Tangents.concatenate([first, second])
    torch.testing.assert_close(both.dense(), torch.cat([first.dense(), second.dense()]), rtol=0, atol=1e-9)
    torch.testing.assert_close(first.gram(second), first.dense() @ second.dense().t(), rtol=1e-8, atol=1e-9)


def test_chunks_are_as_good_as_one(model):
    x, y = samples(24)
    parameters = dict(model.named_parameters())
    rules = Compression(energy=0.99, rows=10_000)
    found = collect(model, x, y, parameters=parameters, compression=rules, chunk=7)
    truth = exact(model, x, y)
    measured = (found.dense() - truth).norm(dim=1) / truth.norm(dim=1)
    torch.testing.assert_close(found.errors, measured, rtol=1e-5, atol=1e-7)
    assert float(measured.square().mean()) <= 0.01


def test_subspace_of_compressed_tangents(model, reject_dense, tmp_path):
    parameters = dict(model.named_parameters())
    subspace = Subspace(parameters)
    stored = []
    for owner in (1, 2):
        tangents = compressed(model, *samples(8, seed=owner), earlier=subspace.tangents)
        subspace.append(tangents, owner)
        stored.append(tangents.dense())
    gradient = [torch.randn_like(p) for p in parameters.values()]
    flat = torch.cat([g.flatten() for g in gradient])
    found = torch.cat([g.flatten() for g in subspace.outside(gradient)])
    torch.testing.assert_close(found, reject_dense(torch.cat(stored), flat), rtol=0, atol=1e-9)
    kept, places = subspace.find(2, torch.arange(3))
    torch.testing.assert_close(kept.dense(), stored[1][places], rtol=0, atol=1e-12)
    torch.save(subspace.state_dict(), tmp_path / "state")
    again = Subspace(parameters)
    again.load_state_dict(torch.load(tmp_path / "state"))
    for one, other in zip(again.outside(gradient), subspace.outside(gradient), strict=True):
        assert torch.equal(one, other)
    subspace.remove(1)
    found = torch.cat([g.flatten() for g in subspace.outside(gradient)])
    torch.testing.assert_close(found, reject_dense(stored[1], flat), rtol=0, atol=1e-9)


def test_principal_components_of_compressed_tangents(model, reject_dense):
    parameters = dict(model.named_parameters())
    subspace, tangents = Subspace(parameters), compressed(model, *samples(12))
    subspace.append(tangents, 1, components=4)
    rows = tangents.dense()
    leading = torch.linalg.svd(rows, full_matrices=False)[2][:4]
    gradient = [torch.randn_like(p) for p in parameters.values()]
    flat = torch.cat([g.flatten() for g in gradient])
    found = torch.cat([g.flatten() for g in subspace.outside(gradient)])
    torch.testing.assert_close(found, reject_dense(leading, flat), rtol=0, atol=1e-9)


def test_half_precision_rounds_cores_and_not_bases(model):
    tangents = compressed(
        model.float(), *(part.float() if part.is_floating_point() else part for part in samples(8))
    )
    rounded = tangents.to(torch.bfloat16)
    block = next(b for b in rounded.blocks if isinstance(b, Compressed))
    assert (block.cores.dtype, block.input_basis.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(rounded.gram(), rounded.to(torch.float64).gram(), rtol=1e-6, atol=1e-6)


def test_random_projection_finds_the_leading_directions():
    torch.manual_seed(0)
    decay = torch.logspace(0, -12, 600, dtype=torch.float64)
    left, right = (torch.linalg.qr(torch.randn(n, 600, dtype=torch.float64))[0] for n in (900, 700))
    rows = (left * decay) @ right.t()
    found = spectrum(rows[None], 1e-4, exact=512)
    assert found.vectors.shape[2] < 600  # not all directions were looked at
    assert found.unresolved <= 1e-4
    torch.testing.assert_close(found.values[0, :20], decay[:20].square(), rtol=1e-3, atol=0)
    exact = spectrum(rows[None], 0.0)
    torch.testing.assert_close(exact.values[0, :100], decay[:100].square(), rtol=1e-5, atol=1e-12)


def test_a_basis_is_extended_by_what_lies_outside():
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(1, 8, 3, dtype=torch.float64))[0]
    new = torch.cat([basis[..., :2] + 1e-14, torch.randn(1, 8, 2, dtype=torch.float64)], 2)
    new = torch.cat([new, new[..., -1:]], 2)  # twice the same
    found = extended(basis, new)
    assert found.shape[2] == 5
    assert torch.equal(found[..., :3], basis)
    torch.testing.assert_close(found.mT @ found, torch.eye(5, dtype=torch.float64)[None], rtol=0, atol=1e-12)
    outside = new - found @ (found.mT @ new)
    assert float(outside.norm()) < 1e-10


def test_impossible_shares_are_refused():
    with pytest.raises(SettingsError, match="between 0 and 1"):
        Compression(energy=1.5)
    with pytest.raises(SettingsError, match="worst"):
        Compression(energy=0.9, worst=-1)


def test_bases_are_extended_and_old_cores_stay_to_the_bit(model):
    """Later tangents begin with the bases of earlier ones, whose cores are padded with zeros when both are joined."""
    first = compressed(model, *samples(10))
    second = compressed(model, *samples(10, seed=5), earlier=first)
    both = Tangents.concatenate([first, second])
    compared = 0
    for old, new, joined in zip(first.blocks, second.blocks, both.blocks, strict=True):
        if isinstance(old, Compressed):
            k, r = old.ranks
            assert torch.equal(new.input_basis[..., :k], old.input_basis)
            assert torch.equal(new.output_basis[..., :r], old.output_basis)
            assert joined.ranks == new.ranks > old.ranks
            assert torch.equal(joined.cores[:10, :, :r, :k], old.cores[..., :k])
            assert torch.equal(joined.cores[10:], new.cores)
            compared += 1
    assert compared
