"""Figures of runs: accuracy through the tasks, per-task curves, accuracy on the memorised samples.

Each function returns a matplotlib figure; `save_figure` writes SVG, PDF or PNG by the suffix of the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from orthocl.errors import DataError, unknown_name
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.reporting.groups import RunGroup, group_runs
from orthocl.lab.reporting.trade_off import bytes_figure, directions_figure
from orthocl.lab.store.record import Record
from orthocl.palette import COLOURS, alike_before, method_style
from orthocl.plotting import (
    SMALL,
    SUFFIXES,
    check_suffix,
    describe,
    figure_svg,
    handles_of,
    label_text,
    legend_below,
    panels,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "FIGURES",
    "SUFFIXES",
    "accuracy_figure",
    "check_suffix",
    "curves_figure",
    "figure_svg",
    "first_task_figure",
    "heatmap_figure",
    "make_figure",
    "memorised_figure",
    "save_figure",
]

Pairs = Sequence[tuple[RunSettings, Record]]
STYLES = ("-", "--", ":", "-.")
"""Of several settings of one method, which share its colour."""
LEGEND_TASKS = 10
"""Tasks that the legend of curves can name."""


def accuracy_figure(pairs: Pairs) -> Figure:
    """Mean test accuracy over the tasks learnt so far, after each task; a band of one standard deviation."""
    return _per_stream(
        pairs,
        "accuracy on tasks so far, %",
        lambda record: [
            100 * sum(row[:number]) / number
            for number, row in enumerate(record.result.accuracies[1:], start=1)
        ],
    )


def first_task_figure(pairs: Pairs, task: int = 1) -> Figure:
    """Test accuracy on one task, from the time it was learnt."""

    def values(record: Record) -> list[float]:
        rows = record.result.accuracies
        if task > len(rows) - 1:
            raise DataError(f"there is no task {task}: the stream has {len(rows) - 1}")
        return [math.nan] * (task - 1) + [100 * row[task - 1] for row in rows[task:]]

    return _per_stream(pairs, f"accuracy on task {task}, %", values)


def memorised_figure(pairs: Pairs, task: int = 1) -> Figure:
    """Training accuracy on a task's remembered samples, after each task.

    Paper: Figures 1 to 4, for the first task.
    """

    def values(record: Record) -> list[float]:
        return [100 * row.get(task, math.nan) for row in record.result.memorised]

    return _per_stream(pairs, f"memorised samples of task {task}, %", values)


def curves_figure(pairs: Pairs) -> Figure:
    """Test accuracy of every task while training, one panel per stream and method, averaged over seeds."""
    found = [group for group in _finished(pairs) if group.with_curves]
    if not found:
        raise DataError("no run recorded curves: set train.evaluate_every to a number of steps")
    figure, axes = panels(len(found))
    for axis, group in zip(axes, found, strict=True):
        points = group.with_curves[0].result.curves
        position, offset, last = [], 0, 0
        for index, point in enumerate(points):
            if index and point["task"] != points[index - 1]["task"]:
                offset, last = last, last
                axis.axvline(offset, color="#8888", linewidth=0.6)
            last = offset + point["step"]
            position.append(last)
        mean = np.mean(
            [[point["accuracies"] for point in record.result.curves] for record in group.with_curves], axis=0
        )
        for task in range(mean.shape[1]):
            colour = COLOURS[task % len(COLOURS)]
            style = STYLES[task // len(COLOURS) % len(STYLES)]
            axis.plot(position, 100 * mean[:, task], style, color=colour, linewidth=1, label=f"{task + 1}")
        describe(axis, label_text(f"{group.stream}, {group.label}"), "steps", "test accuracy, %")
    if len(found[0].finished[0].result.accuracies) - 1 <= LEGEND_TASKS:
        legend_below(figure, {f"task {label}": handle for label, handle in handles_of(axes).items()})
    return figure


def heatmap_figure(settings: RunSettings, record: Record) -> Figure:
    """The accuracy matrix of one run: rows after each task, columns tasks."""
    values = 100 * np.array(record.result.accuracies)
    figure, (axis,) = panels(1, width=0.3 * len(values) + 1.6, height=0.24 * len(values) + 1.1)
    image = axis.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    axis.set_xticks(
        range(values.shape[1]), [str(task + 1) for task in range(values.shape[1])], fontsize=SMALL
    )
    axis.set_yticks(range(values.shape[0]), ["start", *map(str, range(1, values.shape[0]))], fontsize=SMALL)
    describe(axis, label_text(settings.label), "test accuracy on task", "after task")
    axis.grid(False)
    figure.colorbar(image, ax=axis, label="%")
    return figure


FIGURES: dict[str, Callable[[Pairs], Figure]] = {
    "accuracy": accuracy_figure,
    "first-task": first_task_figure,
    "memorised": memorised_figure,
    "curves": curves_figure,
    "trade-off": bytes_figure,
    "trade-off-directions": directions_figure,
}


def make_figure(name: str, pairs: Pairs) -> Figure:
    """A figure by its name, of the finished runs among `pairs`."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    return FIGURES[name](pairs)


def _finished(pairs: Pairs) -> list[RunGroup]:
    return [group for group in group_runs(pairs) if group.finished]


def _per_stream(pairs: Pairs, label: str, values: Callable[[Record], list[float]]) -> Figure:
    """One panel per stream, one line per method and choice of settings.

    A method keeps its colour everywhere; several of its settings differ in their dashes and are named.
    """
    from matplotlib.ticker import MaxNLocator

    groups = _finished(pairs)
    labels = list(dict.fromkeys(group.label for group in groups))
    found = [(group, [values(record) for record in group.finished]) for group in groups]
    lines = [(group, rows) for group, rows in found if not np.isnan(_rectangle(rows)).all()]
    if not lines:
        raise DataError("there is no finished run to draw: run the experiment first")
    streams = list(dict.fromkeys(group.stream for group, _ in lines))
    figure, axes = panels(len(streams))
    for number, (axis, stream) in enumerate(zip(axes, streams, strict=True)):
        for group, rows in lines:
            if group.stream == stream:
                _line(axis, group, alike_before(labels, group.label), rows)
        describe(axis, label_text(stream), "tasks learnt", label if number % 3 == 0 else "")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, handles_of(axes))
    return figure


def _rectangle(rows: Sequence[Sequence[float]]) -> np.ndarray:
    length = min(len(row) for row in rows)
    return np.array([row[:length] for row in rows])


def _line(axis: Axes, group: RunGroup, alike: int, rows: Sequence[Sequence[float]]) -> None:
    values = _rectangle(rows)
    mean, position = values.mean(0), np.arange(1, values.shape[1] + 1)
    colour, marker = method_style(group.method)
    style = STYLES[alike % len(STYLES)]
    axis.plot(
        position,
        mean,
        style,
        color=colour,
        marker=marker,
        markersize=3.2,
        linewidth=1.3,
        label=label_text(group.label),
    )
    if len(rows) > 1:
        spread = values.std(0, ddof=1)
        low, high = (np.clip(mean + side * spread, 0.0, 100.0) for side in (-1, 1))
        axis.fill_between(position, low, high, color=colour, alpha=0.12, linewidth=0)
