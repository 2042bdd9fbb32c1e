"""`orthocl check`: the conformance suite on your own method."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from orthocl.cli.options import working
from orthocl.errors import SettingsError
from orthocl.formatting import counted
from orthocl.methods import METHODS, Method
from orthocl.sources import load_file
from orthocl.testing.conformance import check_method

app = App(name="check", help="Run the conformance suite on the methods in a Python file.")


@app.default
def check(
    method: Annotated[
        str, Parameter(help="A file, all of whose methods are checked, or one method as file.py:Class.")
    ],
) -> None:
    """Run every check that the built-in methods pass on your own method.

    Example: orthocl check my_method.py

    The exit code is 0 if all pass, 1 if one fails, 2 if the file cannot be used.
    """
    console = Console()
    failed = 0
    kinds = methods_in(str(method))
    for kind in kinds.values():
        table = Table(
            title=f"{kind.name or kind.__name__} ({kind.__name__})", title_justify="left", box=box.SIMPLE
        )
        table.add_column("check")
        table.add_column("what is checked")
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
    chosen = " ".join(f"--method {spec}" for spec in kinds)
    console.print(
        f"next: orthocl run --stream rotated-mnist-mini {chosen} --method ogd --seed 1",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def methods_in(spec: str) -> dict[str, type[Method]]:
    """Spec -> class of the methods that a file defines, or of the one that a spec names."""
    if not spec.endswith(".py"):
        return {spec: METHODS[spec]}
    module = load_file(Path(spec))
    found = {
        f"{spec}:{name}": value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
    }
    if not found:
        raise SettingsError(f"{spec} defines no class derived from orthocl.Method")
    return found
