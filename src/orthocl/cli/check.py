"""`orthocl check`: the conformance suite on your own method."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from orthocl.cli.options import working
from orthocl.errors import OrthoclError, SettingsError
from orthocl.formatting import counted
from orthocl.methods.base import Method
from orthocl.testing.conformance import check_method

app = App(name="check", help="Run the conformance suite on the methods in a Python file.")


@app.default
def check(
    file: Annotated[Path, Parameter(help="Python file with one or more classes derived from Method.")],
) -> None:
    """Run every check that the built-in methods pass on the methods of a file.

    Example: orthocl check my_method.py

    The exit code is 0 if all pass, 1 if one fails, 2 if the file cannot be used.
    """
    console = Console()
    failed = 0
    for kind in methods_in(file):
        table = Table(title=f"{kind.name or kind.__name__} ({kind.__name__})", title_justify="left")
        table.add_column("check")
        table.add_column("what it asks")
        table.add_column("result")
        with working(f"checking {kind.name or kind.__name__}"):
            outcomes = check_method(kind)
        for outcome in outcomes:
            failed += outcome.problem is not None
            result = "[green]passed" if outcome.problem is None else f"[red]failed: {outcome.problem}"
            table.add_row(outcome.check, outcome.summary, result)
        console.print(table)
    if failed:
        console.print(f"[red]{counted(failed, 'check')} failed")
        sys.exit(1)
    console.print("[green]all checks passed")


def methods_in(file: Path) -> list[type[Method]]:
    """The method classes that a file defines."""
    if not file.is_file():
        raise SettingsError(f"no such file: {file}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OrthoclError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == file.stem
    ]
    if not found:
        raise SettingsError(f"{file} defines no class derived from orthocl.Method")
    return found
