"""The projection as it is prepared for the steps of a task, against an orthonormal basis of explicit gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.tangents import Subspace, collect
from orthocl.tangents.compress import Compression
from orthocl.tangents.projector import Projector


def vector(parts):
    return torch.cat([part.reshape(-1) for part in parts])


def displacement(parameters):
    return [torch.randn_like(p) for p in parameters.values()]


@pytest.mark.parametrize("variant", ["gtl", "all"])
@pytest.mark.parametrize("energy", [1.0, 0.9])
def test_it_is_the_dense_projection(problem, reject_dense, variant, energy):
    """Whatever layers there are, folded or not; what is compressed counts as it is stored."""
    tangents = collect(
        problem.model,
        problem.x,
        problem.y,
        parameters=problem.parameters,
        variant=variant,
        compression=Compression(energy=energy),
    )
    subspace = Subspace(problem.parameters)
    subspace.append(tangents, 1)
    projector, moved = Projector(subspace), displacement(problem.parameters)
    inside = vector(projector.inside(moved))
    rows = problem.jacobian(variant)
    if energy < 1.0:
        rows = torch.stack([vector(tangents.combine(unit)) for unit in torch.eye(tangents.rows).double()])
    expected = vector(moved) - reject_dense(rows, vector(moved))
    torch.testing.assert_close(inside, expected, rtol=0, atol=1e-9 * float(vector(moved).norm()))
    torch.testing.assert_close(inside, vector(subspace.inside(moved)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("components", [1, 4])
def test_of_principal_components_it_takes_their_span(make_problem, components):
    problem = make_problem("lenet")
    problem.model.eval()
    subspace = Subspace(problem.parameters)
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    subspace.append(tangents, 1, components=components)
    top = torch.linalg.svd(problem.jacobian(), full_matrices=False)[2][:components]
    moved = displacement(problem.parameters)
    inside = vector(Projector(subspace).inside(moved))
    torch.testing.assert_close(inside, top.t() @ (top @ vector(moved)), rtol=0, atol=1e-9)


def test_an_empty_memory_takes_nothing(make_problem):
    problem = make_problem("mlp")
    inside = Projector(Subspace(problem.parameters)).inside(displacement(problem.parameters))
    assert all(not part.any() for part in inside)


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("energy", [1.0, 0.9999999])
def test_almost_copied_tangents_in_single_precision(condition, energy):
    """Folded and unfolded: projecting twice is projecting once, and what is left lies outside to rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 3))
    x = torch.randn(6, 8)
    x = torch.cat([x, x + condition**-0.5 * torch.randn(6, 8)])
    parameters = dict(model.named_parameters())
    subspace = Subspace(parameters)
    found = collect(
        model, x, torch.arange(12) % 3, parameters=parameters, compression=Compression(energy=energy)
    )
    subspace.append(found, 1)
    projector, moved = Projector(subspace, torch.float32), displacement(parameters)
    outside = [whole - part for whole, part in zip(moved, projector.inside(moved), strict=True)]
    assert all(part.dtype == torch.float32 for part in outside)
    exact = vector(subspace.outside([part.double() for part in moved]))
    size = float(vector(moved).norm())
    assert float((vector(outside).double() - exact).norm()) < 2e-4 * size
    assert float(vector(projector.inside(outside)).norm()) < 2e-4 * size
