"""`orthocl theory`: the closed form, bounds, orders and overlays on any stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
import torch
from cyclopts import Parameter
from torch import Tensor

from orthocl.cli.theory_setup import DataRoot, OrderSetup, OverlaySetup, Setup, load_tasks, make_kernel
from orthocl.cli.theory_tables import emit, number_or_none, progress_bar, say_where
from orthocl.errors import SettingsError
from orthocl.methods import make_method
from orthocl.nets import make_net
from orthocl.streams import make
from orthocl.theory import (
    Bound,
    Curriculum,
    Order,
    Solution,
    complexity_terms,
    curriculum_claims,
    empirical_loss,
    figures,
    forgetting_drift,
    generalisation_bound,
    gradient_alignment,
    overlay,
    solve_stream,
)
from orthocl.theory.targets import RegressionTask, accuracy
from orthocl.training import TrainSettings
from orthocl.training.theory_bridge import train_with_theory

app = cyclopts.App(
    name="theory", help="Continual learning in closed form: solve, bound, order, overlay, bridge."
)


Rule = Annotated[Literal["sgd", "ogd"], Parameter(help="Gradient descent, or its projection off the memory.")]
MemoryOption = Annotated[int | None, Parameter(help="Samples per task to remember; all by default.")]
FigurePath = Annotated[Path | None, Parameter(help="Save a figure here: .svg, .pdf or .png.")]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON instead of tables.", negative="")]
StreamName = Annotated[
    str, Parameter(help="A stream by name; `orthocl data status` says which data are there.")
]
Widths = Annotated[tuple[int, ...], Parameter(help="Hidden units.", consume_multiple=True)]
DEFAULT_STREAM = "rotated-mnist-mini"


def _solve(
    setup: Setup, tasks: Sequence[RegressionTask], rule: Literal["sgd", "ogd"], memory: int | None
) -> Solution:
    with progress_bar("solving", len(tasks)) as advance:
        return solve_stream(
            make_kernel(setup, tasks),
            [(task.inputs, task.targets) for task in tasks],
            rule=rule,
            ridge=setup.ridge,
            memory=memory,
            progress=advance,
        )


def _accuracies(solution: Solution, tasks: Sequence[RegressionTask]) -> Tensor:
    """Test accuracy of every task (columns) at initialisation and after every task (rows)."""
    columns = []
    with progress_bar("testing", len(tasks)) as advance:
        for task in tasks:
            trajectory = solution.trajectory(task.test_inputs)
            columns.append([accuracy(outputs, task.test_targets) for outputs in trajectory])
            advance(len(columns))
    return torch.tensor(columns, dtype=torch.float64).T


@app.command
def solve(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    memory: MemoryOption = None,
    setup: Setup | None = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Learn a stream in closed form: dissimilarities, distances, learning rates, accuracies, drift.

    Columns: S is the dissimilarity to what came before, step and total are ||w_t - w_{t-1}|| and
    ||w_t - w_0||, max lr the largest stable rate, R the task's term of the complexity proxy, mse the error on its
    training points in the end, then and now its test accuracy after its own and after the last task, kept and
    others the largest change since then of remembered and of other training outputs.

    Example: orthocl theory solve rotated-mnist-mini --rule ogd --samples 200 --figure solve.svg
    """
    setup = setup or Setup()
    if figure is not None:
        figures.check_path(figure)
    tasks = load_tasks(stream, setup)
    solution = _solve(setup, tasks, rule, memory)
    accuracies = _accuracies(solution, tasks)
    drifts = {drift.task: drift for drift in forgetting_drift(solution)}
    terms = complexity_terms(solution)
    rows = []
    for number in range(1, len(tasks) + 1):
        drift = drifts.get(number)
        rows.append(
            {
                "task": number,
                "S": solution.dissimilarity(number),
                "step": solution.distance(number),
                "total": solution.distance_from_initialisation(number),
                "max_lr": solution.max_learning_rate(number),
                "R": terms[number - 1],
                "mse": empirical_loss(solution, number),
                "then": float(accuracies[number, number - 1]),
                "now": float(accuracies[-1, number - 1]),
                "kept": None if drift is None or drift.remembered != drift.remembered else drift.remembered,
                "others": None if drift is None or drift.others != drift.others else drift.others,
            }
        )
    extra = {
        "complexity_proxy_R_T": sum(terms),
        "average_accuracy": float(accuracies[-1].mean()),
        "accuracies": accuracies.tolist(),
        "gradient_alignment": [asdict(each) for each in gradient_alignment(solution, len(tasks))]
        if rule == "ogd"
        else [],
        "tasks": [task.name for task in tasks],
        "rule": rule,
        "ridge": setup.ridge,
    }
    emit(f"{stream}, {rule}, ridge {setup.ridge:g}, {setup.kernel} kernel", rows, extra, json_output)
    if figure is not None:
        dissimilarities = [float(row["S"]) for row in rows]  # type: ignore[arg-type]
        distances = [float(row["total"]) for row in rows]  # type: ignore[arg-type]
        figures.save(figures.solution_figure(accuracies, dissimilarities, distances), figure)
        say_where(figure)


@app.command
def bound(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    memory: MemoryOption = None,
    delta: Annotated[float, Parameter(help="Probability that the bound may fail.")] = 0.05,
    form: Annotated[
        Literal["sound", "sequential", "printed"],
        Parameter(help="A bound, a sharper one for independent samples, or Theorem 3."),
    ] = "sound",
    unit_radius: Annotated[float, Parameter(help="B_0, chosen before the data.")] = 1.0,
    setup: Setup | None = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Bound the risk on every task after the last one, beside the risk measured on test data.

    The loss is min(1, squared error), which is at least the 0-1 error of +-1 targets. With form "printed" the
    inequalities of the paper that fail on these data are named.

    Example: orthocl theory bound --samples 1000 --ridge 100 --tasks 3
    """
    setup = setup or Setup()
    if figure is not None:
        figures.check_path(figure)
    tasks = load_tasks(stream, setup)
    solution = _solve(setup, tasks, rule, memory)
    bounds: list[Bound] = []
    rows: list[dict[str, Any]] = []
    for number, task in enumerate(tasks, start=1):
        found = generalisation_bound(solution, task=number, delta=delta, form=form, unit_radius=unit_radius)
        outputs = solution.predict(task.test_inputs).reshape(len(task.test_inputs), -1)
        errors = (outputs - task.test_targets.reshape(outputs.shape)).square().sum(1)
        row: dict[str, Any] = {"task": number, **found.terms, "bound": found.value}
        row["risk"] = float(errors.clamp(max=1).mean())
        row["error"] = 1 - accuracy(solution.predict(task.test_inputs), task.test_targets)
        if form != "printed":
            row["vacuous"] = found.value >= 1
        else:
            row["fails"] = len(found.failures)
        bounds.append(found)
        rows.append(row)
    checks = [
        {"task": each.task, **asdict(check), "holds": check.holds} for each in bounds for check in each.checks
    ]
    extra: dict[str, Any] = {
        "form": form,
        "delta": delta,
        "rule": rule,
        "ridge": setup.ridge,
        "checks": checks,
    }
    emit(f"{form} bound after task {len(tasks)}, {stream}, {rule}", rows, extra, json_output)
    if not json_output:
        for each in bounds:
            for check in each.failures:
                print(f"fails: {check.label}: {check.claim}, but {check.actual:.4g} > {check.printed:.4g}")
    if figure is not None:
        risks, wrong = [row["risk"] for row in rows], [row["error"] for row in rows]
        figures.save(figures.bound_figure(bounds, risks, wrong), figure)
        say_where(figure)


@app.command
def order(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    memory: MemoryOption = None,
    method: Annotated[
        Literal["auto", "subsets", "exhaustive", "beam"], Parameter(help="How to search.")
    ] = "auto",
    setup: OrderSetup | None = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Find the order of tasks with the smallest complexity proxy, and compare it with simple recipes.

    Exact for OGD that remembers everything, without ridge, and for up to 6 tasks; otherwise a search.

    Example: orthocl theory order permuted-mnist-mini --tasks 8 --samples 20
    """
    setup = setup or OrderSetup()
    if figure is not None:
        figures.check_path(figure)
    tasks = load_tasks(stream, setup)
    kernel = make_kernel(setup, tasks)
    data = [(task.inputs, task.targets) for task in tasks]
    curriculum = Curriculum(kernel, data, rule=rule, ridge=setup.ridge, memory=memory)
    with progress_bar("searching") as advance:
        best = curriculum.best_order(method, progress=advance)
    given = tuple(range(1, len(tasks) + 1))
    recipes: list[Callable[[], Order]] = [
        lambda: Order(given, curriculum.complexity(given), "as given"),
        curriculum.greedy_order,
        curriculum.neighbours_order,
        lambda: curriculum.neighbours_order(similar=False),
    ]
    orders = [best]
    with progress_bar("comparing", len(recipes) + 1) as advance:
        for recipe in recipes:
            orders.append(recipe())
            advance(len(orders) - 1)
        table = curriculum.dissimilarity_matrix()
    rows = [
        {
            "order": each.method,
            "tasks": list(each.tasks),
            "R_T": each.complexity,
            "above_best": each.complexity / best.complexity - 1 if best.complexity > 0 else 0.0,
            "exact": each.exact,
        }
        for each in orders
    ]
    extra: dict[str, Any] = {"dissimilarity": table.tolist(), "rule": rule, "ridge": setup.ridge}
    if len(tasks) >= 2:
        claims = curriculum_claims(kernel, data[:2], rule=rule, ridge=setup.ridge, memory=memory)
        extra["ABAB"], extra["AABB"] = claims.alternating, claims.blocked
        extra["the_paper's_claim_that_alternating_two_tasks_costs_more"] = claims.verdict
    emit(f"orders of {len(tasks)} tasks, {stream}, {rule}, ridge {setup.ridge:g}", rows, extra, json_output)
    if figure is not None:
        figures.save(figures.order_figure(table, orders), figure)
        say_where(figure)


@app.command(name="overlay")
def overlay_command(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    widths: Widths = (32, 128, 512),
    steps: Annotated[int, Parameter(help="Full-batch steps per task.")] = 200,
    setup: OverlaySetup | None = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Train real networks of growing width and lay the closed form over their outputs.

    Columns: root mean square of trained minus predicted outputs on test samples, for the kernel of the network at
    its start and for the infinitely wide one, and the relative distance between these kernels. All fall with width.

    Example: orthocl theory overlay --widths 64 256 1024 --figure overlay.svg
    """
    setup = setup or OverlaySetup()
    if figure is not None:
        figures.check_path(figure)
    if setup.target == "one-hot":
        raise SettingsError("the overlay compares one output: use --target parity or a class number")
    if setup.tasks < 1 or steps < 1 or not widths:
        raise SettingsError("expected at least one task, one step and one width")
    tasks = load_tasks(stream, setup)
    done = 0
    with progress_bar("training", len(widths) * len(tasks)) as advance:

        def step(width: int, task: int) -> None:
            nonlocal done
            done += 1
            advance(done)

        found = overlay(
            [(task.inputs.flatten(1), task.targets) for task in tasks],
            tasks[0].test_inputs.flatten(1),
            widths=widths,
            depth=setup.depth,
            rule=rule,
            ridge=setup.ridge,
            steps=steps,
            bias_variance=setup.bias_variance,
            seed=setup.seed,
            progress=step,
        )
    rows = [
        {
            "width": one.width,
            "rms_to_own_closed_form": one.error,
            "rms_to_infinite_width": one.infinite_error,
            "kernel_distance": one.kernel_error,
        }
        for one in found
    ]
    emit(f"trained networks and their closed form, {stream}, {rule}", rows, {"rule": rule}, json_output)
    if figure is not None:
        figures.save(figures.overlay_figure(found), figure)
        say_where(figure)


@app.command(name="bridge")
def bridge_command(
    stream: StreamName = "permuted-mnist-mini",
    *,
    method: Annotated[str, Parameter(help="A method by name; predictions are for plain SGD.")] = "sgd",
    net: Annotated[str, Parameter(help="A network by name.")] = "mlp",
    epochs: Annotated[int, Parameter(help="Passes over each task.")] = 20,
    learning_rate: Annotated[float, Parameter(help="Of SGD.")] = 0.05,
    train_size: Annotated[int | None, Parameter(help="Training samples per task; all by default.")] = 300,
    loss: Annotated[
        Literal["squared", "cross-entropy"], Parameter(help="Squared is the theory's own.")
    ] = "squared",
    tasks: Annotated[int, Parameter(help="Tasks of the stream to use.")] = 5,
    samples: Annotated[int, Parameter(help="Samples per task for the theory (all logits of each).")] = 300,
    ridge: Annotated[
        float | None, Parameter(help="Of the closed form; by default from early stopping.")
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of data, weights and batches.")] = 0,
    data_root: DataRoot = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Train a network and put dissimilarity, predicted forgetting and tangent drift beside what happened.

    Columns: S per sample is the dissimilarity to what came before, max lr the largest rate at which full-batch
    descent on the summed squares is stable, tangent cosine and growth compare the tangents after the task with
    those after the last one (1: they did not move), forgetting is the accuracy lost on its training samples and
    predicted what the closed form says of plain SGD.

    Example: orthocl theory bridge --method ogd --figure bridge.svg
    """
    if figure is not None:
        figures.check_path(figure)
    made = make(stream, tasks=tasks, seed=seed, data_root=data_root, train_size=train_size)
    model = make_net(net, made.input_shape, made.heads, seed=seed)
    settings = TrainSettings(epochs=epochs, learning_rate=learning_rate)
    with progress_bar("training and comparing", 2 * len(made)) as advance:
        report, _ = train_with_theory(
            model,
            made,
            make_method(method),
            settings,
            loss=loss,
            samples=samples,
            ridge=ridge,
            seed=seed,
            on_task=advance,
            on_theory=lambda task: advance(len(made) + task),
        )
    rows = [
        {
            "task": task.task,
            "S_per_sample": task.dissimilarity,
            "max_lr": task.learning_rate,
            "tangent_cosine": task.tangent_cosine,
            "tangent_growth": task.tangent_growth,
            "forgetting": task.forgetting,
            "predicted": task.predicted_forgetting,
        }
        for task in report.tasks
    ]
    extra: dict[str, Any] = {
        "measured_change_over_predicted_(median)": number_or_none(report.ratio()),
        "correlation_of_log_changes": number_or_none(report.correlation()),
        "pairs": [asdict(pair) for pair in report.pairs],
        "method": method,
    }
    emit(f"theory beside practice, {stream}, {method}", rows, extra, json_output)
    if figure is not None:
        figures.save(figures.bridge_figure(report), figure)
        say_where(figure)
