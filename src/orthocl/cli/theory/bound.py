"""`orthocl theory bound`: bounds on the risk, and what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from cyclopts import Parameter

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
from orthocl.cli.theory.tables import check_figure, emit, finish, progress_bar
from orthocl.errors import SettingsError

if not HELP_ONLY:
    from orthocl.theory import (
        Bound,
        BoundSettings,
        Certificate,
        Solution,
        certify,
        figures,
        generalisation_bound,
    )
    from orthocl.theory.hold_out import HeldOut
    from orthocl.theory.regression_targets import RegressionTask, accuracy

Form = Annotated[
    Literal["all", "sound", "one-ball", "pac-bayes", "hold-out", "printed"],
    Parameter(help="All valid forms and the smallest; one of them; or Theorem 3 as printed."),
]


def bound(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    memory: MemoryOption = None,
    delta: Annotated[float, Parameter(help="Probability that the bounds may fail.")] = 0.05,
    form: Form = "all",
    held_out: Annotated[float, Parameter(help="Share of the samples kept out of training.")] = 0.1,
    unit_radius: Annotated[float, Parameter(help="B_0, chosen before the data.")] = 1.0,
    kernel_bound: Annotated[
        float | None, Parameter(help="Upper bound of k(x, x) for every input that can occur.")
    ] = None,
    setup: Setup | None = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Bound the risk on every task after the last one, and compare with what is measured on test data.

    By default all valid forms, which hold together, the smallest of them for f itself, and what it says. The tasks are
    trained on different images, as forms other than "sound" need; "hold-out" is plain testing on samples kept out, the
    others are the theory's own. Columns named after a form bound the 0-1 error of f, except "pac-bayes": that of a draw
    around f (of f itself: twice as much). With one-hot targets "sound" and "one-ball"
    use the margin between the right output and the others. With form "printed" the inequalities of the paper that
    fail on these data are named.

    Example: orthocl theory bound --samples 1250 --ridge 10 --tasks 4
    """
    setup = setup or Setup()
    check_figure(figure)
    settings = BoundSettings(unit_radius=unit_radius, kernel_bound=kernel_bound, prior="other-samples")
    kept = _kept(setup.samples, held_out, form)
    tasks, held = _split(load_tasks(stream, setup), kept)
    solution = solve_tasks(setup, tasks, rule, memory)
    title = f"after task {len(tasks)}, {stream}, {rule}"
    extra: dict[str, Any] = {"form": form, "delta": delta, "rule": rule, "ridge": setup.ridge}
    with progress_bar("bounding", len(tasks)) as advance:
        if form == "all":
            certificates = []
            for number in range(1, len(tasks) + 1):
                sample = held[number - 1] if held else None
                found = certify(solution, task=number, delta=delta, held_out=sample, settings=settings)
                certificates.append(found)
                advance(number)
        else:
            bounds = []
            for number in range(1, len(tasks) + 1):
                sample = held[number - 1] if form == "hold-out" else None
                each = generalisation_bound(
                    solution, task=number, delta=delta, form=form, held_out=sample, settings=settings
                )
                bounds.append(each)
                advance(number)
    if form == "all":
        _print_certificates(title, certificates, solution, tasks, extra, json_output)
        picture = figures.certificate_figure(certificates, [_error(solution, task) for task in tasks])
    else:
        rows = [_row(each, solution, task) for each, task in zip(bounds, tasks, strict=True)]
        _print_bounds(f"{form} bound {title}", bounds, rows, solution, extra, json_output)
        risks, wrong = [row["risk"] for row in rows], [row["error"] for row in rows]
        picture = figures.bound_figure(bounds, risks, wrong)
    finish(figure, lambda: picture)


def _kept(samples: int, share: float, form: str) -> int:
    """How many of a task's samples are trained on."""
    if not 0 <= share < 1:
        raise SettingsError(f"expected a share of held-out samples from 0 to below 1, got {share}")
    if form not in ("all", "hold-out"):
        return samples
    out = round(share * samples)
    if out >= samples or (form == "hold-out" and out < 1):
        raise SettingsError(f"a share of {share} holds out {out} of {samples} samples: take more samples")
    return samples - out


def _split(tasks: Sequence[RegressionTask], kept: int) -> tuple[list[RegressionTask], list[HeldOut]]:
    """The first samples of each task to train on, and the others."""
    train = [replace(task, inputs=task.inputs[:kept], targets=task.targets[:kept]) for task in tasks]
    if all(len(task.inputs) > kept for task in tasks):
        return train, [(task.inputs[kept:], task.targets[kept:]) for task in tasks]
    return train, []


def _error(solution: Solution, task: RegressionTask) -> float:
    return 1 - accuracy(solution.predict(task.test_inputs), task.test_targets)


def _print_certificates(
    title: str,
    certificates: Sequence[Certificate],
    solution: Solution,
    tasks: Sequence[RegressionTask],
    extra: dict[str, Any],
    as_json: bool,
) -> None:
    rows = []
    for found, task in zip(certificates, tasks, strict=True):
        row: dict[str, Any] = {"task": found.task}
        row |= {_column(each.form): each.value for each in found.bounds}
        row |= {
            "of_f_itself": found.deterministic.deterministic,
            "by": found.deterministic.form,
            "test error": _error(solution, task),
        }
        rows.append(row)
    sentences = [found.sentence() for found in certificates]
    details = [asdict(each) for found in certificates for each in found.bounds]
    emit(
        f"valid bounds {title}",
        rows,
        extra | {"sentences": sentences, "bounds": details} if as_json else extra,
        as_json,
    )
    if not as_json:
        for found, sentence in zip(certificates, sentences, strict=True):
            print(sentence)
            if found.dependent:
                print(f"  forms that need independent samples were left out: {found.dependent}")


def _column(form: str) -> str:
    """What a form bounds, where that is not f."""
    return "pac-bayes_of_a_draw" if form == "pac-bayes" else form


def _print_bounds(
    title: str,
    bounds: Sequence[Bound],
    rows: list[dict[str, Any]],
    solution: Solution,
    extra: dict[str, Any],
    as_json: bool,
) -> None:
    checks = [
        {"task": each.task, **asdict(check), "holds": check.holds} for each in bounds for check in each.checks
    ]
    emit(title, rows, {**extra, "checks": checks}, as_json)
    if not as_json:
        print(f"bounded: {bounds[0].about}{_one_hot_note(bounds[0], solution)}")
        for each in bounds:
            for check in each.failures:
                print(f"fails: {check.label}: {check.claim}, but {check.actual:.4g} > {check.printed:.4g}")


def _one_hot_note(found: Bound, solution: Solution) -> str:
    """With several outputs the clipped square is not above the error of the largest output."""
    if found.form in ("sound", "one-ball") and solution.targets[0].numel() > solution.samples(1):
        return " (with one-hot targets at least half the error of the largest output)"
    return ""


def _row(found: Bound, solution: Solution, task: RegressionTask) -> dict[str, Any]:
    """The terms of a bound, their sum, and what the test data say."""
    predicted = solution.predict(task.test_inputs)
    outputs = predicted.reshape(len(task.test_inputs), -1)
    errors = (outputs - task.test_targets.reshape(outputs.shape)).square().sum(1)
    row: dict[str, Any] = {"task": found.task, **found.terms, "bound": found.value}
    if found.form == "pac-bayes":
        row["of_f_itself"] = found.deterministic
    row["risk"] = float(errors.clamp(max=1).mean())
    row["error"] = 1 - accuracy(predicted, task.test_targets)
    if found.form != "printed":
        row["vacuous"] = found.value >= 1
    else:
        row["fails"] = len(found.failures)
    return row
