"""`orthocl paper`: any table or figure of the paper, ours next to the published one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.markup import escape

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import (
    DEFAULT_STORE,
    DataRootOption,
    SetOption,
    StoreOption,
    cores,
    make_folder,
    working,
)
from orthocl.cli.output import (
    Terminal,
    draw,
    manners,
    new_table,
    remark,
    remarks,
    report,
    results,
    say,
    show,
    suggest,
)
from orthocl.errors import DataError, OrthoclError, SettingsError, unknown_name
from orthocl.formatting import counted

if not HELP_ONLY:
    from orthocl.lab import Experiment, RunOptions, RunSettings, Store, run_experiment
    from orthocl.lab.reporting.figure import SUFFIXES, save_figure
    from orthocl.paper.evidence import Evidence, RecordIndex
    from orthocl.paper.experiments import Scale
    from orthocl.paper.items import ITEMS, Item, find_evidence, get_item, item_runs, make_page
    from orthocl.paper.keep import keep_records
    from orthocl.paper.needs import find_needs
    from orthocl.paper.page import Page, TextFormat
    from orthocl.paper.predictions import (
        FILE,
        Prediction,
        fitting,
        plain_runs,
        predict_stream,
        read_predictions,
        write_predictions,
    )
    from orthocl.paper.reproduction import Reproduction, update_readme, write_reproduction
    from orthocl.storage import write_output

app = App(name="paper", help="Tables and figures of the paper: run them and compare with the published ones.")

ScaleOption = Literal["full", "small"]
TEXT_SUFFIXES: dict[str, TextFormat] = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}
Several = Parameter(consume_multiple=True)


@app.default
def paper(
    item: Annotated[str | None, Parameter(help="Such as table-2; without one, all are listed.")] = None,
    *,
    stream: Annotated[list[str] | None, Parameter(consume_multiple=True, help="Only these streams.")] = None,
    seeds: Annotated[list[int] | None, Parameter(consume_multiple=True, help="Instead of 1 to 5.")] = None,
    scale: Annotated[
        ScaleOption, Parameter(help="full: the paper's protocol; small: embedded data, minutes.")
    ] = "full",
    jobs: Annotated[
        int | None, Parameter(help="Runs at a time; all cores by default; 0: in this process.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what is needed.")] = False,
    run: Annotated[bool, Parameter(help="Execute the missing runs; --no-run shows what is there.")] = True,
    table: Annotated[
        Literal["terminal", "markdown", "latex", "csv", "json"], Parameter(help="Format on the terminal.")
    ] = "terminal",
    out: Annotated[
        list[Path] | None,
        Parameter(
            help="Also write it here: .md, .tex, .csv, .json, or its figure: .svg, .pdf, .png. May be repeated."
        ),
    ] = None,
    set_: SetOption = None,
    data_root: DataRootOption = None,
) -> int:
    """Produce a table or figure of the paper next to the published one, with a verdict on each claim.

    First says which data, runs and hours it needs and what is already there. Finished runs are not repeated.

    In minutes, without data: orthocl paper table-2 --scale small

    As in the paper: orthocl paper table-2 --stream rotated-mnist --seeds 1 2 3 --jobs 2

    The exit code is 1 if a run failed or could not start because data are missing.
    """
    if item is None:
        _list()
        return 0
    chosen = get_item(item)
    places = [_checked(path) for path in out or ()]
    experiment = _experiment(chosen, scale, stream, seeds, set_)
    shelf, at_once = Store(store), cores() if jobs is None else jobs
    complete = _ensure(chosen, experiment, shelf, scale, at_once, data_root, run=run, dry_run=dry_run)
    if dry_run:
        suggest("the same command without --dry-run")
        return 0
    with working("reading the records"):
        evidence = find_evidence(chosen, RecordIndex(shelf), experiment.runs, scale)
    theory = _predictions(evidence, shelf, scale, data_root, run) if chosen.make is None else {}
    _show(make_page(chosen, evidence, scale == "full", theory), table, places, scale)
    return 0 if complete else 1


def _ensure(
    item: Item,
    experiment: Experiment,
    store: Store,
    scale: Scale,
    jobs: int,
    data_root: Path | None,
    *,
    run: bool,
    dry_run: bool,
) -> bool:
    """Say what an item needs and, unless told not to, produce it; False if a run failed or could not start."""
    if not item.runs_needed:
        return True
    with working("looking at the store"):
        evidence = find_evidence(item, RecordIndex(store), experiment.runs, scale)
    making = run and not dry_run and bool(evidence.missing)
    with working("looking at the data, timing a few steps of what is not there"):
        needed = find_needs(evidence, store, data_root, timed=run or dry_run)
    for line in needed.lines(jobs):
        remark(line)
    report(needs=list(needed.lines(jobs)))
    if not making:
        return True
    made = _make(needed.possible, experiment, store, jobs, data_root)
    return made and len(needed.possible) == len(evidence.missing)


@app.command
def keep(
    *,
    store: StoreOption = DEFAULT_STORE,
    into: Annotated[Path, Parameter(help="Store of kept records.")] = Path("results"),
    item: Annotated[
        str | None, Parameter(name="--for", help="Only the runs of this table or figure.")
    ] = None,
) -> None:
    """Copy the records of finished runs, without weights, into a store that goes into version control."""
    runs = None if item is None else item_runs(get_item(item)).runs
    with working("reading the store"):
        kept = keep_records(Store(store), Store(into), runs)
    say(f"{counted(len(kept.new), 'record')} copied to {into}, {len(kept.known)} were there")
    if kept.diverged:
        say(f"{counted(len(kept.diverged), 'run')} diverged; why is noted in {into}")
    report(copied=len(kept.new), known=len(kept.known), diverged=len(kept.diverged), into=str(into))
    suggest("orthocl paper reproduction")


@app.command
def predictions(
    *,
    store: Annotated[Path, Parameter(help="Where they are kept, next to the records.")] = Path("results"),
    scale: Annotated[ScaleOption, Parameter(help="full or small, as for the items.")] = "full",
    data_root: DataRootOption = None,
) -> None:
    """Compute the theory's numbers of the streams, for `orthocl paper theory`; existing ones are kept."""
    runs = item_runs(get_item("theory"), scale, seeds=[1]).runs
    shelf = Store(store)
    found = _predictions(Evidence(runs), shelf, scale, data_root, compute=True)
    say(f"predictions in {store}: {', '.join(sorted(found)) or 'none'}")
    report(predictions=sorted(found), store=str(store))
    suggest(f"orthocl paper theory --store {store} --no-run")


@app.command
def reproduction(
    *,
    store: Annotated[Path, Parameter(help="Store of kept records.")] = Path("results"),
    out: Annotated[Path, Parameter(help="The Markdown file.")] = Path("REPRODUCTION.md"),
    figures: Annotated[Path, Parameter(help="Folder of the figures.")] = Path("docs/figures/reproduction"),
    readme: Annotated[Path | None, Parameter(help="Also put the table of results into this file.")] = None,
) -> None:
    """Write every table and figure next to the published one, the verdicts and the costs, from kept records."""
    make_folder(out)
    with working("reading the records, drawing"):
        paths = write_reproduction(Store(store), out, figures)
        if readme is not None:
            update_readme(readme, Reproduction(Store(store)).glance())
    remark(f"{out} and {counted(len(paths) - 1, 'figure')}")
    report(files=[str(path) for path in paths])
    suggest(f"read {out}")


def _experiment(
    item: Item, scale: Scale, streams: list[str] | None, seeds: list[int] | None, changes: list[str] | None
) -> Experiment:
    if not item.experiments:
        if streams or seeds:
            raise SettingsError(f"{item.name} needs no runs: leave --stream and --seeds out")
        return Experiment(item.name, ())
    return item_runs(item, scale, streams or (), seeds or (), changes or ())


def _make(
    runs: Sequence[RunSettings], experiment: Experiment, store: Store, jobs: int, data_root: Path | None
) -> bool:
    """Execute these runs; False if one failed."""
    if not runs:
        return True
    options = RunOptions(keep_weights=False, data_root=None if data_root is None else str(data_root))
    results = run_experiment(
        Experiment(experiment.name, tuple(runs)), store, jobs=jobs, options=options, console=remarks()
    )
    if any(outcome.status == "interrupted" for outcome in results.outcomes):
        raise KeyboardInterrupt
    errors = Terminal(stderr=True)
    for failure in results.failures:
        text = f"[red]failed[/] {escape(failure.settings.label)}: {escape(failure.reason)}"
        errors.print(text, highlight=False, soft_wrap=True)
    return not results.failures


def _predictions(
    evidence: Evidence, store: Store, scale: Scale, data_root: Path | None, compute: bool
) -> dict[str, Prediction]:
    """The theory's numbers of the streams: those kept in the store, the others computed and kept."""
    path = store.directory / (FILE if scale == "full" else f"small-{FILE}")
    known = read_predictions(path)
    found = fitting(known, evidence.runs)
    for label, run in plain_runs(evidence.runs).items() if compute else ():
        if label not in found:
            try:
                with working(f"computing the closed form of {label}"):
                    known[label] = found[label] = predict_stream(run, data_root)
            except DataError as error:
                message = f"[yellow]no predictions for {label}:[/] {escape(str(error))}"
                Terminal(stderr=True).print(message, highlight=False, soft_wrap=True)
                continue
            write_predictions(path, known)
    return found


def _show(page: Page, table: str, places: Sequence[Path], scale: Scale) -> None:
    if manners().json:
        report(page=json.loads(page.render("json")))
    elif table == "terminal":
        for part in page.rich().renderables:
            draw(part)
        if scale == "small":
            results().print(
                "At this scale tasks are fewer and smaller than the paper's: its numbers are shown for "
                "orientation, not for comparison."
            )
    else:
        print(page.render(_text_format(table)).rstrip("\n"))
    for path in places:
        make_folder(path)
        if path.suffix in TEXT_SUFFIXES:
            text = page.render(TEXT_SUFFIXES[path.suffix])
            write_output(path, (text.rstrip("\n") + "\n").encode())
        elif page.draw is None:
            raise OrthoclError(
                f"{page.name} has no figure to write to {path}: no run of it is finished, or it is a table"
            )
        else:
            save_figure(page.draw(), path)
        remark(f"wrote {path}")
    suggest(
        f"open {places[0]}"
        if places
        else f"orthocl paper {page.name} --out {page.name}.tex writes it; see also orthocl paper"
    )


def _text_format(name: str) -> TextFormat:
    return next(kind for kind in TEXT_SUFFIXES.values() if kind == name)


def _checked(path: Path) -> Path:
    if path.suffix not in TEXT_SUFFIXES and path.suffix.lstrip(".") not in SUFFIXES:
        raise unknown_name("suffix", path.suffix or str(path), [*TEXT_SUFFIXES, *(f".{s}" for s in SUFFIXES)])
    return path


def _list() -> None:
    table = new_table("item", "what it shows", "experiments")
    for item in ITEMS.values():
        files = ", ".join(f"{name}.toml" for name in item.experiments)
        streams = f" ({', '.join(item.streams)})" if item.streams else ""
        table.add_row(item.name, f"{item.summary}{streams}", files or "none needed")
    show(table)
    suggest("orthocl paper table-2 --scale small; all of them, from kept records: orthocl paper reproduction")
