"""`orthocl theory solve`: a stream in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orthocl.cli.help_only import HELP_ONLY
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
from orthocl.cli.theory.tables import (
    check_figure,
    emit,
    finish,
    number_or_none,
    print_table,
    progress_bar,
)

if not HELP_ONLY:
    import torch
    from torch import Tensor

    from orthocl.theory import (
        Alignment,
        Solution,
        complexity_terms,
        empirical_loss,
        figures,
        forgetting_drift,
        gradient_alignment,
    )
    from orthocl.theory.regression_targets import RegressionTask, accuracy


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
    ||w_t - w_0||, max lr the largest stable rate, R the task's term of the complexity proxy, mse the final error on its
    training points, then and now its test accuracy after its own and after the last task, kept and others the largest
    change since then of remembered and of other training outputs.

    With OGD a second table shows Proposition 1: the gradient g of the last task as it begins, and OGD's step P g,
    compared with the gradient h of the loss on each earlier task's memory.

    Example: orthocl theory solve rotated-mnist-mini --rule ogd --samples 200 --figure solve.svg
    """
    setup = setup or Setup()
    check_figure(figure)
    tasks = load_tasks(stream, setup)
    solution = solve_tasks(setup, tasks, rule, memory)
    accuracies = _accuracies(solution, tasks)
    rows = _rows(solution, accuracies)
    with progress_bar("aligning"):
        alignment = gradient_alignment(solution, len(tasks)) if rule == "ogd" else []
    conditioning = solution.conditioning()
    extra = {
        "remembered_points_turned_away_as_dependent": conditioning.dropped,
        "smallest_pivot": conditioning.smallest_pivot,
        "relative_error_by_rounding": conditioning.error,
        "complexity_proxy_R_T": sum(row["R"] for row in rows),
        "average_accuracy": float(accuracies[-1].mean()),
        "accuracies": accuracies.tolist(),
        "gradient_alignment": [asdict(each) for each in alignment],
        "tasks": [task.name for task in tasks],
        "rule": rule,
        "ridge": setup.ridge,
    }
    emit(f"{stream}, {rule}, ridge {setup.ridge:g}, {setup.kernel} kernel", rows, extra, json_output)
    if alignment and not json_output:
        _print_alignment(alignment, len(tasks))
    dissimilarities, distances = [row["S"] for row in rows], [row["total"] for row in rows]
    finish(figure, lambda: figures.solution_figure(accuracies, dissimilarities, distances))


def _accuracies(solution: Solution, tasks: Sequence[RegressionTask]) -> Tensor:
    """Test accuracy of every task (columns) at initialisation and after every task (rows)."""
    columns = []
    with progress_bar("testing", len(tasks)) as advance:
        for task in tasks:
            trajectory = solution.trajectory(task.test_inputs)
            columns.append([accuracy(outputs, task.test_targets) for outputs in trajectory])
            advance(len(columns))
    return torch.tensor(columns, dtype=torch.float64).T


def _rows(solution: Solution, accuracies: Tensor) -> list[dict[str, Any]]:
    """The table's row for each task."""
    with progress_bar("measuring"):
        drifts = {drift.task: drift for drift in forgetting_drift(solution)}
        terms = complexity_terms(solution)
        rows = []
        for number, term in enumerate(terms, start=1):
            drift = drifts.get(number)
            rows.append(
                {
                    "task": number,
                    "S": solution.dissimilarity(number),
                    "step": solution.distance(number),
                    "total": solution.distance_from_initialisation(number),
                    "max_lr": solution.max_learning_rate(number),
                    "R": term,
                    "mse": empirical_loss(solution, number),
                    "then": float(accuracies[number, number - 1]),
                    "now": float(accuracies[-1, number - 1]),
                    "kept": None if drift is None else number_or_none(drift.remembered),
                    "others": None if drift is None else number_or_none(drift.others),
                }
            )
    return rows


def _print_alignment(alignment: Sequence[Alignment], task: int) -> None:
    """Proposition 1 as a table."""
    rows = [
        {
            "task": each.task,
            "|h|": each.memory_gradient,
            "cos(h, g)": each.plain,
            "cos(h, P g)": each.projected,
            "cos(P g, A-GEM's step)": each.steps,
        }
        for each in alignment
    ]
    print(f"\nProposition 1: OGD's first step P g on task {task}, and gradients h on the memories")
    print_table("", rows)
