from __future__ import annotations

import pytest
import torch

from orthocl.errors import DataError
from orthocl.tangents import Subspace, collect, drift
from orthocl.tangents.drift import probe_count


def test_no_drift_without_movement(make_problem):
    problem = make_problem("mlp")
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    subspace = Subspace(problem.parameters)
    subspace.append(tangents, 1)
    found = drift(tangents, tangents, subspace)
    assert found.cosine == pytest.approx(1)
    assert found.relative_norm == pytest.approx(1)
    assert found.outside == pytest.approx(0, abs=1e-6)


def test_drift_against_explicit_gradients(make_problem, reject_dense):
    problem = make_problem("lenet")
    stored = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    before = problem.jacobian()
    subspace = Subspace(problem.parameters)
    subspace.append(stored, 1)
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    now = problem.jacobian()
    found = drift(
        stored, collect(problem.model, problem.x, problem.y, parameters=problem.parameters), subspace
    )
    cosine = torch.nn.functional.cosine_similarity(before, now).mean()
    outside = torch.stack([reject_dense(before, row).norm() / row.norm() for row in now]).mean()
    assert found.cosine == pytest.approx(float(cosine), rel=1e-9)
    assert found.relative_norm == pytest.approx(
        float((now.norm(dim=1) / before.norm(dim=1)).mean()), rel=1e-9
    )
    assert found.outside == pytest.approx(float(outside), rel=1e-8)
    assert 0.05 < found.outside < 1


def test_refreshed_memory_has_no_drift(make_problem):
    """The paper's point: after the network moves, OGD's stored tangents protect less, OGD+'s protect all."""
    problem = make_problem("mlp")
    stored = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    old, fresh = Subspace(problem.parameters), Subspace(problem.parameters)
    old.append(stored, 1)
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    now = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    fresh.replace([(1, now)])
    assert drift(stored, now, old).outside > 0.05
    assert drift(now, now, fresh).outside < 1e-6
    with pytest.raises(DataError, match="same outputs"):
        drift(stored, now.select(torch.arange(2)), old)


def test_probes_are_at_most_ten_and_fit_in_their_bytes():
    """A task of 100 samples: ten probes, unless ten take more than 16 MiB; one in any case, never more than samples."""
    room = 2**24
    assert probe_count(100, 10 * room) == 10
    assert probe_count(100, 20 * room) == 5
    assert probe_count(100, 50 * room) == 2
    assert probe_count(100, 10**6 * room) == 1
    assert probe_count(3, 5) == 3
    assert probe_count(100, 0) == 10
