"""The command `orthocl`: its parts, its errors and its exit codes.

Exit codes: 0 success; 1 some run or check failed; 2 the command cannot do what was asked; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal, NoReturn, get_args, get_origin

import cyclopts
from rich.markup import escape

from orthocl import __version__
from orthocl.cli.output import Terminal, manners_of
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

EPILOGUE = (
    "With every command, anywhere on the line: --json prints one JSON object instead of tables; --quiet prints the "
    "result and nothing else; --debug shows the traceback of an error. "
    "`orthocl --install-completion` teaches your shell (bash, zsh, fish) to complete commands and options."
)
SWITCHES = ("--debug", "--json", "--quiet")
"""Options of every command, taken out of the line before it is parsed."""

STOPPED = "stopped; the same command resumes where it left off"


def make_app(parts: Sequence[str] = GROUPS) -> cyclopts.App:
    """The root command with these subcommands."""
    app = cyclopts.App(
        name="orthocl",
        help="Continual learning by orthogonal projection: train, compare, and compute the theory.",
        version=__version__,
        help_epilogue=EPILOGUE,
        suppress_keyboard_interrupt=False,
        default_parameter=cyclopts.Parameter(negative_iterable=(), converter=_whole_numbers),
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
    code = call(list(sys.argv[1:] if arguments is None else arguments), own_process=True)
    try:
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except OSError as error:  # here, not when Python ends: it would change the exit code
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = _reading_ended(error, code)
    sys.exit(code)


def call(arguments: Sequence[str], *, own_process: bool = False) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: what follows `orthocl`.
        own_process: whether this process is the command and nothing else, and may end itself.

    >>> call(["--version"])
    0.1.0
    0
    """
    debug, as_json, quiet = (switch in arguments for switch in SWITCHES)
    tokens = [token for token in arguments if token not in SWITCHES]
    if (
        as_json and tokens and tokens[0] == "theory"
    ):  # these commands have their own JSON, richer than their tables
        tokens.append("--json")
    errors = Terminal(stderr=True)
    try:
        first = tokens[0] if tokens else ""
        parts = (
            [first] if first in GROUPS else [] if first == "--version" else GROUPS
        )  # the rest is not imported
        with _importing() if own_process else nullcontext():
            app = make_app(parts)
        app.register_install_completion_command(help="Teach your shell to complete commands and options.")
        with manners_of(as_json, quiet):
            result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except OrthoclError as error:
        if debug:
            raise
        errors.print(f"[bold red]error:[/] [red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
        return 2
    except cyclopts.CycloptsError as error:
        errors.print(cyclopts.CycloptsPanel(error))
        return 2
    except KeyboardInterrupt:
        if debug:
            raise
        errors.print(f"[yellow]{STOPPED}[/]")
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader, such as `head`, has seen enough
        return 0
    except (OSError, MemoryError, RecursionError) as error:
        if debug:
            raise
        with suppress(OSError):
            errors.print(
                f"[bold red]error:[/] [red]{escape(_described(error))}[/]", highlight=False, soft_wrap=True
            )
        return 2
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich has noticed it first
            return 0
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return result if isinstance(result, int) else 0


def _described(error: BaseException) -> str:
    """An error of the system in words."""
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{where}"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this: ask for less, or use a machine with more"
    return "this is nested too deeply"


def _reading_ended(error: OSError, code: int) -> int:
    """The exit code when the output could not be written: a reader that has seen enough is no failure."""
    if error.errno == errno.EPIPE:
        return code
    with suppress(OSError):
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
    return 2


def _whole_numbers(kind: Any, tokens: Sequence[cyclopts.Token]) -> Any:
    """What cyclopts makes of the tokens, except that whole numbers are not rounded from others."""
    if _is_whole(kind):
        for token in tokens:
            if not re.fullmatch(r"[+-]?[0-9]{1,300}", token.value):
                raise ValueError(f"expected a whole number, got {token.value[:40]!r}")
    return cyclopts.convert(kind, tokens)


def _is_whole(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return False
    return kind is int or any(_is_whole(each) for each in get_args(kind))


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
