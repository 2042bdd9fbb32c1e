"""A plan as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from orthocl.formatting import counted, size_text

if TYPE_CHECKING:
    from orthocl.tangents.memory_plan import Plan


def headline(found: Plan) -> str:
    """What is remembered, in a line."""
    return (
        f"{counted(found.rows, 'tangent')} of {found.parameters:,} weights "
        f"({counted(found.tasks, 'task')} x {counted(found.memory_per_task, 'sample')} x {found.rows_per_sample}), "
        f"batches of {found.batch_size}"
    )


def rows_of(found: Plan) -> list[tuple[str, str, str]]:
    """Way, memory and multiply-adds a step, with the choice marked."""
    return [
        (
            f"{path}{' (chosen)' if path == found.choice else ''}",
            size_text(cost.nbytes),
            madds_text(cost.madds),
        )
        for path, cost in found.costs.items()
    ]


def madds_text(count: float) -> str:
    """Multiply-adds for people.

    >>> madds_text(22_347_900_000), madds_text(5_200_000), madds_text(900)
    ('22.3 G', '5.2 M', '900')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"


def explicit_line(found: Plan) -> list[str]:
    """Which parameters are differentiated sample by sample, and what that takes; nothing if none is."""
    if not found.explicit:
        return []
    names = list(found.explicit)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    size = size_text(sum(found.explicit.values()))
    return [
        f"Differentiated sample by sample and stored whole: {', '.join(names[:3])}{more}. "
        f"{size} a tangent, and about {found.explicit_steps:.2g} plain steps for each task."
    ]


def as_text(found: Plan) -> str:
    """The table that `print(plan)` shows."""
    rows: Sequence[Sequence[str]] = [("way", "memory", "multiply-adds a step"), *rows_of(found)]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    lines = [
        f"{row[0].ljust(widths[0])}  {row[1].rjust(widths[1])}  {row[2].rjust(widths[2])}" for row in rows
    ]
    advice = [
        ("Nothing fits: " if place == 0 else "  - ") + line for place, line in enumerate(found.advice())
    ]
    return "\n".join([headline(found), *lines, *explicit_line(found), *advice])


def as_html(found: Plan) -> str:
    """The same for notebooks."""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows_of(found)
    )
    head = "<tr><th>way</th><th>memory</th><th>multiply-adds a step</th></tr>"
    advice = "".join(f"<p>{escape(line)}</p>" for line in (*explicit_line(found), *found.advice()))
    return f"<p>{escape(headline(found))}</p><table>{head}{body}</table>{advice}"
