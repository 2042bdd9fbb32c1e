"""The command `orthocl`: its parts, its errors and its exit codes.

Exit codes: 0 success; 1 some run or check failed; 2 the command cannot do what was asked; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NoReturn

import cyclopts
from rich.console import Console
from rich.markup import escape

from orthocl import __version__
from orthocl.errors import OrthoclError

GROUPS = (
    "demo",
    "run",
    "runs",
    "report",
    "view",
    "search",
    "list",
    "data",
    "theory",
    "plan",
    "audit",
    "check",
    "paper",
)
"""Modules of this package that hold a command each, in the order of the help page."""

STOPPED = "stopped; the same command resumes where it left off"


def make_app(parts: Sequence[str] = GROUPS) -> cyclopts.App:
    """The root command with these subcommands."""
    app = cyclopts.App(
        name="orthocl",
        help="Continual learning by orthogonal projection: train, compare, and compute the theory.",
        version=__version__,
        help_epilogue="Errors are shown without a traceback; add --debug, anywhere on the line, to see it.",
        suppress_keyboard_interrupt=False,
        default_parameter=cyclopts.Parameter(negative_iterable=()),
    )
    for position, name in enumerate(parts):
        module = f"orthocl.cli.{name}"
        if importlib.util.find_spec(module) is not None:
            part: cyclopts.App = importlib.import_module(module).app
            part.sort_key = position
            app.command(part)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(call(list(sys.argv[1:] if arguments is None else arguments), own_process=True))


def call(arguments: Sequence[str], *, own_process: bool = False) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: what follows `orthocl`.
        own_process: whether this process is the command and nothing else, and may end itself.

    >>> call(["--version"])
    0.1.0
    0
    """
    debug = "--debug" in arguments
    tokens = [token for token in arguments if token != "--debug"]
    errors = Console(stderr=True)
    try:
        first = tokens[0] if tokens else ""
        parts = (
            [first] if first in GROUPS else [] if first == "--version" else GROUPS
        )  # the rest is not imported
        with _importing() if own_process else nullcontext():
            app = make_app(parts)
        result = app(tokens, exit_on_error=False, result_action="return_value")
    except OrthoclError as error:
        if debug:
            raise
        errors.print(f"[bold red]error:[/] [red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
        return 2
    except cyclopts.CycloptsError:
        return 2  # already printed
    except KeyboardInterrupt:
        if debug:
            raise
        errors.print(f"[yellow]{STOPPED}[/]")
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader, such as `head`, has seen enough
        return 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return result if isinstance(result, int) else 0


@contextmanager
def _importing() -> Iterator[None]:
    """During imports, Ctrl-C ends the process at once: Python might miss it, or print a traceback."""

    def stop(*_: object) -> NoReturn:
        os.write(2, f"{STOPPED}\n".encode())
        os._exit(130)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
