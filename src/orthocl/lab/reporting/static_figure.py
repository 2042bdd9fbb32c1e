"""The accuracy through the tasks as plain SVG, for readers of the page without scripts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape

from orthocl.lab.reporting.groups import RunGroup
from orthocl.palette import method_style

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 44, 150, 26, 34


def static_figures(groups: Sequence[RunGroup]) -> str:
    """One figure per stream: the mean accuracy on the tasks so far, after each task, mean over seeds."""
    streams = dict.fromkeys(group.stream for group in groups)
    found = [_figure(stream, [group for group in groups if group.stream == stream]) for stream in streams]
    return "\n".join(found)


def _sofar(group: RunGroup) -> list[float]:
    rows = [record.result.accuracies[1:] for record in group.finished]
    length = min((len(row) for row in rows), default=0)
    return [
        statistics.fmean(statistics.fmean(row[after][: after + 1]) for row in rows) for after in range(length)
    ]


def _figure(stream: str, groups: Sequence[RunGroup]) -> str:
    found = [(group, _sofar(group)) for group in groups]
    lines = [(group, values) for group, values in found if values and all(map(math.isfinite, values))]
    if not lines:
        return ""
    flat = [value for _, values in lines for value in values]
    low, high = min(flat), max(flat)
    longest = max(len(values) for _, values in lines)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(number: int) -> float:
        return LEFT + (right - LEFT) * (number / max(1, longest - 1))

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * ((value - low) / (high - low) if high > low else 0.5)

    parts = [f'<text x="{LEFT}" y="14">{escape(stream)}: mean accuracy on the tasks so far, %</text>']
    for value in (low, (low + high) / 2, high):
        parts.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{100 * value:.1f}</text>'
        )
    for number in {0, longest - 1}:
        parts.append(
            f'<text x="{x(number):.1f}" y="{bottom + 18}" text-anchor="middle">task {number + 1}</text>'
        )
    ends: list[float] = []
    for group, values in sorted(lines, key=lambda item: -item[1][-1]):
        colour = method_style(group.method)[0]
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(values))
        ends.append(max(y(values[-1]) + 4, ends[-1] + 13 if ends else 0.0))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 8}" y="{ends[-1]:.1f}">{escape(group.label)}</text>')
    height = max(HEIGHT, math.ceil(max(ends)) + 8)
    label = f"accuracy through the tasks of {escape(stream, quote=True)}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )
