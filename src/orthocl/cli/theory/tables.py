"""Tables, JSON and progress of the theory commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import make_folder, working
from orthocl.cli.output import Terminal, draw, new_table, remark, remarks, suggest

if not HELP_ONLY:
    from orthocl.theory import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar on the error stream; call what it yields with how much is done, and the total if not known before."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = remarks()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(description, total=total)
        yield lambda done, total=total: progress.update(bar, completed=done, total=total)


def emit(title: str, rows: Sequence[dict[str, Any]], extra: dict[str, Any], as_json: bool) -> None:
    """One table (or one JSON object) for a list of rows, and some further facts."""
    if as_json:
        print(json.dumps({"rows": rows, **extra}, indent=2))
        return
    print_table(title, rows)
    console = Terminal()
    for name, value in extra.items():
        if isinstance(value, (str, int, float)):
            console.print(f"{_title(name)}: {_cell(value)}", soft_wrap=True)


def print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table of rows; the keys are its columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    numbers = [name for name in names if not any(isinstance(row.get(name), str) for row in rows)]
    table = new_table(*map(_title, names), title=title, right=[_title(name) for name in numbers])
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    draw(table)


def check_figure(path: Path | None) -> None:
    """Reject a figure that cannot be saved before the work starts, and create its folder."""
    if path is not None:
        figures.check_path(path)
        make_folder(path)


def finish(path: Path | None, draw: Callable[[], Figure]) -> None:
    """Save the figure, if one is wanted, and say what comes next: the end of every command."""
    if path is None:
        suggest("the same command with --figure FILE.svg draws it, with --json prints every number")
        return
    with working("drawing"):
        figures.save(draw(), path)
    remark(f"figure: {path}")
    suggest(f"open {path}")


def _title(name: str) -> str:
    return name.replace("_", " ").replace("R T", "R_T")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return " ".join(str(part) for part in value)
    return str(value)


def number_or_none(value: float) -> float | None:
    """JSON has no nan."""
    return None if value != value else value
