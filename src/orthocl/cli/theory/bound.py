"""`orthocl theory bound`: the bounds on the risk beside what is measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from orthocl.cli.theory.setup import (
    DEFAULT_STREAM,
    AsJson,
    FigurePath,
    MemoryOption,
    Rule,
    Setup,
    StreamName,
    load_tasks,
    solve_tasks,
)
from orthocl.cli.theory.tables import check_figure, emit, progress_bar, save_figure
from orthocl.theory import Bound, Solution, figures, generalisation_bound
from orthocl.theory.regression_targets import RegressionTask, accuracy

Form = Annotated[
    Literal["sound", "sequential", "printed"],
    Parameter(help="A bound, a sharper one for independent samples, or Theorem 3."),
]


def bound(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    memory: MemoryOption = None,
    delta: Annotated[float, Parameter(help="Probability that the bound may fail.")] = 0.05,
    form: Form = "sound",
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
    check_figure(figure)
    tasks = load_tasks(stream, setup)
    solution = solve_tasks(setup, tasks, rule, memory)
    bounds: list[Bound] = []
    rows: list[dict[str, Any]] = []
    with progress_bar("bounding", len(tasks)) as advance:
        for number, task in enumerate(tasks, start=1):
            bounds.append(
                generalisation_bound(solution, task=number, delta=delta, form=form, unit_radius=unit_radius)
            )
            rows.append(_row(bounds[-1], solution, task, form))
            advance(number)
    checks = [
        {"task": each.task, **asdict(check), "holds": check.holds} for each in bounds for check in each.checks
    ]
    extra = {"form": form, "delta": delta, "rule": rule, "ridge": setup.ridge, "checks": checks}
    emit(f"{form} bound after task {len(tasks)}, {stream}, {rule}", rows, extra, json_output)
    if not json_output:
        for each in bounds:
            for check in each.failures:
                print(f"fails: {check.label}: {check.claim}, but {check.actual:.4g} > {check.printed:.4g}")
    if figure is not None:
        risks, wrong = [row["risk"] for row in rows], [row["error"] for row in rows]
        save_figure(figures.bound_figure(bounds, risks, wrong), figure)


def _row(found: Bound, solution: Solution, task: RegressionTask, form: str) -> dict[str, Any]:
    """The terms of a bound, their sum, and what the test data say."""
    predicted = solution.predict(task.test_inputs)
    outputs = predicted.reshape(len(task.test_inputs), -1)
    errors = (outputs - task.test_targets.reshape(outputs.shape)).square().sum(1)
    row: dict[str, Any] = {"task": found.task, **found.terms, "bound": found.value}
    row["risk"] = float(errors.clamp(max=1).mean())
    row["error"] = 1 - accuracy(predicted, task.test_targets)
    if form != "printed":
        row["vacuous"] = found.value >= 1
    else:
        row["fails"] = len(found.failures)
    return row
