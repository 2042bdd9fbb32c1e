"""`orthocl check`: the conformance suite on your own method."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import working
from orthocl.cli.output import new_table, report, say, show, suggest
from orthocl.errors import SettingsError
from orthocl.formatting import counted

if not HELP_ONLY:
    from orthocl.methods import METHODS, Method
    from orthocl.sources import load_file
    from orthocl.testing.conformance import CheckOutcome, check_method

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
    failed = 0
    kinds = methods_in(str(method))
    for kind in kinds.values():
        table = new_table(
            "check", "what is checked", "result", title=f"{kind.name or kind.__name__} ({kind.__name__})"
        )
        with working(f"checking {kind.name or kind.__name__}"):
            outcomes = check_method(kind)
        for outcome in outcomes:
            failed += outcome.problem is not None
            table.add_row(outcome.check, outcome.summary, _result(outcome))
        rows = [
            {
                "method": kind.name,
                "check": each.check,
                "what": each.summary,
                "problem": each.problem,
                "skipped": each.skipped,
            }
            for each in outcomes
        ]
        show(table, rows)
    report(failed=failed)
    chosen = " ".join(f"--method {spec}" for spec in kinds)
    if failed:
        say(f"{counted(failed, 'check')} failed", "red")
        suggest(f"mend it, then orthocl check {method}")
        sys.exit(1)
    say("all checks passed", "green")
    suggest(f"orthocl run --stream rotated-mnist-mini {chosen} --method ogd --seed 1")


def _result(outcome: CheckOutcome) -> str:
    if outcome.skipped:
        return f"[dim]not applicable: {escape(outcome.skipped)}"
    return "[green]passed" if outcome.problem is None else f"[red]failed: {escape(outcome.problem)}"


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
