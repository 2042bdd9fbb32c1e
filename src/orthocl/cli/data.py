"""`orthocl data`: show, fetch and prepare data sets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import YesOption, agree_to_programs, working
from orthocl.cli.output import new_table, remarks, results, say, show, suggest
from orthocl.cli.output import report as facts
from orthocl.errors import SettingsError, unknown_name
from orthocl.formatting import size_text

if not HELP_ONLY:
    from orthocl.nets import AlexNet
    from orthocl.streams.datasets import ENTRIES, data_roots, fetch, status
    from orthocl.streams.datasets.cub200 import find_folder, read_index
    from orthocl.streams.datasets.features import extract_features, read_features
    from orthocl.streams.datasets.fetch import writable_root
    from orthocl.streams.datasets.schema import OnProgress
    from orthocl.streams.datasets.weights import find_weights, read_weights

app = cyclopts.App(name="data", help="Data sets: show where they are, fetch, prepare.")

DataRoot = Annotated[
    Path | None,
    cyclopts.Parameter(
        help="Folder with the data sets; by default $ORTHOCL_DATA, or the user's cache folder."
    ),
]
COLOURS = {"verified": "green", "unverified": "yellow", "damaged": "red", "missing": "dim"}


@app.command(name="status")
def show_status(*, data_root: DataRoot = None) -> None:
    """Show where each data set is, verified or not, with sizes, licences and citations."""
    console = results()
    with working("verifying"):
        rows = status(data_root)
    table = new_table("data set", "state", "size", "what", "where", right=["size"])
    table.columns[-1].overflow = "fold"
    table.columns[-2].no_wrap = True  # commands, to be copied
    for row in rows:
        state = f"[{COLOURS[row.state]}]{row.state}[/]"
        detail = "see below" if row.state == "damaged" else row.detail
        where = escape(str(row.where or ""))
        table.add_row(row.name, state, size_text(row.size) if row.size else "", escape(detail), where)
    show(table, [{**asdict(row), "where": None if row.where is None else str(row.where)} for row in rows])
    for row in rows:
        if row.state == "damaged":
            console.print(f"\n[red]{row.name}[/]: {escape(row.detail)}", highlight=False, soft_wrap=True)
    looked = ", ".join(map(str, data_roots(data_root)))
    console.print(f"\nLooked in: {escape(looked)}", highlight=False, soft_wrap=True)
    for entry in (ENTRIES[row.name] for row in rows if row.name in ENTRIES):
        console.print(f"\n[bold]{entry.name}[/]: {entry.title}. Licence: {entry.licence}.", highlight=False)
        console.print(f"  Cite: {entry.citation}. {entry.homepage}", highlight=False, soft_wrap=True)
    missing = [row.name for row in rows if row.state == "missing"]
    suggest(f"orthocl data fetch {missing[0]}" if missing else "orthocl list streams")


@app.command(name="fetch")
def fetch_data(
    name: str | None = None,
    /,
    *,
    experiment: Annotated[
        Path | None, cyclopts.Parameter(name="--for", help="Fetch what this experiment file needs instead.")
    ] = None,
    data_root: DataRoot = None,
    yes: YesOption = False,
) -> None:
    """Fetch a data set unless it is already there: mirrors in order, checksums verified, downloads resumed.

    Args:
        name: mnist, fashion-mnist, cifar10, cifar100, cub200, or alexnet (the weights that cub200 needs).
        experiment: an experiment file, whose data sets are fetched one after the other.
        data_root: where to look for it and put it.
        yes: do not ask before running parts that the experiment file names.
    """
    if (name is None) == (experiment is None):
        raise SettingsError("give the name of a data set, or --for and an experiment file")
    if experiment is not None:
        agree_to_programs(experiment, "finding out what data it needs", yes)
    console, fetched = remarks(), {}
    for each in [name] if name is not None else _needed(experiment, data_root, console):
        start = time.monotonic()
        with _progress(console) as report:
            folder = fetch(each, data_root, report)
        seconds = time.monotonic() - start
        say(f"{each}: complete and verified in {folder} ({seconds:.1f} s)")
        fetched[each] = str(folder)
    facts(fetched=fetched)
    suggest("orthocl list streams shows what can be made of it")


def _needed(experiment: Path | None, data_root: Path | None, console: Console) -> list[str]:
    """The data sets that an experiment lacks, by the names that `fetch` knows."""
    from orthocl.lab import load_experiment  # imported here because it takes a while
    from orthocl.paper.needs import needed_data

    needs = needed_data(load_experiment(experiment or "").runs, data_root)
    names: list[str] = []
    for need in needs:
        if need.present:
            console.print(escape(need.text()), highlight=False, soft_wrap=True)
        elif need.name == "cub200":
            names += ["cub200", "alexnet"]
            console.print(
                "cub200: with its images and weights there, `orthocl data prepare cub200` computes the features",
                highlight=False,
            )
        else:
            names.append(need.name)
    return names


@app.command
def prepare(
    name: str,
    /,
    *,
    data_root: DataRoot = None,
    weights: Path | None = None,
    dtype: Literal["float16", "float32"] = "float16",
    batch_size: int = 32,
) -> None:
    """Run the images of a data set through a frozen network once and keep the features; resumes where it left off.

    Args:
        name: cub200, the only data set that needs it.
        data_root: where to look for images and weights, and where to put the features.
        weights: of AlexNet; by default torchvision's file (fc6) or alexnet-conv.npz (pool5) in the data root.
        dtype: float16 (half the size) or float32.
        batch_size: images at a time.
    """
    if name != "cub200":
        raise unknown_name("data set to prepare", name, ["cub200"])
    if batch_size < 1:
        raise SettingsError(f"--batch-size must be at least 1, got {batch_size}")
    console = remarks()
    with working("reading the index and the weights"):
        index = read_index(find_folder(data_root))
        loaded = read_weights(weights or find_weights(data_root))
        network = AlexNet.from_torchvision(loaded.tensors, loaded.layer)
    with _progress(console) as report:
        path = extract_features(
            index,
            network,
            writable_root(data_root),
            layer=loaded.layer,
            weights=loaded.sha256,
            dtype=dtype,
            batch_size=batch_size,
            progress=report,
        )
    data = read_features(path)
    say(f"cub200: {len(data.features)} x {data.features.shape[1]} features of {loaded.layer} in {path}")
    facts(cub200=str(path), shape=list(data.features.shape), layer=loaded.layer)
    suggest("orthocl run --stream cub200 --method sgd --method ogd+ --seed 1 --dry-run")


@contextmanager
def _progress(console: Console) -> Iterator[OnProgress]:
    """One bar per item; a bar whose total is unknown only pulses."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        known: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in known:
                for other in known.values():
                    bars.update(other, visible=False)
                known[what] = bars.add_task(what, total=total)
            bars.update(known[what], completed=done, total=total)

        yield report
