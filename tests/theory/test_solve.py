from __future__ import annotations

import numpy as np
import pytest
import torch

from orthocl.errors import DataError, SettingsError
from orthocl.theory import (
    EmpiricalNTK,
    FunctionKernel,
    GramKernel,
    InfiniteWidthNTK,
    Points,
    WideMLP,
    complexity_proxy,
    forgetting_drift,
    solve_stream,
)


def linear(x, z):
    return x @ z.T


def make_tasks(count=3, samples=6, features=20, columns=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (samples,) if columns is None else (samples, columns)
    return [
        (
            torch.randn(samples, features, generator=generator, dtype=torch.float64),
            torch.randn(shape, generator=generator, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def test_columns_that_share_a_memory_are_independent_problems():
    tasks = make_tasks(columns=3)
    whole = solve_stream(linear, tasks, rule="ogd", ridge=0.1)
    x = torch.randn(4, 20, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    parts = [solve_stream(linear, [(a, b[:, j]) for a, b in tasks], rule="ogd", ridge=0.1) for j in range(3)]
    assert torch.allclose(whole.predict(x), torch.stack([p.predict(x) for p in parts], 1), atol=1e-12)
    assert whole.predict(x).shape == (4, 3)
    for task in (1, 2, 3):
        assert whole.dissimilarity(task) == pytest.approx(sum(p.dissimilarity(task) for p in parts))
        assert whole.distance(task) ** 2 == pytest.approx(sum(p.distance(task) ** 2 for p in parts))
        assert whole.residual(task).shape == (6, 3)
    total = sum(p.distance_from_initialisation() ** 2 for p in parts)
    assert whole.distance_from_initialisation() ** 2 == pytest.approx(total)


def test_infinitely_wide_ground_truth_logits_decouple():
    """Output j is projected off the remembered samples of class j only; check against the explicit block kernel."""
    tasks = make_tasks(columns=3, features=5)
    labels = [
        torch.tensor([0, 1, 2, 0, 1, 2]),
        torch.tensor([0, 0, 0, 1, 1, 2]),
        torch.tensor([2, 2, 1, 1, 0, 0]),
    ]
    kernel = InfiniteWidthNTK(1, bias_variance=0.1)
    solution = solve_stream(kernel, tasks, rule="ogd", ridge=0.1, labels=labels)
    # The same with Theta = k (x) I_3 as one big kernel on (sample, logit) rows, sample-major.
    x = torch.cat([x for x, _ in tasks])
    theta = torch.kron(kernel.gram(x), torch.eye(3, dtype=torch.float64))
    big = GramKernel(theta)
    rows = [torch.arange(18 * t, 18 * (t + 1)) for t in range(3)]
    memory = [torch.arange(6) * 3 + label for label in labels]
    reference = solve_stream(
        big,
        [(r, y.flatten()) for r, (_, y) in zip(rows, tasks, strict=True)],
        rule="ogd",
        ridge=0.1,
        memory=memory,
    )
    for task in (1, 2, 3):
        for after in range(4):
            expected = reference.train_outputs(task, after=after).reshape(6, 3)
            assert torch.allclose(solution.train_outputs(task, after=after), expected, atol=1e-10)
        assert solution.dissimilarity(task) == pytest.approx(reference.dissimilarity(task), rel=1e-9)
        assert solution.effective_trace(task) == pytest.approx(reference.effective_trace(task), rel=1e-9)
        assert solution.rank(task) == reference.rank(task)
    assert solution.distance_from_initialisation() == pytest.approx(reference.distance_from_initialisation())
    for drift in forgetting_drift(solution):
        assert drift.remembered < 1e-10
        assert drift.others > 1e-3


def test_a_precomputed_matrix_gives_the_same():
    tasks = make_tasks()
    x = torch.cat([x for x, _ in tasks])
    direct = solve_stream(linear, tasks, rule="ogd", ridge=0.1, memory=3)
    rows = [(torch.arange(6 * t, 6 * t + 6), y) for t, (_, y) in enumerate(tasks)]
    stored = solve_stream(GramKernel(linear(x, x)), rows, rule="ogd", ridge=0.1, memory=3)
    assert torch.allclose(stored.predict(torch.arange(18)), direct.predict(x), atol=1e-12)
    assert complexity_proxy(stored) == pytest.approx(complexity_proxy(direct))


def test_numpy_and_functions_that_return_numpy():
    tasks = [(x.numpy(), y.numpy()) for x, y in make_tasks()]
    solution = solve_stream(lambda x, z: np.asarray(x) @ np.asarray(z).T, tasks, rule="sgd", ridge=0.1)
    expected = solve_stream(linear, make_tasks(), rule="sgd", ridge=0.1)
    assert torch.allclose(solution.predict(tasks[0][0]), expected.predict(tasks[0][0]), atol=1e-12)


def test_trajectory_residuals_and_train_outputs_agree_with_predict():
    tasks = make_tasks()
    solution = solve_stream(linear, tasks, rule="ogd", ridge=0.1, memory=3, initial=0.5)
    x = tasks[1][0]
    for after in range(4):
        assert torch.allclose(
            solution.predict(x, after=after), solution.train_outputs(2, after=after), atol=1e-11
        )
    assert torch.equal(solution.predict(x, after=0), torch.full((6,), 0.5, dtype=torch.float64))
    assert torch.allclose(solution.residual(2), tasks[1][1] - solution.predict(x, after=1), atol=1e-11)
    assert torch.allclose(
        solution.increment(x, 2), solution.predict(x, after=2) - solution.predict(x, after=1)
    )
    kernel = solution.effective_gram(2) + 0.1 * torch.eye(6, dtype=torch.float64)
    assert torch.allclose(kernel @ solution.coefficients(2), solution.residual(2), atol=1e-11)
    assert torch.allclose(solution.effective_kernel(2).gram(x), solution.effective_gram(2), atol=1e-11)
    assert torch.allclose(
        solution.effective_kernel(2).diagonal(x), solution.effective_gram(2).diagonal(), atol=1e-11
    )


def test_memory_of_nothing_is_sgd():
    tasks = make_tasks()
    x = tasks[0][0]
    empty = solve_stream(linear, tasks, rule="ogd", ridge=0.1, memory=0)
    assert torch.allclose(
        empty.predict(x), solve_stream(linear, tasks, rule="sgd", ridge=0.1).predict(x), atol=1e-12
    )


def test_repeated_task_has_no_kernel_and_no_noise():
    """An absolute cutoff: relative to K_t itself, rounding noise of 1e-31 would pass for a kernel."""
    task = make_tasks(1)[0]
    solution = solve_stream(linear, [task, task, task], rule="ogd", ridge=0.0)
    assert solution.effective_trace(2) == 0
    assert solution.dissimilarity(2) == 0
    assert solution.distance(3) == 0
    assert torch.equal(solution.predict(task[0], after=3), solution.predict(task[0], after=1))


@pytest.mark.parametrize("ridge", [1e-4, 1e-8, 1e-12])
def test_tiny_ridges_with_singular_kernels_stay_accurate(ridge):
    """More samples than features: a has a part r / ridge that must not multiply rounding noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(30, generator=generator, dtype=torch.float64)
    solution = solve_stream(linear, [(x, y)], rule="sgd", ridge=ridge)
    w = torch.linalg.solve(x.T @ x + ridge * torch.eye(5, dtype=torch.float64), x.T @ y)
    probe = torch.randn(10, 5, generator=generator, dtype=torch.float64)
    assert (solution.predict(probe) - probe @ w).abs().max() < 1e-9
    expected = float((y @ y - y @ x @ w) / ridge)
    assert solution.dissimilarity(1) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("condition", "kernel_error", "leak"), [(1e2, 1e-11, 1e-12), (1e4, 1e-8, 1e-10), (1e7, 1e-2, 1e-8)]
)
def test_ill_conditioned_memories_lose_the_kernel_before_they_forget(condition, kernel_error, leak):
    """The kernel form errs by eps cond(Phi)^2; no-forgetting survives far longer."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(60, 20, generator=generator, dtype=torch.float64))[0]
    turn = torch.linalg.qr(torch.randn(20, 20, generator=generator, dtype=torch.float64))[0]
    phi = (
        turn
        * torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), 20, dtype=torch.float64)
        @ basis.T
    )
    new = torch.randn(8, 60, generator=generator, dtype=torch.float64)
    tasks = [(phi, torch.zeros(20)), (new, torch.ones(8))]
    solution = solve_stream(linear, tasks, rule="ogd", ridge=0.1, tolerance=1e-16)
    projected = new - (new @ basis) @ basis.T
    if condition <= 1e4:
        assert solution.rank(2) == 20
    assert (solution.effective_gram(2) - projected @ projected.T).abs().max() < kernel_error * 60
    assert forgetting_drift(solution)[0].remembered < leak


def test_progress_is_reported():
    seen = []
    solve_stream(linear, make_tasks(), ridge=0.1, progress=seen.append)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rule": "gd"}, SettingsError, "did you mean"),
        ({"ridge": -1.0}, SettingsError, "zero or more"),
        ({"ridge": float("nan")}, SettingsError, "zero or more"),
        ({"tasks": []}, DataError, "at least one task"),
        ({"memory": -1}, SettingsError, "zero samples or more"),
        ({"memory": [torch.tensor([0])]}, SettingsError, "3 tasks"),
        ({"memory": [torch.tensor([9])] * 3}, SettingsError, "must lie in"),
        ({"memory_limit": 100}, SettingsError, "fewer samples"),
        ({"labels": [torch.zeros(6)] * 2}, DataError, "labels of 3 tasks"),
        ({"labels": [torch.full((6,), 4)] * 3}, DataError, "classes in"),
        ({"initial": lambda points: torch.zeros(2)}, DataError, "initial function"),
        ({"kernel": lambda x, z: torch.zeros(2, 2)}, DataError, "must return a matrix"),
        ({"kernel": 3}, SettingsError, "expected a kernel"),
        ({"tasks": [(torch.zeros(3, 2), torch.zeros(4))]}, DataError, "targets for 3 samples"),
        ({"tasks": [(torch.zeros(0, 2), torch.zeros(0))]}, DataError, "no samples"),
        ({"tasks": [(torch.zeros(1, 2), torch.full((1,), float("nan")))]}, DataError, "finite"),
        (
            {"tasks": [(torch.zeros(1, 2), torch.zeros(1, 2)), (torch.zeros(1, 2), torch.zeros(1, 3))]},
            DataError,
            "same number",
        ),
    ],
)
def test_mistakes_are_explained(change, error, message):
    settings = {"kernel": linear, "tasks": make_tasks(), "ridge": 0.1, "rule": "ogd", **change}
    kernel, tasks = settings.pop("kernel"), settings.pop("tasks")
    with pytest.raises(error, match=message):
        solve_stream(kernel, tasks, **settings)


def test_task_numbers_count_from_one():
    solution = solve_stream(linear, make_tasks(), ridge=0.1)
    for wrong in (0, 4):
        with pytest.raises(SettingsError, match="tasks count from 1 to 3"):
            solution.dissimilarity(wrong)
    with pytest.raises(SettingsError, match="0 for initialisation"):
        solution.predict(torch.zeros(1, 20), after=4)


def test_gram_kernel_mistakes():
    with pytest.raises(DataError, match="square"):
        GramKernel(torch.zeros(2, 3))
    with pytest.raises(DataError, match="row numbers"):
        GramKernel(torch.eye(2)).gram(torch.tensor([0.5]))
    with pytest.raises(DataError, match="must lie in"):
        GramKernel(torch.eye(2)).gram(torch.tensor([2]))


def test_points():
    a = Points.every_logit(torch.arange(3.0)[:, None], 2)
    b = Points.labelled(torch.arange(3.0, 5.0)[:, None], torch.tensor([1, 0]))
    both = Points.concatenate([a, b])
    assert both.row_inputs().flatten().tolist() == [0, 0, 1, 1, 2, 2, 3, 4]
    assert both.logit.tolist() == [0, 1, 0, 1, 0, 1, 1, 0]
    chosen = both.select(torch.tensor([7, 1, 6]))
    assert chosen.row_inputs().flatten().tolist() == [4, 0, 3]
    assert len(chosen.inputs) == 3
    with pytest.raises(DataError, match="for all points or for none"):
        Points.concatenate([a, Points(torch.zeros(1, 1))])
    with pytest.raises(DataError, match="single number"):
        FunctionKernel(linear).gram(torch.tensor(1.0))
    assert FunctionKernel(linear).gram(torch.tensor([1.0, 2.0])).tolist() == [[1, 2], [2, 4]]


def test_wide_classifiers_that_protect_ground_truth_logits_approach_the_decoupled_limit():
    """GTL memories at finite width (all logits interact) against one recursion per logit at infinite width."""
    tasks = make_tasks(columns=3, features=5)
    labels = [
        torch.tensor([0, 1, 2, 0, 1, 2]),
        torch.tensor([0, 0, 0, 1, 1, 2]),
        torch.tensor([2, 2, 1, 1, 0, 0]),
    ]
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = {"rule": "ogd", "ridge": 0.5, "labels": labels, "initial": 0.0}
    limit = solve_stream(InfiniteWidthNTK(1, bias_variance=0.1), tasks, **settings).predict(x)
    errors = []
    for width in (64, 512, 4096):
        found = [
            solve_stream(
                EmpiricalNTK(WideMLP(5, width, 1, outputs=3, bias_variance=0.1, seed=seed), "all"),
                tasks,
                **settings,
            ).predict(x)
            for seed in range(3)
        ]
        errors.append(sum(float((one - limit).norm() / limit.norm()) for one in found) / 3)
    assert errors[0] > 1.7 * errors[1] > 1.7 * 1.7 * errors[2]


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_the_memory_that_is_asked_for_is_that_of_the_matrices(rule):
    """The joint matrix, for OGD half of it again, and four copies of the rows of the largest task."""
    needed = 8 * (18**2 * {"sgd": 2, "ogd": 3}[rule] // 2 + 4 * 18 * 6)
    settings = {"kernel": linear, "tasks": make_tasks(), "ridge": 0.1, "rule": rule}
    solve_stream(**settings, memory_limit=needed)
    with pytest.raises(SettingsError, match="fewer samples"):
        solve_stream(**settings, memory_limit=needed - 1)


def test_traces_count_every_output():
    tasks = make_tasks()
    twice = [(x, torch.stack([y, -y], 1)) for x, y in tasks]
    for rule in ("sgd", "ogd"):
        one = solve_stream(linear, tasks, rule=rule, ridge=0.1)
        two = solve_stream(linear, twice, rule=rule, ridge=0.1)
        for task in (1, 2, 3):
            assert two.effective_trace(task) == pytest.approx(2 * one.effective_trace(task), rel=1e-12)
            assert two.base_trace(task) == pytest.approx(2 * one.base_trace(task), rel=1e-12)


def test_conditioning_does_not_depend_on_the_unit_of_the_kernel():
    plain = solve_stream(linear, make_tasks(), rule="ogd").conditioning()
    scaled = solve_stream(lambda x, z: 1e4 * linear(x, z), make_tasks(), rule="ogd").conditioning()
    assert scaled.smallest_pivot == pytest.approx(plain.smallest_pivot, rel=1e-9)
    assert scaled.smallest_pivot < 1


def test_an_initial_function_of_several_outputs_is_where_learning_starts():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    start = lambda points: torch.stack([points.inputs[:, 0], 3 * points.inputs[:, 1]], 1)  # noqa: E731
    solution = solve_stream(lambda a, b: a @ b.T, [(x, y)], ridge=1.0, initial=start)
    assert torch.equal(solution.predict(x, after=0), start(Points(x)))
    moved = solve_stream(lambda a, b: a @ b.T, [(x, y - start(Points(x)))], ridge=1.0, initial=0.0)
    assert torch.allclose(solution.predict(x), start(Points(x)) + moved.predict(x))
    one = solve_stream(lambda a, b: a @ b.T, [(x, y)], ridge=1.0, initial=lambda points: points.inputs[:, 0])
    assert torch.equal(one.predict(x, after=0), x[:, :1].expand(3, 2))


def test_points_come_back_with_all_their_outputs():
    tasks = make_tasks(columns=3)
    solution = solve_stream(linear, tasks, ridge=0.1)
    x = tasks[0][0]
    assert solution.predict(Points(x)).shape == (6, 3)
    assert torch.equal(solution.predict(Points(x)), solution.predict(x))
    one = solve_stream(linear, make_tasks(), ridge=0.1)
    assert one.predict(Points(x)).shape == (6,)


def test_targets_of_two_logits_must_have_two_columns():
    kernel = EmpiricalNTK(torch.nn.Linear(4, 2), "all")
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for shape in ((6,), (6, 1), (6, 4)):
        with pytest.raises(DataError, match="this kernel has 2 outputs"):
            solve_stream(kernel, [(x, torch.zeros(shape))], ridge=1.0)
    assert solve_stream(kernel, [(x, torch.zeros(6, 2))], ridge=1.0).predict(x).shape == (6, 2)


@pytest.mark.parametrize("outputs", [2, 3])
def test_labels_of_a_network_protect_the_logits_they_name(outputs):
    """The same as to name the rows of these logits."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, outputs)
        ).double()
    kernel = EmpiricalNTK(model, "all")
    tasks = make_tasks(2, 5, 4, columns=outputs)
    labels = [torch.arange(5) % outputs, torch.arange(5).flip(0) % outputs]
    found = solve_stream(kernel, tasks, ridge=0.1, labels=labels)
    rows = [torch.arange(5) * outputs + label for label in labels]
    wanted = solve_stream(kernel, tasks, ridge=0.1, memory=rows)
    assert found.rank(2) == wanted.rank(2) == 5
    for x, _ in tasks:
        torch.testing.assert_close(found.predict(x), wanted.predict(x))
    moved = (found.predict(tasks[0][0]) - found.predict(tasks[0][0], after=1)).abs()
    assert float(moved.gather(1, labels[0][:, None]).max()) < 1e-9 < 1e-3 < float(moved.max())
