"""Lines with bands, in the style of the laboratory's figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from orthocl.palette import COLOURS, INK, MARKERS
from orthocl.paper.samples import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = tuple[str, str]
"""Colour and marker; a method has those of the palette in all figures (`method_style`)."""


def panels(
    count: int, columns: int = 3, width: float = 4.0, height: float = 3.0
) -> tuple[Figure, list[Axes]]:
    """A figure with panels, independent of any global state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(1, min(columns, count))
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(count)]
    for axis in axes:
        axis.grid(True, color="#8884", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8, colors=INK)
    return figure, axes


def band(
    axis: Axes, xs: Sequence[float], samples: Sequence[Sample], label: str, style: Style, dashed: bool = False
) -> None:
    """A line of means over seeds with a band of one standard deviation (n - 1)."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))  # tasks, steps, units: all are counted
    means = np.array([sample.mean for sample in samples])
    spreads = np.nan_to_num([sample.spread for sample in samples])
    paint, marker = style
    many = len(xs) > 40
    axis.plot(
        xs,
        means,
        "--" if dashed else "-",
        color=paint,
        marker="" if many else marker,
        markersize=3.5,
        linewidth=1.0 if many else 1.4,
        label=label,
    )
    if spreads.any():
        axis.fill_between(xs, means - spreads, means + spreads, color=paint, alpha=0.12, linewidth=0)


def measured_band(axis: Axes, points: Sequence[tuple[float, Sample]], label: str, style: Style) -> None:
    """A band through the points that were measured, with a tick at each."""
    measured = [point for point in points if len(point[1])]
    if measured:
        band(axis, [x for x, _ in measured], [sample for _, sample in measured], label, style)
    axis.set_xticks([x for x, _ in points])


def clip(axis: Axes, values: Sequence[float]) -> None:
    """Let these values alone choose the range of the vertical axis; nothing happens if there are none."""
    if values:
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or 1.0
        axis.set_ylim(low - room, high + room)


def describe(axis: Axes, title: str, across: str, up: str) -> None:
    """Title of a panel and names of its axes; a long one takes two lines, a panel is not high enough for it."""
    axis.set_title(title, fontsize=9, color=INK)
    axis.set_xlabel(across, fontsize=8, color=INK)
    axis.set_ylabel(textwrap.fill(up, 32), fontsize=8, color=INK)


def shared_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them."""
    handles = {
        text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(7, max(1, len(handles))),
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )


def series_style(number: int) -> Style:
    """Colour and marker of a series that is no method.

    >>> series_style(0) == series_style(8)
    True
    """
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
