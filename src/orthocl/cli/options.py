"""Options that several commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape
from rich.status import Status

from orthocl.cli.output import Terminal, silent
from orthocl.errors import SettingsError, shortened

TableFormat = Literal["terminal", "markdown", "latex", "csv", "json"]
"""The formats of `orthocl.lab.reporting.table`."""

DEFAULT_STORE = Path(os.environ.get("ORTHOCL_STORE", "orthocl-store"))

StoreOption = Annotated[
    Path, Parameter(name="--store", help="Directory of the records; by default $ORTHOCL_STORE.")
]
DataRootOption = Annotated[
    Path | None,
    Parameter(
        name="--data-root",
        help="Folder with the data sets; by default $ORTHOCL_DATA, or the user's cache folder.",
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    Parameter(
        name="--only", help='Streams or methods ("ogd*"), or pairs ("rotated*/ogd+"); may be repeated.'
    ),
]
SeedOption = Annotated[list[int] | None, Parameter(name="--seed", help="Seed, may be repeated.")]
SetOption = Annotated[
    list[str] | None,
    Parameter(name="--set", help="KEY=VALUE for every run, such as train.epochs=1 or method.strength=10."),
]
MetricOption = Annotated[
    list[str] | None, Parameter(name="--metric", help="Column of the table, may be repeated.")
]


def working(what: str) -> Status:
    """A line on the error stream of a terminal that says what is being done, while a `with` block lasts."""
    return Terminal(stderr=True, quiet=silent()).status(f"{what} ...")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn(text: str) -> None:
    """A line on the error stream."""
    Terminal(stderr=True).print(f"[yellow]{escape(text)}[/]", highlight=False, soft_wrap=True)


def make_folder(file: Path | None) -> None:
    """Create the folder of an output file, if one is requested: an impossible path is an error before the work."""
    if file is None:
        return
    from orthocl.storage import output_file  # here, because it imports torch, which help does without

    try:
        if file.is_dir():
            raise SettingsError(f"{file} is a folder: give the name of a file")
        file.parent.mkdir(parents=True, exist_ok=True)
        output_file(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"cannot create the folder {file.parent}: {reason}") from error


def check_jobs(jobs: int | None) -> int:
    """The number of runs at a time that was asked for, or all cores."""
    if jobs is not None and jobs < 0:
        raise SettingsError(f"--jobs must be 0 or more, got {jobs}")
    return cores() if jobs is None else jobs


def agree(question: str, yes: bool) -> None:
    """Ask before something that can hardly be meant.

    Args:
        question: what would be done.
        yes: `--yes` was given: do not ask.

    Raises:
        SettingsError: the answer is no, or there is no terminal to ask on.
    """
    if yes:
        return
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        Terminal(stderr=True).print(f"{escape(question)}. Is that meant? \\[y/N] ", highlight=False, end="")
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
        raise SettingsError("stopped: nothing was done")
    raise SettingsError(f"{question}: if that is meant, say --yes")


def agree_to_programs(file: Path, what: str, yes: bool) -> None:
    """Ask before a command that seems only to look runs the parts that an experiment file names.

    Which runs are meant follows from the defaults of these parts and from the data that they make: neither is known
    without running them.
    """
    if yes:
        return
    from orthocl.lab.experiment.file import read_file
    from orthocl.lab.experiment.specs import programs_in

    programs = [shortened(name) for name in programs_in(read_file(file))]
    if programs:
        more = f" and {len(programs) - 5} more" if len(programs) > 5 else ""
        agree(
            f"{file} names {', '.join(programs[:5])}{more}: {what} imports and runs what it names, with your rights",
            yes,
        )


YesOption = Annotated[
    bool,
    Parameter(
        name="--yes",
        negative="",
        help="Do not ask before something of an unlikely size, or before running parts that FILE names.",
    ),
]
