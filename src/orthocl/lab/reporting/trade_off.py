"""Trade-off: what a method keeps and learns, against what it costs in bytes or in protected directions.

One row of panels per stream, one panel per metric, one point per method and choice of settings. A method that costs
nothing, such as plain training, is a horizontal line: on a logarithmic axis it has no place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from orthocl.errors import DataError
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.reporting.groups import RunGroup, group_runs
from orthocl.lab.store.record import Record
from orthocl.palette import alike_before, method_style
from orthocl.plotting import describe, handles_of, label_text, legend_below, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {"aac": "accuracy", "learning-accuracy": "learning accuracy", "forgetting": "forgetting"}
"""Metric -> what its panel is called."""
REFERENCES = ("sgd", "stable-sgd", "joint")
"""What is drawn as a line where it costs nothing."""
FILLS = ("full", "none", "left", "right", "top", "bottom")
"""Of the markers of several settings of one method, which share its colour."""


def bytes_figure(pairs: Sequence[tuple[RunSettings, Record]]) -> Figure:
    """Accuracy, learning accuracy and forgetting against the most memory that a method took."""
    return _figure(pairs, "memory, MB", lambda record: record.memory / 1e6)


def directions_figure(pairs: Sequence[tuple[RunSettings, Record]]) -> Figure:
    """The same against the number of directions that a method protected at the end."""
    return _figure(pairs, "protected directions", _directions)


def _directions(record: Record) -> float:
    return record.result.monitors[-1].get("rank", 0.0) if record.result.monitors else 0.0


def _figure(
    pairs: Sequence[tuple[RunSettings, Record]], across: str, cost: Callable[[Record], float]
) -> Figure:
    from matplotlib.ticker import NullFormatter

    groups = [group for group in group_runs(pairs) if group.finished]
    if not groups:
        raise DataError("there is no finished run to draw: run the experiment first")
    streams = list(dict.fromkeys(group.stream for group in groups))
    labels = list(dict.fromkeys(group.label for group in groups))
    figure, axes = panels(len(streams) * len(METRICS), columns=len(METRICS), height=1.9)
    for row, stream in enumerate(streams):
        for column, (metric, name) in enumerate(METRICS.items()):
            axis = axes[row * len(METRICS) + column]
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())  # within one decade they would overlap
            for group in groups:
                if group.stream == stream:
                    _draw(axis, group, alike_before(labels, group.label), metric, cost)
            describe(
                axis,
                name if row == 0 else "",
                across if row == len(streams) - 1 else "",
                label_text(f"{stream}, %") if column == 0 else "",
            )
    figure.align_ylabels(axes[:: len(METRICS)])
    legend_below(figure, handles_of(axes))
    return figure


def _draw(axis: Axes, group: RunGroup, alike: int, metric: str, cost: Callable[[Record], float]) -> None:
    values = [100 * record.metric(metric) for record in group.finished]
    place = mean(cost(record) for record in group.finished)
    colour, marker = method_style(group.label)
    label = label_text(group.label)
    if place > 0:
        spread = stdev(values) if len(values) > 1 else None
        look: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0.8, "elinewidth": 0.8}
        fill = FILLS[alike % len(FILLS)]
        axis.errorbar(
            place, mean(values), spread, fmt=marker, fillstyle=fill, color=colour, label=label, **look
        )
    elif group.finished[0].settings.method.name in REFERENCES:
        axis.axhline(mean(values), color=colour, linewidth=0.9, linestyle="--", label=label)
