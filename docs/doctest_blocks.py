"""Doctests of docstrings as blocks of code in the reference."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestBlocks(griffe.Extension):
    """Put a fence around every doctest, which Markdown would take for quotations and links."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object that is read from the source."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""A docstring with fences: a doctest lasts from `>>>` to the next empty line.

    >>> fenced("Add.\n\n>>> 1 + 1\n2").split("\n")
    ['Add.', '', '```python', '>>> 1 + 1', '2', '```']
    """
    lines: list[str] = []
    inside = False
    for line in [*text.split("\n"), ""]:
        if not inside and line.startswith(">>> "):
            lines.append("```python")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])
