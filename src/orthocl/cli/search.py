"""`orthocl search`: the best settings of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import (
    DEFAULT_STORE,
    DataRootOption,
    OnlyOption,
    SeedOption,
    SetOption,
    StoreOption,
    YesOption,
    agree_to_programs,
    check_jobs,
    make_folder,
    working,
)
from orthocl.cli.output import new_table, remarks, report, results, say, show, suggest
from orthocl.cli.run import backend_options, sized
from orthocl.formatting import counted

if not HELP_ONLY:
    from orthocl.lab.experiment.experiment import Experiment, load_experiment
    from orthocl.lab.laboratory import Results, run_experiment
    from orthocl.lab.reporting.figure import check_suffix, save_figure
    from orthocl.lab.run.execute import RunOptions
    from orthocl.lab.search.search import (
        SearchGroup,
        SearchResult,
        SearchSettings,
        Trial,
        find_groups,
        result_path,
        run_search,
        toml_text,
    )
    from orthocl.lab.search.sensitivity import sensitivity_figure
    from orthocl.lab.store.store import Store
    from orthocl.storage import write_output

app = App(name="search")
SHOWN = 10
TIES_SHOWN = 6


@app.default
def search(
    file: Annotated[Path, Parameter(help="Experiment file (TOML) with grids.")],
    *,
    metric: Annotated[str | None, Parameter(help="The score; average accuracy (aac) by default.")] = None,
    after: Annotated[
        list[int] | None, Parameter(help="Cut the worse candidates after this many tasks, may be repeated.")
    ] = None,
    keep: Annotated[
        float | None, Parameter(help="Share of candidates kept at each cut; half by default.")
    ] = None,
    samples: Annotated[
        int | None, Parameter(help="Draw this many points of each grid at random instead of taking all.")
    ] = None,
    seed: SeedOption = None,
    only: OnlyOption = None,
    set_: SetOption = None,
    jobs: Annotated[int | None, Parameter(help="Runs at a time; all cores by default.")] = None,
    store: StoreOption = DEFAULT_STORE,
    backend: Annotated[str, Parameter(help="Where to run: local, ray or slurm.")] = "local",
    backend_set: Annotated[
        list[str] | None, Parameter(help="KEY=VALUE for the backend, may be repeated.")
    ] = None,
    best: Annotated[Path | None, Parameter(help="Write the best settings (TOML) to this file.")] = None,
    plot: Annotated[Path | None, Parameter(help="Write the sensitivity plot: .svg, .pdf or .png.")] = None,
    dry_run: Annotated[
        bool,
        Parameter(
            negative="",
            help="Show the grids and the number of runs. It asks before it runs parts that FILE names.",
        ),
    ] = False,
    data_root: DataRootOption = None,
    yes: YesOption = False,
) -> int:
    """Search the grids of an experiment file for the best settings of each stream and method.

    The same command resumes an interrupted search. With --after, candidates that fall behind are paused, and
    the result says which and when.

    A grid is a table such as [methods.ewc.grid] with lines such as method.strength = [1.0, 10.0].

    For example: orthocl search experiments/search_mnist.toml --only rotated-mnist/ewc --plot ewc.svg
    """
    at_once = check_jobs(jobs)
    if dry_run:
        agree_to_programs(file, "even a dry run", yes)

    def read(any_size: bool) -> Experiment:
        with working(f"reading {file}"):
            return load_experiment(
                file, only=only or (), seeds=seed or (), overrides=set_ or (), any_size=any_size
            )

    experiment = sized(read, yes)
    given = {"metric": metric, "after": after, "keep": keep, "samples": samples}
    table = {**experiment.search, **{key: value for key, value in given.items() if value is not None}}
    settings = SearchSettings.from_table(table)
    options = RunOptions(keep_weights=False, data_root=None if data_root is None else str(data_root))
    result_path(Store(store), experiment.name)  # an impossible name is an error now, not after hours
    if dry_run:
        with working("sorting the candidates"):
            groups = find_groups(experiment, settings)
        _show_grids(groups, settings)
        return 0
    if plot is not None:
        check_suffix(plot)
    for output in (best, plot):
        make_folder(output)
    backend_settings = backend_options(backend_set)

    def make(part: Experiment, how: RunOptions) -> Results:
        return run_experiment(
            part,
            Store(store),
            jobs=at_once,
            backend=backend,
            backend_settings=backend_settings,
            options=how,
            console=remarks(),
        )

    result = run_search(experiment, Store(store), settings=settings, options=options, make=make)
    for group in result.groups:
        _show(result, group)
    say(result.to_toml())
    report(best=result.to_toml())
    if best is not None:
        write_output(best, result.to_toml().encode())
    if plot is not None:
        with working("drawing"):
            save_figure(sensitivity_figure(result), plot)
    saved = best or Path("best.toml")
    suggest(
        f"orthocl run {saved}"
        if best is not None
        else f"the same command with --best {saved} keeps the settings"
    )
    return 1 if any(result.best(group) is None for group in result.groups) else 0


def _show_grids(groups: list[SearchGroup], settings: SearchSettings) -> None:
    table = new_table("stream", "method", "axis", "values")
    for group in groups:
        for number, (axis, values) in enumerate(group.axes.items()):
            names = (escape(group.stream), escape(group.method)) if number == 0 else ("", "")
            table.add_row(*names, axis, ", ".join(map(toml_text, values)))
    rows = [
        {"stream": group.stream, "method": group.method, "axis": axis, "values": list(values)}
        for group in groups
        for axis, values in group.axes.items()
    ]
    show(table, rows)
    count = sum(len(trial.runs) for group in groups for trial in group.trials)
    *early, last = settings.after or (0,)
    points = ", ".join([*map(str, early), counted(last, "task")])
    cuts = f", cut after {points}" if settings.after else ""
    say(f"{counted(count, 'run')}{cuts}.")
    report(runs=count)
    suggest("the same command without --dry-run")


def _show(result: SearchResult, group: SearchGroup) -> None:
    """The best candidates, and how many of the others there were."""
    title = f"{group.stream} / {group.method}"
    table = new_table(result.settings.metric, *group.axes, title=title)
    done = [trial for trial in group.trials if trial.status == "finished"]
    for trial in sorted(done, key=lambda trial: -result.rank(trial.score))[:SHOWN]:
        table.add_row(f"{trial.score:.4f}", *(toml_text(value) for value in trial.point.values()))
    console = results()
    rows = [
        {
            "stream": group.stream,
            "method": group.method,
            "status": trial.status,
            "score": trial.score,
            **trial.point,
        }
        for trial in group.trials
    ]
    show(table, rows)
    for line in _ties(result, group):
        console.print(f"[yellow]{escape(line)}[/]", highlight=False, soft_wrap=True)
    for status in ("cut", "failed", "unsupported", "unfinished"):
        count = sum(trial.status == status for trial in group.trials)
        if count:
            reason = next(
                (trial.reason for trial in group.trials if trial.status == status and trial.reason), ""
            )
            text = f"{count} {status}" + (f", such as: {reason}" if reason else "")
            console.print(f"[yellow]{escape(text)}[/]", highlight=False, soft_wrap=True)


def _ties(result: SearchResult, group: SearchGroup) -> list[str]:
    """Where equal scores mattered, and which candidates had them."""
    lines = []
    for tasks in result.settings.after:
        tied = [trial for trial in group.trials if tasks in trial.tied_after]
        if tied:
            seen = [trial for trial in group.trials if tasks in trial.early]
            kept = sum(trial.cut_after != tasks for trial in seen)
            lines.append(
                f"after {counted(tasks, 'task')} {kept} of {len(seen)} were kept, more than the share of "
                f"{result.settings.keep:g}: {len(tied)} tie at the cut, {tied[0].early[tasks]:.4f}: {_points(tied)}"
            )
    bests = result.bests(group)
    if len(bests) > 1:
        lines.append(f"{len(bests)} tie for the best score, the first is taken: {_points(bests)}")
    return lines


def _points(trials: Sequence[Trial]) -> str:
    texts = [
        ", ".join(f"{name} = {toml_text(value)}" for name, value in trial.point.items())
        for trial in trials[:TIES_SHOWN]
    ]
    more = len(trials) - len(texts)
    return "; ".join([*texts, *([f"and {more} more"] if more else [])])
