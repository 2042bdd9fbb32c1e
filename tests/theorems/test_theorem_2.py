"""Theorem 2 (thm:train-unchanged), its limits, and Proposition 1 (prop:ogd-gem)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.theory import (
    EmpiricalNTK,
    forgetting_drift,
    gradient_alignment,
    ground_truth_rows,
    solve_stream,
)


@pytest.mark.parametrize("ridge", [0.05, 0.0])
def test_remembered_outputs_do_not_move(problem, ridge):
    for drift in forgetting_drift(problem.solve(rule="ogd", ridge=ridge)):
        assert drift.remembered < 1e-10
    assert max(drift.others for drift in forgetting_drift(problem.solve(rule="sgd", ridge=ridge))) > 0.1


def test_only_what_is_remembered_is_kept(problem):
    for drift in forgetting_drift(problem.solve(rule="ogd", memory=4)):
        assert drift.remembered < 1e-10
        assert drift.others > 1e-3


def test_everything_in_the_span_of_the_memory_is_kept(problem):
    """Not only memorised points: any x whose tangent is a combination of theirs."""
    reference = problem.reference("ogd")
    phi = problem.phi(problem.tasks[0][0])
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(3, len(phi), generator=generator, dtype=torch.float64) @ phi
    assert (mixed @ (reference.weights[4] - reference.weights[1])).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("optimizer", "kept"), [("sgd", True), ("momentum", True), ("adam", False), ("decay", False)]
)
def test_any_loss_and_momentum_keep_it_adam_and_weight_decay_do_not(problem, off_span, optimizer, kept):
    """The projected gradient of a logistic loss on minibatches, fed to real optimizers."""
    first, (x, y) = problem.phi(problem.tasks[0][0]), problem.tasks[1]
    phi, f0 = problem.phi(x), problem.f0(x)
    projector = off_span(first)
    start = problem.reference("ogd").weights[1]
    weights = start.clone().requires_grad_(True)
    make = {
        "sgd": lambda: torch.optim.SGD([weights], lr=0.05),
        "momentum": lambda: torch.optim.SGD([weights], lr=0.05, momentum=0.9, nesterov=True),
        "adam": lambda: torch.optim.Adam([weights], lr=0.05),
        "decay": lambda: torch.optim.SGD([weights], lr=0.05, weight_decay=0.01),
    }[optimizer]()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        batch = torch.randperm(len(x), generator=generator)[:4]
        make.zero_grad()
        nn.functional.softplus(-y[batch] * (f0[batch] + phi[batch] @ weights)).sum().backward()
        weights.grad = projector @ weights.grad
        make.step()
    drift = (first @ (weights.detach() - start)).abs().max()
    assert (weights.detach() - start).norm() > 1e-2
    assert drift < 1e-10 if kept else drift > 1e-3


def test_projected_gradient_is_orthogonal_to_every_memory_gradient(problem):
    """Proposition 1 holds for the projected gradient; the printed "g_k = 0" and "g_k . g = 0" do not."""
    for alignment in gradient_alignment(problem.solve(rule="ogd"), task=4):
        assert abs(alignment.projected) < 1e-10
        assert alignment.memory_gradient > 1e-2
    found = [
        abs(a.plain) for task in (2, 3, 4) for a in gradient_alignment(problem.solve(rule="ogd"), task=task)
    ]
    assert max(found) > 0.1
    steps = [a.steps for task in (3, 4) for a in gradient_alignment(problem.solve(rule="ogd"), task=task)]
    assert min(steps) < 0.99  # OGD's step is not A-GEM's


def test_alignment_agrees_with_explicit_gradients(problem):
    solution, task = problem.solve(rule="ogd", memory=5), 3
    form = problem.reference("ogd", memory=[torch.arange(5)] * 4)
    w, projector = form.weights[task - 1], form.projectors[task - 1]

    def gradient(number, rows):
        x, y = problem.tasks[number - 1]
        phi = problem.phi(x)[rows]
        return 2 * phi.T @ (problem.f0(x)[rows] + phi @ w - y[rows])

    g = gradient(task, slice(None))
    for alignment in gradient_alignment(solution, task):
        reference_gradient = gradient(alignment.task, slice(5))
        assert alignment.memory_gradient == pytest.approx(float(reference_gradient.norm()), rel=1e-8)
        cosine = reference_gradient @ g / (reference_gradient.norm() * g.norm())
        assert alignment.plain == pytest.approx(float(cosine), abs=1e-9)
        agem = g - (g @ reference_gradient) / (reference_gradient @ reference_gradient) * reference_gradient
        cosine = (projector @ g) @ agem / ((projector @ g).norm() * agem.norm())
        assert alignment.steps == pytest.approx(float(cosine), abs=1e-9)


def test_old_heads_are_kept_when_only_shared_weights_are_projected(off_span):
    """A linearised network with two heads: the new head learns freely, the old one is not trained."""
    generator = torch.Generator().manual_seed(4)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        trunk = nn.Sequential(nn.Linear(4, 12), nn.Tanh()).double()
        heads = [nn.Linear(12, 2).double() for _ in range(2)]
    x = [torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2)]

    def tangents(task: int, of: nn.Module) -> torch.Tensor:
        outputs = heads[task](trunk(x[task])).flatten()
        rows = [torch.autograd.grad(u, list(of.parameters()), retain_graph=True) for u in outputs]
        return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])

    projector = off_span(tangents(0, trunk))
    shared, own = tangents(1, trunk), tangents(1, heads[1])
    target = torch.randn(12, generator=generator, dtype=torch.float64)
    moved, head = torch.zeros(shared.shape[1]).double(), torch.zeros(own.shape[1]).double()
    for _ in range(300):
        error = shared @ moved + own @ head - target
        moved = moved - 0.01 * projector @ (shared.T @ error)
        head = head - 0.01 * own.T @ error
    assert moved.norm() > 1e-2
    assert (tangents(0, trunk) @ moved).abs().max() < 1e-10


@pytest.fixture(scope="module")
def classes():
    """A small classifier, three tasks of three classes, all logits as points."""
    generator = torch.Generator().manual_seed(3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    tasks, labels = [], []
    for _ in range(3):
        x = torch.randn(10, 6, generator=generator, dtype=torch.float64)
        label = torch.randint(0, 3, (10,), generator=generator)
        tasks.append((x, nn.functional.one_hot(label, 3).double()))
        labels.append(label)
    return EmpiricalNTK(model, "all"), tasks, labels


def cross_entropy_derivative(outputs, targets):
    return outputs.softmax(1) - targets


def test_all_logits_keep_everything_and_ground_truth_logits_only_themselves(classes):
    kernel, tasks, labels = classes
    every = solve_stream(kernel, tasks, rule="ogd", ridge=0.05)
    assert max(drift.remembered for drift in forgetting_drift(every)) < 1e-10
    truth = solve_stream(kernel, tasks, rule="ogd", ridge=0.05, labels=labels)
    assert max(drift.remembered for drift in forgetting_drift(truth)) < 1e-10
    assert max(drift.others for drift in forgetting_drift(truth)) > 0.05
    chosen = solve_stream(
        kernel, tasks, rule="ogd", ridge=0.05, memory=[ground_truth_rows(label, 3) for label in labels]
    )
    assert torch.allclose(chosen.predict(tasks[0][0]), truth.predict(tasks[0][0]), atol=1e-12)


def test_cross_entropy_alignment_needs_all_logits(classes):
    kernel, tasks, labels = classes
    every = solve_stream(kernel, tasks, rule="ogd", ridge=0.05)
    truth = solve_stream(kernel, tasks, rule="ogd", ridge=0.05, labels=labels)
    for alignment in gradient_alignment(every, 3, cross_entropy_derivative):
        assert abs(alignment.projected) < 1e-10
    assert max(abs(a.projected) for a in gradient_alignment(truth, 3, cross_entropy_derivative)) > 1e-3


def test_alignment_of_ground_truth_memories_agrees_with_explicit_gradients(classes, off_span):
    """Here g_k.(P g) is not zero, so that every inner product counts."""
    kernel, tasks, labels = classes
    solution = solve_stream(kernel, tasks, rule="ogd", ridge=0.05, labels=labels)
    phi = [kernel.tangents(x).dense() for x, _ in tasks]
    protected = torch.cat(
        [rows[ground_truth_rows(label, 3)] for rows, label in zip(phi[:2], labels, strict=False)]
    )
    projector = off_span(protected)

    def gradient(task):
        outputs = solution.train_outputs(task + 1, after=2)
        return phi[task].T @ cross_entropy_derivative(outputs, tasks[task][1]).flatten()

    g = gradient(2)
    for alignment in gradient_alignment(solution, 3, cross_entropy_derivative):
        reference = gradient(alignment.task - 1)
        step, agem = projector @ g, g - (g @ reference) / (reference @ reference) * reference
        assert alignment.projected == pytest.approx(
            float(reference @ step / (reference.norm() * step.norm())), abs=1e-8
        )
        assert alignment.steps == pytest.approx(float(step @ agem / (step.norm() * agem.norm())), abs=1e-8)


def test_a_memory_that_is_fitted_exactly_has_no_direction():
    """Targets of zero, fitted by f_0 = 0: no gradient and no cosines; A-GEM's step is the plain gradient."""
    x = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    first, second = torch.tensor([[2.0, 0.0]], dtype=torch.float64), x
    tasks = [(first, torch.zeros(1, dtype=torch.float64)), (second, torch.ones(1, dtype=torch.float64))]
    solution = solve_stream(lambda a, b: a @ b.T, tasks, rule="ogd")
    (found,) = gradient_alignment(solution, 2)
    assert (found.memory_gradient, found.plain, found.projected) == (0.0, 0.0, 0.0)
    assert found.steps == pytest.approx(0.5**0.5)  # between (1, 1) and its part (0, 1) off the memory
