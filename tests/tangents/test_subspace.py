from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from orthocl.errors import DataError, SettingsError, StoreError
from orthocl.tangents import Subspace, Tangents, collect
from orthocl.tangents.blocks import Dense
from orthocl.tangents.cholesky import GrowingCholesky, pivoted_cholesky


def rows_of(matrix: torch.Tensor) -> tuple[dict[str, nn.Parameter], Tangents]:
    """Tangents with given rows, of one parameter."""
    width = matrix.shape[1]
    parameters = {"w": nn.Parameter(torch.zeros(width, dtype=matrix.dtype))}
    return parameters, Tangents(["w"], [(width,)], [Dense(("w",), ((width,),), matrix)])


def vector(parts) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_projection_equals_the_dense_one(problem, reject_dense, variant):
    subspace = Subspace(problem.parameters)
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant=variant)
    half = torch.arange(tangents.rows // 2)
    rest = torch.arange(tangents.rows // 2, tangents.rows)
    found = subspace.append(tangents.select(half), 1) + subspace.append(tangents.select(rest), 2)
    truth = problem.jacobian(variant)
    assert found == subspace.rank == torch.linalg.matrix_rank(truth, rtol=1e-9)
    gradient = [torch.randn_like(p) for p in problem.parameters.values()]
    outside, inside = subspace.outside(gradient), subspace.inside(gradient)
    expected = reject_dense(truth, vector(gradient))
    torch.testing.assert_close(vector(outside), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(vector(outside) + vector(inside), vector(gradient), rtol=1e-12, atol=1e-12)
    assert subspace.leak(outside) < 1e-13
    assert subspace.leak(inside) == pytest.approx(1.0, abs=1e-12)
    whole = subspace.leak(gradient) ** 2
    assert whole == pytest.approx(1 - float(expected.norm() / vector(gradient).norm()) ** 2, abs=1e-10)
    again = subspace.outside(outside)
    torch.testing.assert_close(vector(again), vector(outside), rtol=1e-12, atol=1e-13)
    weights = subspace.inverse() @ tangents_in(subspace).coefficients(gradient)
    torch.testing.assert_close(
        vector(tangents_in(subspace).combine(weights)), vector(inside), rtol=1e-8, atol=1e-9
    )


def tangents_in(subspace: Subspace) -> Tangents:
    assert subspace.tangents is not None
    return subspace.tangents


@given(
    rows=st.integers(1, 12),
    width=st.integers(1, 30),
    rank=st.integers(0, 6),
    pieces=st.integers(1, 4),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=100, deadline=None)
def test_span_rank_and_order(rows, width, rank, pieces, seed):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    matrix = left @ torch.randn(rank, width, generator=generator, dtype=torch.float64)
    matrix *= 10 ** (8 * torch.rand(1, generator=generator).double() - 4)
    parameters, tangents = rows_of(matrix)
    gradient = [torch.randn(width, generator=generator, dtype=torch.float64)]
    results = []
    for order in (torch.arange(rows), torch.randperm(rows, generator=generator)):
        subspace = Subspace(parameters)
        for number, part in enumerate(order.chunk(pieces)):
            subspace.append(tangents.select(part), number)
        assert subspace.rank == torch.linalg.matrix_rank(matrix, rtol=1e-6)
        results.append(subspace.outside(gradient)[0])
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)
    if rank:
        _, values, basis = torch.linalg.svd(matrix, full_matrices=False)
        basis = basis[values > 1e-6 * values[0]]
        torch.testing.assert_close(
            results[0], gradient[0] - basis.t() @ (basis @ gradient[0]), rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_samples_change_nothing(dtype):
    # The published orthonormalisation turns repeats into noise of norm 1 and then amplifies gradients.
    torch.manual_seed(0)
    matrix = torch.randn(6, 40, dtype=dtype)
    repeated = torch.cat([matrix, matrix[:3], 2 * matrix[1:2], matrix[:3]])
    parameters, tangents = rows_of(repeated)
    subspace = Subspace(parameters)
    assert subspace.append(tangents, 1) == 6
    assert subspace.append(tangents, 2) == 0
    plain = Subspace(parameters)
    plain.append(rows_of(matrix)[1], 1)
    gradient = [torch.randn(40, dtype=dtype)]
    accuracy = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(
        subspace.outside(gradient)[0], plain.outside(gradient)[0], rtol=0, atol=accuracy
    )
    assert subspace.outside(gradient)[0].norm() <= gradient[0].norm()


def test_near_repeats_keep_their_difference():
    torch.manual_seed(1)
    matrix = torch.randn(4, 30)
    near = torch.cat([matrix, matrix[:1] + 1e-3 * torch.randn(1, 30)])
    parameters, tangents = rows_of(near)
    subspace = Subspace(parameters)
    assert subspace.append(tangents, 1) == 5
    outside = subspace.outside([torch.randn(30)])
    assert subspace.leak(outside) < 1e-5
    assert outside[0].norm() < 30**0.5 * 2


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_almost_dependent_tangents_do_not_hide_dependent_ones(pieces):
    # Two directions, the first two rows 4e-3 apart: the others are dependent, but only up to amplified rounding.
    matrix = torch.tensor(
        [[341.7524, 223.4564], [685.7467, 452.7037], [-19.1241, 561.2426], [-692.7488, -230.0125]],
        dtype=torch.float64,
    )
    parameters, _ = rows_of(matrix)
    subspace = Subspace(parameters)
    for number, part in enumerate(matrix.chunk(pieces)):
        subspace.append(rows_of(part)[1], number)
    assert subspace.rank == 2


def test_zero_tangents_are_skipped():
    torch.manual_seed(2)
    matrix = torch.zeros(4, 10, dtype=torch.float64)
    parameters, tangents = rows_of(matrix)
    subspace = Subspace(parameters)
    assert subspace.append(tangents, 1) == 0
    gradient = [torch.randn(10, dtype=torch.float64)]
    assert torch.equal(subspace.outside(gradient)[0], gradient[0])
    matrix = matrix.clone()
    matrix[2] = 1.0
    assert subspace.append(rows_of(matrix)[1], 2) == 1
    assert subspace.outside(gradient)[0].isfinite().all()


def test_removing_an_owner_keeps_what_others_share_with_it():
    torch.manual_seed(3)
    matrix = torch.randn(5, 20, dtype=torch.float64)
    parameters, first = rows_of(matrix[:3])
    second = rows_of(matrix[2:])[1]  # row 2 is remembered by both
    subspace = Subspace(parameters)
    assert (subspace.append(first, 1), subspace.append(second, 2)) == (3, 2)
    assert subspace.owners == (1, 2)
    assert subspace.remove(1) == 2
    assert (subspace.owners, subspace.rank) == ((2,), 3)
    alone = Subspace(parameters)
    alone.append(second, 2)
    gradient = [torch.randn(20, dtype=torch.float64)]
    torch.testing.assert_close(
        subspace.outside(gradient)[0], alone.outside(gradient)[0], rtol=1e-11, atol=1e-12
    )
    with pytest.raises(SettingsError, match="no tangents of owner 1"):
        subspace.remove(1)


def test_replace_forgets_what_was_there():
    torch.manual_seed(4)
    old, new = torch.randn(3, 12, dtype=torch.float64), torch.randn(4, 12, dtype=torch.float64)
    parameters, tangents = rows_of(old)
    subspace = Subspace(parameters)
    subspace.append(tangents, 1)
    assert subspace.replace([(1, rows_of(new[:2])[1]), (2, rows_of(new[2:])[1])]) == 4
    outside = subspace.outside([torch.randn(12, dtype=torch.float64)])[0]
    assert (new @ outside).abs().max() < 1e-12
    assert (old @ outside).abs().max() > 1e-2


def test_principal_components_without_dense_vectors(make_problem):
    problem = make_problem("mlp")
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    extra = tangents.select(torch.tensor([0]))
    subspace = Subspace(problem.parameters)
    assert subspace.append(extra, 1) == 1
    assert subspace.append(tangents, 2, components=3) == 3
    assert (subspace.rank, subspace.size) == (4, 8)
    truth = problem.jacobian()
    top = torch.linalg.svd(truth, full_matrices=False)[2][:3]
    basis = torch.linalg.qr(torch.cat([top, truth[:1]]).t())[0]
    gradient = [torch.randn_like(p) for p in problem.parameters.values()]
    expected = vector(gradient) - basis @ (basis.t() @ vector(gradient))
    torch.testing.assert_close(vector(subspace.outside(gradient)), expected, rtol=1e-8, atol=1e-9)
    weights = subspace.inverse() @ tangents_in(subspace).coefficients(gradient)
    torch.testing.assert_close(
        vector(tangents_in(subspace).combine(weights)), vector(gradient) - expected, rtol=1e-8, atol=1e-9
    )
    assert subspace.remove(1) == 1
    expected = vector(gradient) - top.t() @ (top @ vector(gradient))
    torch.testing.assert_close(vector(subspace.outside(gradient)), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_saving_and_loading(make_problem, dtype):
    problem = make_problem("convolutions")
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant="all")
    subspace = Subspace(problem.parameters, dtype=dtype)
    subspace.append(tangents.select(torch.arange(6)), 1)
    subspace.append(tangents.select(torch.arange(4, 12)), 2)
    subspace.append(tangents.select(torch.arange(12, 21)), 3, components=2)
    again = Subspace(problem.parameters)
    again.load_state_dict(subspace.state_dict())
    gradient = [torch.randn_like(p) for p in problem.parameters.values()]
    assert torch.equal(vector(again.outside(gradient)), vector(subspace.outside(gradient)))
    assert again.nbytes == subspace.nbytes
    assert again.dtype == dtype
    assert again.remove(1) == subspace.remove(1)
    assert torch.equal(vector(again.outside(gradient)), vector(subspace.outside(gradient)))
    other = Subspace({"w": nn.Parameter(torch.zeros(3))})
    with pytest.raises(StoreError, match="protects"):
        other.load_state_dict(subspace.state_dict())


def test_bfloat16_protects_exactly_what_it_stores(make_problem):
    problem = make_problem("mlp")
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    subspace = Subspace(problem.parameters, dtype=torch.bfloat16)
    subspace.append(tangents, 1)
    outside = vector(subspace.outside([torch.randn_like(p) for p in problem.parameters.values()]))
    stored = tangents_in(subspace).dense().double()
    assert (stored @ outside).abs().max() < 1e-12
    assert (problem.jacobian() @ outside).abs().max() > 1e-4


def test_refusals():
    parameters, tangents = rows_of(torch.randn(2, 5))
    subspace = Subspace(parameters)
    with pytest.raises(DataError, match="not finite"):
        subspace.append(rows_of(torch.full((2, 5), float("nan")))[1], 1)
    with pytest.raises(DataError, match="these tangents are of"):
        subspace.append(rows_of(torch.randn(2, 6))[1], 1)
    with pytest.raises(SettingsError, match="stored in"):
        Subspace(parameters, dtype=torch.int8)
    with pytest.raises(SettingsError, match="tolerance"):
        Subspace(parameters, tolerance=0.0)
    with pytest.raises(SettingsError, match="principal component"):
        subspace.append(tangents, 1, components=0)
    subspace.append(tangents, 1)
    with pytest.raises(DataError, match="expected a gradient"):
        subspace.outside([torch.zeros(5), torch.zeros(5)])


@given(size=st.integers(1, 200), rank=st.integers(1, 200), steps=st.integers(1, 4), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_growing_cholesky(size, rank, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    gram = rows @ rows.t()
    scale = float(gram.diagonal().max())
    factor, kept = GrowingCholesky(), torch.zeros(0, dtype=torch.long)
    for part in torch.arange(size).chunk(steps):
        cross = gram[kept][:, part]
        kept = torch.cat([kept, part[factor.extend(cross, gram[part][:, part], scale, 1e-12)]])
    assert factor.size == len(kept) == min(size, rank)
    lower = factor.lower()
    torch.testing.assert_close(lower @ lower.t(), gram[kept][:, kept], rtol=1e-9, atol=1e-8)
    right = torch.randn(len(kept), generator=generator, dtype=torch.float64)
    solved = factor.solve(lower @ (lower.t() @ right))
    torch.testing.assert_close(lower.t() @ solved, lower.t() @ right, rtol=1e-6, atol=1e-6)


def test_pivoted_cholesky_takes_the_largest_first():
    rows = torch.diag(torch.tensor([1.0, 3.0, 2.0, 1e-9], dtype=torch.float64))
    order, lower = pivoted_cholesky(rows @ rows.t(), torch.full((4,), 1e-12, dtype=torch.float64))
    assert order.tolist() == [1, 2, 0]
    torch.testing.assert_close(lower, torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)))


def test_no_forgetting_on_the_linearised_network(make_problem):
    """Paper: Theorem 2. With all logits remembered, the linearised outputs do not move at all."""
    problem = make_problem("mlp")
    jacobian = problem.jacobian("all")
    subspace = Subspace(problem.parameters)
    subspace.append(
        collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant="all"), 1
    )
    torch.manual_seed(5)
    other = torch.randn(9, jacobian.shape[1], dtype=torch.float64)  # tangents of the next task
    target, moved = torch.randn(9, dtype=torch.float64), torch.zeros(jacobian.shape[1], dtype=torch.float64)
    velocity = torch.zeros_like(moved)
    for _ in range(100):
        gradient = other.t() @ (other @ moved - target)
        pieces = gradient.split([p.numel() for p in problem.parameters.values()])
        shaped = [g.view_as(p) for g, p in zip(pieces, problem.parameters.values(), strict=True)]
        velocity = 0.9 * velocity + vector(subspace.outside(shaped))
        moved = moved - 1e-4 * velocity
    assert moved.norm() > 1e-2
    assert (jacobian @ moved).abs().max() < 1e-12


def test_first_order_drift_on_the_real_network(make_problem):
    """On the real network remembered outputs move by O(step^2) along the complement, O(step) otherwise."""
    problem = make_problem("mlp")
    subspace = Subspace(problem.parameters)
    subspace.append(
        collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant="all"), 1
    )
    gradient = [torch.randn_like(p) for p in problem.parameters.values()]
    outside = subspace.outside(gradient)
    before = problem.model(problem.x).detach()

    def drift(direction, step):
        with torch.no_grad():
            for p, d in zip(problem.parameters.values(), direction, strict=True):
                p.add_(d, alpha=step)
            moved = (problem.model(problem.x) - before).norm()
            for p, d in zip(problem.parameters.values(), direction, strict=True):
                p.sub_(d, alpha=step)
        return float(moved)

    assert drift(outside, 1e-3) / drift(outside, 1e-4) == pytest.approx(100, rel=0.3)
    assert drift(gradient, 1e-3) / drift(gradient, 1e-4) == pytest.approx(10, rel=0.1)


def test_inner_products_do_not_depend_on_how_python_hashes_names():
    """Nor, therefore, do runs on the process that makes them: sets of names have another order in each."""
    code = """
import hashlib, torch
from orthocl.nets import MLP
from orthocl.tangents import collect
torch.manual_seed(0)
model = MLP((30,), (20, 20, 20, 20), 10)
parameters = dict(model.named_parameters())
one, other = (collect(model, torch.randn(40, 30), torch.arange(40) % 10, parameters=parameters) for _ in range(2))
print(hashlib.sha256(one.gram(other).numpy().tobytes()).hexdigest())
"""
    found = set()
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        found.add(
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120).stdout
        )
    assert len(found) == 1


@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-4, 1e-5, 1e-8])
@pytest.mark.parametrize("before", [0, 3])
def test_the_factor_is_that_of_the_stored_rows_in_their_order(apart, before):
    """Nearly dependent tangents are factored with pivots, in another order than they came in, all of them or some."""
    generator = torch.Generator().manual_seed(int(1 / apart) + before)
    parameters = {"w": nn.Parameter(torch.zeros(30, dtype=torch.float64))}
    base = torch.randn(4, 30, generator=generator, dtype=torch.float64)
    rows = torch.cat([base, base + apart * torch.randn(4, 30, generator=generator, dtype=torch.float64)])
    subspace = Subspace(parameters)
    if before:
        first = torch.randn(before, 30, generator=generator, dtype=torch.float64)
        subspace.append(Tangents.explicit(parameters, [first]), 1)
    subspace.append(Tangents.explicit(parameters, [rows * torch.linspace(0.1, 2, 8)[:, None]]), 2)
    lower = subspace._factor.lower()
    torch.testing.assert_close(lower @ lower.T, subspace.tangents.gram(), rtol=0, atol=1e-10)
    gradient = torch.randn(30, generator=generator, dtype=torch.float64)
    (outside,) = subspace.outside([gradient])
    assert float(outside.norm()) <= float(gradient.norm())
    dense = subspace.tangents.blocks[0].dense()
    assert float((dense @ outside).abs().max()) < 1e-7


def test_what_an_owner_gave_last_is_found_by_its_places(make_problem):
    """Three owners; of the second, given twice, the later tangents, and only the places asked for."""
    problem = make_problem("mlp")
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    rows = problem.jacobian()
    subspace = Subspace(problem.parameters)
    pieces = {1: [0, 1], 2: [2, 3], 3: [4], 4: [5, 6]}
    for owner, places in pieces.items():
        subspace.append(tangents.select(torch.tensor(places)), 2 if owner == 4 else owner)
    found, places = subspace.find(2, torch.tensor([1, 5]))
    assert places.tolist() == [1]
    torch.testing.assert_close(
        torch.cat([b.dense() for b in found.blocks], 1).square().sum(1), rows[6:].square().sum(1)
    )
    found, places = subspace.find(3, torch.tensor([0, 1]))
    assert places.tolist() == [0]
    torch.testing.assert_close(found.gram(), rows[4:5] @ rows[4:5].T)
    assert subspace.find(9, torch.tensor([0])) is None
    assert subspace.find(1, torch.tensor([7])) is None


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_principal_components_do_not_depend_on_units(scale, make_problem):
    """Two components of seven tangents, then three more rows: what is rejected is the same in any units."""
    problem = make_problem("mlp")
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    rows = scale * problem.jacobian()
    scaled = Tangents.explicit(
        problem.parameters,
        [
            part.reshape(7, *p.shape)
            for part, p in zip(
                rows.split([p.numel() for p in problem.parameters.values()], 1),
                problem.parameters.values(),
                strict=True,
            )
        ],
    )
    assert tangents.rows == scaled.rows
    subspace = Subspace(problem.parameters)
    assert subspace.append(scaled, 1, components=2) == 2
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    basis = directions[:2]
    gradient = [torch.randn_like(p) for p in problem.parameters.values()]
    vector = torch.cat([g.reshape(-1) for g in gradient])
    found = torch.cat([g.reshape(-1) for g in subspace.outside(gradient)])
    torch.testing.assert_close(found, vector - basis.T @ (basis @ vector), rtol=1e-6, atol=1e-8)
    assert subspace.append(scaled.select(torch.tensor([0, 1, 2])), 2) == 3


@pytest.mark.parametrize("scale", [1e-10, 1e-5, 1.0, 1e5])
def test_the_span_does_not_depend_on_units(scale, reject_dense):
    generator = torch.Generator().manual_seed(0)
    matrix = scale * torch.randn(4, 9, generator=generator, dtype=torch.float64)
    parameters, tangents = rows_of(matrix)
    subspace = Subspace(parameters)
    assert subspace.append(tangents, 1) == 4
    gradient = torch.randn(9, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(subspace.outside([gradient])[0], reject_dense(matrix, gradient))
    assert subspace.replace([(1, tangents)]) == 4
    assert subspace.replace([(1, tangents)], components=3) == 3


def test_a_small_principal_direction_counts_as_much_as_a_small_tangent():
    """Lengths 1 and 1e-4: a squared length of 1e-8 of the largest is above the tolerance of 1e-12."""
    matrix = torch.diag(torch.tensor([1.0, 1e-4, 0.0], dtype=torch.float64))[:2]
    parameters, tangents = rows_of(matrix)
    subspace = Subspace(parameters)
    assert subspace.append(tangents, 1, components=2) == 2
    gradient = torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(subspace.outside([gradient])[0], expected)


def test_the_inverse_for_no_tangent_and_for_one():
    parameters, tangents = rows_of(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    subspace = Subspace(parameters)
    assert subspace.inverse().shape == (0, 0)
    subspace.append(tangents, 1)
    torch.testing.assert_close(subspace.inverse(), torch.tensor([[1 / 25]], dtype=torch.float64))


def test_errors_of_the_tangents_are_those_of_the_span():
    parameters, tangents = rows_of(torch.eye(3, 5, dtype=torch.float64))
    subspace = Subspace(parameters)
    assert subspace.errors is None
    subspace.append(tangents, 1)
    assert subspace.errors is None
    errors = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    subspace.replace([(1, Tangents(tangents.names, tangents.shapes, tangents.blocks, errors))])
    assert torch.equal(subspace.errors, errors)


@pytest.mark.parametrize("tolerance", [-0.5, 0.0, 1.0, 1.5])
def test_tolerances_that_keep_all_or_nothing_are_refused(tolerance):
    parameters, _ = rows_of(torch.randn(2, 5))
    with pytest.raises(SettingsError, match="between 0 and 1"):
        Subspace(parameters, tolerance=tolerance)


def test_a_span_that_grows_protects_the_same_directions_among_more_parameters():
    """A second parameter joins: tangents are padded with zeros, those set aside too."""
    matrix = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
    parameters, tangents = rows_of(matrix)
    subspace = Subspace(parameters)
    assert subspace.append(tangents.select(torch.tensor([0])), 1) == 1
    assert subspace.append(tangents.select(torch.tensor([1, 2])), 2) == 1
    more = {**parameters, "v": nn.Parameter(torch.zeros(2, dtype=torch.float64))}

    def change(old: Tangents) -> Tangents:
        return Tangents.explicit(more, [old.dense(), torch.zeros(old.rows, 2, dtype=torch.float64)])

    subspace.grow(more, change)
    assert (subspace.names, subspace.shapes) == (("w", "v"), ((3,), (2,)))
    gradient = [torch.tensor([3.0, 4.0, 5.0]).double(), torch.tensor([6.0, 7.0]).double()]
    expected = [torch.tensor([0.0, 0.0, 5.0]).double(), gradient[1]]
    torch.testing.assert_close(subspace.outside(gradient), expected)
    assert subspace.remove(1) == 0  # what was set aside returns
    torch.testing.assert_close(subspace.outside(gradient), expected)
    empty = Subspace(parameters)
    empty.grow(more, change)
    assert empty.tangents is None
    assert empty.names == ("w", "v")
