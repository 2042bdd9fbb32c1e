"""`orthocl runs`: look at the store and tidy it up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import (
    DEFAULT_STORE,
    MetricOption,
    StoreOption,
    TableFormat,
    make_folder,
    warn,
    working,
)
from orthocl.cli.output import draw, manners, new_table, remark, report, results, say, show, suggest
from orthocl.cli.records import readable_records
from orthocl.cli.runs_list import find_lines, lines_text
from orthocl.errors import SettingsError, StoreError, unknown_name
from orthocl.formatting import counted

if not HELP_ONLY:
    from orthocl.checking import check_value
    from orthocl.lab.experiment.grid import flat
    from orthocl.lab.reporting.chosen_runs import failed_runs
    from orthocl.lab.reporting.escaping import csv_text
    from orthocl.lab.reporting.groups import agreed_labels
    from orthocl.lab.reporting.table import DEFAULT_METRICS, Cell, make_table, title
    from orthocl.lab.run.forecasts import read_forecasts
    from orthocl.lab.store import doctor as doctors
    from orthocl.lab.store.record import Record
    from orthocl.lab.store.store import Store
    from orthocl.metrics import METRICS
    from orthocl.storage import write_output

app = App(name="runs", help="Records of finished runs: list, show, compare, export, remove, check.")

Filter = Annotated[str, Parameter(help='Pattern, such as "ogd*".')]
Ids = Annotated[list[str], Parameter(help="Run ids, or their first letters.")]


@app.command(name="list")
def list_runs(
    *,
    stream: Filter = "*",
    method: Filter = "*",
    last: Annotated[int | None, Parameter(help="Only this many runs, the newest.")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List all runs by date, the newest last, with the settings in which runs of the same method differ.

    Streams and methods have the names that tables print. Damaged runs are listed too: see `orthocl runs doctor`.
    """
    opened = Store(store)
    if last is not None:
        check_value("--last", last, int, 1)
    with working("reading the store"):
        lines = find_lines(opened, stream, method, last)
    report(rows=[line.values() for line in lines])
    if not lines:
        say(f"no such runs in {opened.directory}")
        suggest("orthocl run --stream rotated-mnist-mini --method sgd --method ogd+ --seed 1")
        return
    if not manners().json:
        for text in lines_text(lines):
            print(text)
    damaged = sum(line.state == "damaged" for line in lines)
    if damaged:
        warn(f"{counted(damaged, 'run')} damaged: `orthocl runs doctor` says why, and what to do")
    suggest(f"orthocl runs show {lines[-1].id[:8]}, or orthocl report")


@app.command
def doctor(
    *,
    quarantine: Annotated[
        bool,
        Parameter(
            negative="", help="Move damaged files to the folder quarantine of the store. Nothing is deleted."
        ),
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> int:
    """Read and verify every file of the store, say what is damaged and which runs failed, and rebuild the index.

    After --quarantine, the runs that lost a record or a checkpoint are executed again by the next `orthocl run`.
    """
    opened = Store(store)
    if not opened.directory.exists():
        raise StoreError(f"there is no store in {opened.directory}")
    with working("reading every file of the store"):
        damages = doctors.examine(opened)
    for damage in damages:
        say(f"{damage.path}: {damage.reason}")
    report(damaged=[{"path": str(each.path), "reason": each.reason} for each in damages])
    moved = doctors.quarantine(opened, damages) if quarantine else []
    with working("rebuilding the index"):
        records = opened.index(rebuild=True)
    for path in moved:
        say(f"moved to {path}")
    good = sum(line.status != "damaged" for line in records)
    failed = failed_runs(opened)
    for one in failed:
        say(f"{one.settings.label} ({one.run}) failed: {one.reason}")
    text = (
        f"{counted(good, 'good record')}, {counted(len(failed), 'failed run')}, "
        f"{counted(len(damages), 'damaged file')}"
    )
    advice = "; move them away with --quarantine" if damages and not quarantine else ""
    report(
        good=good,
        failed=[{"id": one.run, "reason": one.reason} for one in failed],
        moved=[str(path) for path in moved],
    )
    remark(f"{text}{advice}")
    suggest("orthocl runs doctor --quarantine" if damages and not quarantine else "orthocl runs list")
    return 1 if damages and not quarantine else 0


@app.command(name="show")
def show_run(
    run: Annotated[str, Parameter(help="Run id, or its first letters.")],
    *,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Show everything about a run: settings, metrics, accuracies, monitors, timings, machine."""
    console, opened = results(), Store(store)
    run = opened.find(run)
    record = opened.record(run)
    if record is None:
        report(id=run, state=str(opened.state(run)), settings=opened.settings(run).to_dict())
        console.print(f"run {run} is {opened.state(run)}", highlight=False)
        console.print_json(json.dumps(opened.settings(run).to_dict()))
        failure = opened.failure(run)
        if failure is not None:
            lines = [f"[red]{escape(failure['reason'])}[/]", *map(escape, failure["traceback"])]
            console.print("\n".join(lines), highlight=False)
        suggest("the command that started it goes on where it stopped; orthocl runs list")
        return
    report(**json.loads(record.to_json()))
    console.print(f"[bold]{escape(record.settings.label)}[/]  {run}  {record.status}", highlight=False)
    if record.reason:
        console.print(escape(record.reason), highlight=False)
        suggest("orthocl runs list")
        return
    for name in [*METRICS, "memorised", "seconds", "memory"]:
        console.print(f"  {title(name):34} {Cell(name, (record.metric(name),)).text()}", highlight=False)
    draw(_matrix(record))
    if record.result.monitors and record.result.monitors[-1]:
        draw(_monitors(record))
    forecasts = _forecasts(opened.folder(run))
    if forecasts is not None:
        draw(forecasts)
    console.print("settings")
    for key, value in flat(record.settings.to_dict()).items():
        console.print(f"  {key} = {value}", highlight=False)
    console.print_json(json.dumps(dict(record.provenance)))
    console.print(f"result hash {record.result_hash}", highlight=False)
    suggest(f"orthocl runs compare {run[:8]} ANOTHER, or orthocl report")


@app.command
def compare(
    runs: Ids,
    *,
    metric: MetricOption = None,
    table: TableFormat = "terminal",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Compare runs: what differs in their settings, and their metrics."""
    opened = Store(store)
    records = [_finished(opened, run) for run in runs]
    settings = [flat(record.settings.to_dict()) for record in records]
    keys = list(dict.fromkeys(key for values in settings for key in values))
    differing = [key for key in keys if len({str(values.get(key)) for values in settings}) > 1]
    if table != "terminal" and not manners().json:
        print(
            make_table(agreed_labels((r.settings, r) for r in records), metric or ())
            .render(table)
            .rstrip("\n")
        )
        suggest(f"orthocl runs show {records[0].id[:8]}")
        return
    ids = [record.id[:8] for record in records]
    shown = new_table("", *ids, right=ids)
    for key in differing:
        shown.add_row(key, *(str(values.get(key, "")) for values in settings))
    shown.add_section()
    for name in metric or DEFAULT_METRICS:
        shown.add_row(title(name), *(Cell(name, (record.metric(name),)).text() for record in records))
    rows = [
        {
            "id": record.id,
            "settings": {key: values.get(key) for key in differing},
            "metrics": {name: record.metric(name) for name in metric or DEFAULT_METRICS},
        }
        for record, values in zip(records, settings, strict=True)
    ]
    show(shown, rows)
    suggest(f"orthocl runs show {ids[0]}")


@app.command
def export(
    file: Annotated[Path, Parameter(help="Where to: .csv, .json or .parquet (needs orthocl[parquet]).")],
    *,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Export all records: .json holds everything, .csv and .parquet one row per run with settings and metrics."""
    with working("reading the store"):
        records = readable_records(Store(store))
    suffix = file.suffix.lstrip(".").lower()
    if suffix not in ("csv", "json", "parquet"):
        raise unknown_name("export format", suffix, ("csv", "json", "parquet"))
    if not records:
        raise StoreError(f"there are no records in {store}: run an experiment first")
    make_folder(file)
    if suffix == "json":
        write_output(file, ("[" + ",\n".join(record.to_json() for record in records) + "]\n").encode())
    elif suffix == "csv":
        write_output(file, _csv([_export_row(record) for record in records]).encode())
    else:
        write_output(file, _parquet([_export_row(record) for record in records]))
    remark(f"{counted(len(records), 'record')} to {file}")
    report(records=len(records), file=str(file))
    suggest("orthocl report makes a page of the same runs")


@app.command
def rm(
    runs: Annotated[list[str] | None, Parameter(help="Run ids, or their first letters.")] = None,
    *,
    failed: Annotated[bool, Parameter(negative="", help="All failed runs.")] = False,
    unfinished: Annotated[
        bool,
        Parameter(negative="", help="All unfinished runs: started, not failed, and not in progress."),
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Remove runs from the store, by id or by the state that `runs list` shows."""
    opened = Store(store)
    chosen = [opened.find(run) for run in runs or ()]
    asked = {"failed": failed, "unfinished": unfinished}
    states = [state for state, wanted in asked.items() if wanted]
    with working("looking at the runs"):
        chosen += [run for run in opened.ids() if states and opened.state(run) in states]
    if not chosen and not states:
        raise SettingsError("say which runs to remove: ids, --failed or --unfinished")
    for run in dict.fromkeys(chosen):
        opened.remove(run)
    remark(f"removed {counted(len(dict.fromkeys(chosen)), 'run')}")
    report(removed=list(dict.fromkeys(chosen)))
    suggest("orthocl runs list")


def _finished(store: Store, prefix: str) -> Record:
    record = store.record(store.find(prefix))
    if record is None or record.status != "finished":
        raise StoreError(f"run {prefix} is not finished: see `orthocl runs show {prefix}`")
    return record


def _matrix(record: Record) -> Table:
    tasks = [str(number) for number in range(1, record.accuracy.tasks + 1)]
    table = new_table("after", *tasks, title="test accuracy %, by task", right=tasks)
    for after, row in enumerate(record.result.accuracies):
        cells = [f"{100 * value:.1f}" for value in row]
        if after:
            cells[after - 1] = f"[bold]{cells[after - 1]}[/]"
        table.add_row("start" if after == 0 else str(after), *cells)
    return table


def _forecasts(folder: Path) -> Table | None:
    """What each task was expected to cost the earlier ones, by rule, and what it did."""
    rows = read_forecasts(folder)["forecasts"]
    if not rows:
        return None
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    heads = ("task", *rules, "measured")
    table = new_table(*heads, title="accuracy % that earlier tasks lose, forecast and measured", right=heads)
    for task in sorted({row["task"] for row in rows}):
        cells = []
        for key, rule in [*(("drop", rule) for rule in rules), ("measured_drop", rules[0])]:
            found = [row[key] for row in rows if row["task"] == task and row["rule"] == rule]
            known = [100 * value for value in found if value is not None]
            cells.append(f"{sum(known) / len(known):.1f}" if known else "–")
        table.add_row(str(task), *cells)
    return table


def _monitors(record: Record) -> Table:
    """One line per monitor; of a long stream the first and the last five tasks (the record has all)."""
    rows = record.result.monitors
    shown = range(len(rows)) if len(rows) <= 6 else [0, *range(len(rows) - 5, len(rows))]
    heads = [str(number + 1) for number in shown]
    table = new_table("", *heads, title="monitors after task", right=heads)
    for name in dict.fromkeys(name for row in rows for name in row):
        values = (f"{rows[number][name]:.4g}" if name in rows[number] else "" for number in shown)
        table.add_row(name.replace("_", " "), *values)
    return table


def _export_row(record: Record) -> dict[str, Any]:
    settings = {key: _scalar(value) for key, value in flat(record.settings.to_dict()).items()}
    metrics = {name: record.metric(name) for name in [*METRICS, "memorised", "seconds", "memory"]}
    return {
        "id": record.id,
        "status": record.status,
        "reason": csv_text(record.reason),
        **settings,
        **metrics,
        "result_hash": record.result_hash,
    }


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return csv_text(value)
    return json.dumps(value) if isinstance(value, list) else value


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SettingsError(
            "writing Parquet needs pyarrow, which is not installed: pip install 'orthocl[parquet]', or use .csv"
        ) from error
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _one_kind([row.get(name) for row in rows]) for name in names}
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def _one_kind(values: list[Any]) -> list[Any]:
    """A column has one type: where runs have values of several, they become text.

    >>> _one_kind([1, None, 0.5]), _one_kind([True, 2, None]), _one_kind(["all", 3])
    ([1, None, 0.5], ['True', '2', None], ['all', '3'])
    """
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return values
    return [None if value is None else str(value) for value in values]
