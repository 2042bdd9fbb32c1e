"""`orthocl run`: an experiment from a file, or one from flags."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.markup import escape

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import (
    DEFAULT_STORE,
    DataRootOption,
    MetricOption,
    OnlyOption,
    SeedOption,
    SetOption,
    StoreOption,
    TableFormat,
    YesOption,
    agree,
    agree_to_programs,
    check_jobs,
    make_folder,
    working,
)
from orthocl.cli.output import Terminal, manners, new_table, remark, remarks, say, show, suggest
from orthocl.cli.output import report as facts
from orthocl.cli.output import results as show_on
from orthocl.errors import SettingsError, UnlikelyError
from orthocl.formatting import counted, time_text

if not HELP_ONLY:
    from orthocl.lab.executors.local import threads_per_run
    from orthocl.lab.executors.process import start_seconds
    from orthocl.lab.experiment.experiment import Experiment, load_experiment, make_experiment
    from orthocl.lab.forecast import Forecast, forecast
    from orthocl.lab.laboratory import Results, run_experiment
    from orthocl.lab.reporting.findings import find
    from orthocl.lab.reporting.groups import group_runs
    from orthocl.lab.reporting.identical import identical_seeds
    from orthocl.lab.reporting.report import write_report
    from orthocl.lab.reporting.table import make_table
    from orthocl.lab.run.execute import RunOptions
    from orthocl.lab.store.store import Store

app = App(name="run")


@app.default
def run(
    file: Annotated[Path | None, Parameter(help="Experiment file (TOML).")] = None,
    *,
    stream: Annotated[list[str] | None, Parameter(help="Without FILE: a stream, may be repeated.")] = None,
    method: Annotated[list[str] | None, Parameter(help="Without FILE: a method, may be repeated.")] = None,
    net: Annotated[str | None, Parameter(help="Without FILE: a network; mlp by default.")] = None,
    seed: SeedOption = None,
    only: OnlyOption = None,
    set_: SetOption = None,
    jobs: Annotated[
        int | None, Parameter(help="Runs at a time; all cores by default; 0: in this process.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    backend: Annotated[str, Parameter(help="Where to run: local, ray or slurm.")] = "local",
    backend_set: Annotated[
        list[str] | None, Parameter(help="KEY=VALUE for the backend, may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool,
        Parameter(
            negative="",
            help="Show what would run, and for how long. It asks before it runs parts that FILE names.",
        ),
    ] = False,
    metric: MetricOption = None,
    table: Annotated[TableFormat, Parameter(name="--table", help="Format of the table.")] = "terminal",
    report: Annotated[Path | None, Parameter(help="Write an HTML report to this file.")] = None,
    tracker: Annotated[
        list[str] | None, Parameter(help="Report to tensorboard, wandb or mlflow, may be repeated.")
    ] = None,
    forecast_tasks: Annotated[
        bool,
        Parameter(
            name="--forecast", negative="", help="Before each task, forecast what it will make forget."
        ),
    ] = False,
    certificate: Annotated[
        bool, Parameter(negative="", help="Certify what the last task changed on earlier ones.")
    ] = False,
    weights: Annotated[bool, Parameter(help="Keep the final weights of every run.")] = True,
    data_root: DataRootOption = None,
    yes: YesOption = False,
) -> int:
    """Run an experiment from a file or from flags.

    Finished runs are not repeated; after a crash or Ctrl-C the same command resumes the rest.

    From a file: orthocl run experiments/quick.toml --jobs 2

    From flags: orthocl run --stream rotated-mnist-mini --method sgd --method ogd+ --seed 1 --set train.epochs=2

    With your own parts: orthocl run --stream photos/ --net my_net.py:build --method my_method.py:Leash
    """
    if dry_run and file is not None:
        agree_to_programs(file, "even a dry run", yes)
    experiment = sized(
        lambda any_size: _experiment(file, stream, method, net, seed, only, set_, any_size), yes
    )
    options = RunOptions(
        keep_weights=weights,
        data_root=None if data_root is None else str(data_root),
        trackers=tuple(tracker or ()),
        forecast=forecast_tasks,
        certificate=certificate,
    )
    if options.trackers:
        from orthocl.lab.reporting.trackers import check_trackers

        check_trackers(options.trackers)
    make_table((), metric or experiment.metrics)  # an unknown metric is an error now, not after hours
    at_once = check_jobs(jobs)
    if dry_run:
        _show_plan(experiment, Store(store), options, at_once, backend)
        return 0
    make_folder(report)
    results = run_experiment(
        experiment,
        Store(store),
        jobs=at_once,
        backend=backend,
        backend_settings=backend_options(backend_set),
        options=options,
        console=remarks(),
    )
    show_results(results, metric or experiment.metrics, table)
    if report is not None and results.pairs:
        with working("drawing the report"):
            path = write_report(
                report,
                results.pairs,
                title=experiment.name,
                description=experiment.description,
                metrics=metric or experiment.metrics,
                failures=results.failures,
                store=Store(store),
                command=_again(file, report),
            )
        remark(f"report: {path}")
        facts(report=str(path))
    suggest(_next(file, report, results, store))
    if any(outcome.status == "interrupted" for outcome in results.outcomes):
        raise KeyboardInterrupt  # runs received a Ctrl-C that this process missed
    return 1 if results.failures else 0


def _experiment(
    file: Path | None,
    stream: list[str] | None,
    method: list[str] | None,
    net: str | None,
    seed: list[int] | None,
    only: list[str] | None,
    changes: list[str] | None,
    any_size: bool,
) -> Experiment:
    if file is not None:
        if stream or method or net:
            raise SettingsError(
                "an experiment file names its streams, methods and nets: use --only to choose among them"
            )
        with working(f"reading {file}"):
            return load_experiment(
                file, only=only or (), seeds=seed or (), overrides=changes or (), any_size=any_size
            )
    if not stream or not method:
        raise SettingsError(
            "give an experiment file, or at least one --stream and one --method (see `orthocl list streams`)"
        )
    content = {"name": "run", "streams": stream, "methods": method, **({"net": {"name": net}} if net else {})}
    return make_experiment(
        content, only=only or (), seeds=seed or (), overrides=changes or (), any_size=any_size
    )


def sized(read: Callable[[bool], Experiment], yes: bool) -> Experiment:
    """An experiment, after asking if its size can hardly be meant.

    Args:
        read: reads it; its argument says whether any size is allowed.
        yes: do not ask.
    """
    try:
        return read(yes)
    except UnlikelyError as error:
        agree(str(error), yes)
    return read(True)


def _next(file: Path | None, report: Path | None, results: Results, store: Path) -> str:
    """What somebody would do after this experiment."""
    place = "" if store == DEFAULT_STORE else f" --store {shlex.quote(str(store))}"
    if results.failures or not results.pairs:
        return f"orthocl runs list{place} shows what failed; the same command tries again"
    if report is not None:
        return f"open {report}"
    what = "" if file is None else f" {shlex.quote(str(file))}"
    return f"orthocl report{what}{place} makes a page of it; orthocl runs list{place}"


def _again(file: Path | None, report: Path) -> str:
    """The command that makes the same report from the experiment's file."""
    return "" if file is None else f"orthocl run {shlex.quote(file.name)} --report {shlex.quote(report.name)}"


def backend_options(texts: Sequence[str] | None) -> dict[str, object]:
    """Settings of a backend from KEY=VALUE texts."""
    from orthocl.lab.experiment.file import toml_value

    settings: dict[str, object] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"expected KEY=VALUE for --backend-set, got {text!r}")
        settings[key.strip()] = toml_value(value.strip())
    return settings


def show_results(
    results: Results,
    metrics: Sequence[str],
    kind: Literal["terminal", "markdown", "latex", "csv", "json"] = "terminal",
) -> None:
    """Print the table, what it says, and what is missing from it and why."""
    errors = Terminal(stderr=True)
    if results.pairs:
        findings = [finding.headline for finding in find(group_runs(results.pairs))]
        made = make_table(results.pairs, metrics)
        if kind == "terminal" or manners().json:
            show(made.rich(), made.to_values())
            facts(findings=findings)
            for sentence in findings:
                say(sentence)
        else:
            print(made.render(kind).rstrip("\n"))
        for row in made.rows:
            if row.note:
                text = (
                    f"[yellow]unsupported[/] {escape(row.stream)} / {escape(row.method)}: {escape(row.note)}"
                )
                errors.print(text, highlight=False, soft_wrap=True)
    for warning in identical_seeds(results.pairs):
        errors.print(f"[yellow]warning[/] {escape(warning)}", highlight=False, soft_wrap=True)
    facts(failures=[{"run": each.settings.label, "reason": each.reason} for each in results.failures])
    for failure in results.failures:
        text = f"[red]failed[/] {escape(failure.settings.label)}: {escape(failure.reason)}"
        errors.print(text, highlight=False, soft_wrap=True)


def _show_plan(experiment: Experiment, store: Store, options: RunOptions, jobs: int, backend: str) -> None:
    console = show_on()
    with working("looking at the store, and timing a few steps of what is not there"):
        plans = forecast(experiment.runs, store, options)
        start = 0.0
        if backend == "local" and any(plan.seconds for plan in plans):
            start = start_seconds()  # as long as this command takes to start
    table = new_table("stream", "method", "seeds", "state", "each about", "from", right=["each about"])
    for same in _alike(plans):
        plan, settings = same[0], same[0].settings
        table.add_row(
            escape(settings.stream_label),
            escape(settings.method_label),
            ", ".join(str(each.settings.seed) for each in same),
            plan.state or "no data",
            "" if plan.seconds is None else time_text(plan.seconds) if plan.seconds else "–",
            _basis(plan),
        )
    show(table, [_plan_row(plan) for plan in plans])
    for note in dict.fromkeys(plan.note for plan in plans if plan.note):
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    count = Counter(plan.state or "no data" for plan in plans)
    parts = ", ".join(f"{number} {state}" for state, number in count.items())
    console.print(
        f"{counted(len(plans), 'run')}: {parts}. {_time_needed(plans, start, max(1, jobs), backend)}",
        highlight=False,
    )
    suggest("the same command without --dry-run")


def _alike(plans: Sequence[Forecast]) -> list[list[Forecast]]:
    """Runs that differ in their seed alone, with the same forecast; in the order of their first."""
    found: dict[object, list[Forecast]] = {}
    for plan in plans:
        key = (replace(plan.settings, seed=0), plan.state, plan.seconds, plan.basis)
        found.setdefault(key, []).append(plan)
    return list(found.values())


def _plan_row(plan: Forecast) -> dict[str, object]:
    settings = plan.settings
    return {
        "stream": settings.stream_label,
        "method": settings.method_label,
        "seed": settings.seed,
        "state": plan.state or "no data",
        "seconds": plan.seconds,
        "low": plan.low,
        "high": plan.high,
        "note": plan.note,
    }


def _basis(plan: Forecast) -> str:
    """What a forecast is based on, in words."""
    if plan.basis == "record":
        return counted(plan.count, "record")
    return counted(plan.count, "step") if plan.basis else ""


def _time_needed(plans: Sequence[Forecast], start: float, jobs: int, backend: str) -> str:
    """How long the runs will take in total, and what that includes."""
    needed = [plan.seconds for plan in plans if plan.seconds]
    if not needed:
        return (
            "Nothing can be run." if any(plan.seconds is None for plan in plans) else "Nothing is left to do."
        )
    low = [plan.low for plan in plans if plan.seconds]
    high = [plan.high for plan in plans if plan.seconds]
    if backend != "local":
        return (
            f"About {time_text(sum(needed))} of computing (between {time_text(sum(low))} and "
            f"{time_text(sum(high))}), not counting starting workers and waiting for them."
        )
    busy = min(jobs, len(needed))

    def wall(times: Sequence[float]) -> str:
        return time_text(start + max(sum(times) / busy, max(times)))

    share = f", {time_text(start)} of it to start" if start else ""
    threads = counted(threads_per_run(busy), "thread")
    return (
        f"About {wall(needed)} with {busy} at a time, {threads} each{share}; "
        f"expect between {wall(low)} and {wall(high)}."
    )
