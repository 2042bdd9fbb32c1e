"""Figures of runs: accuracy through the tasks, per-task curves, accuracy on the memorised samples.

Each function returns a matplotlib figure; `save_figure` writes SVG, PDF or PNG by the suffix of the path.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from orthocl.errors import DataError, StoreError, unknown_name
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.store.record import Record
from orthocl.palette import COLOURS, INK, method_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pairs = Sequence[tuple[RunSettings, Record]]
SUFFIXES = ("svg", "pdf", "png")
# Okabe and Ito's colours: told apart by colour-blind readers, legible on white and on black.
STYLES = ("-", "--", ":", "-.")
"""Of several settings of one method, which share its colour."""
"""Colour of all text and axes; pages replace it by their own."""


def accuracy_figure(pairs: Pairs) -> Figure:
    """Mean test accuracy over the tasks learnt so far, after each task; a band of one standard deviation."""
    return _per_stream(
        pairs,
        "mean accuracy on tasks so far, %",
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

    return _per_stream(pairs, f"test accuracy on task {task}, %", values)


def memorised_figure(pairs: Pairs, task: int = 1) -> Figure:
    """Training accuracy on a task's remembered samples, after each task.

    Paper: Figures 1 to 4, for the first task.
    """

    def values(record: Record) -> list[float]:
        return [100 * row.get(task, math.nan) for row in record.result.memorised]

    return _per_stream(pairs, f"memorised samples of task {task}, %", values)


def curves_figure(pairs: Pairs) -> Figure:
    """Test accuracy of every task while training, one panel per stream and method, averaged over seeds."""
    found = [group for group in groups(pairs) if group[2][0].result.curves]
    if not found:
        raise DataError("no run recorded curves: set train.evaluate_every to a number of steps")
    figure, axes = _panels(len(found))
    for axis, (stream, method, records) in zip(axes, found, strict=True):
        points = records[0].result.curves
        position, offset, last = [], 0, 0
        for index, point in enumerate(points):
            if index and point["task"] != points[index - 1]["task"]:
                offset, last = last, last
                axis.axvline(offset, color="#8888", linewidth=0.6)
            last = offset + point["step"]
            position.append(last)
        mean = np.mean(
            [[point["accuracies"] for point in record.result.curves] for record in records], axis=0
        )
        for task in range(mean.shape[1]):
            axis.plot(
                position,
                100 * mean[:, task],
                color=COLOURS[task % len(COLOURS)],
                linewidth=1,
                label=f"{task + 1}",
            )
        axis.set_title(f"{stream}, {method}", fontsize=9)
        axis.set_xlabel("steps")
        axis.set_ylabel("test accuracy, %")
    if len(found[0][2][0].result.accuracies) <= 9:
        axes[0].legend(title="task", fontsize=7, title_fontsize=7)
    return figure


def heatmap_figure(settings: RunSettings, record: Record) -> Figure:
    """The accuracy matrix of one run: rows after each task, columns tasks."""
    figure, axes = _panels(1, width=0.32 * len(record.result.accuracies) + 1.6)
    axis = axes[0]
    values = 100 * np.array(record.result.accuracies)
    image = axis.imshow(values, cmap="viridis", vmin=0, vmax=100, aspect="auto")
    axis.set_xticks(range(values.shape[1]), [str(task + 1) for task in range(values.shape[1])], fontsize=7)
    axis.set_yticks(range(values.shape[0]), ["start", *map(str, range(1, values.shape[0]))], fontsize=7)
    axis.set_xlabel("test accuracy on task")
    axis.set_ylabel("after task")
    axis.set_title(settings.label, fontsize=9)
    axis.grid(False)
    figure.colorbar(image, ax=axis, label="%")
    return figure


FIGURES: dict[str, Callable[[Pairs], Figure]] = {
    "accuracy": accuracy_figure,
    "first-task": first_task_figure,
    "memorised": memorised_figure,
    "curves": curves_figure,
}


def make_figure(name: str, pairs: Pairs) -> Figure:
    """A figure by its name, of the finished runs among `pairs`."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    return FIGURES[name](pairs)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the suffix says how: .svg, .pdf or .png. Its folder is created if needed."""
    path = Path(path)
    suffix = check_suffix(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(figure, path, suffix)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    return path


def check_suffix(path: Path) -> str:
    """The format that the suffix of a figure's path asks for; an error if there is none."""
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in SUFFIXES:
        raise unknown_name("figure format", suffix, SUFFIXES)
    return suffix


def _save(figure: Figure, out: Path | io.StringIO, suffix: str) -> None:
    """No date or random ids, so that equal figures give equal files; text stays text in SVG."""
    from matplotlib import rc_context

    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    with rc_context({"svg.hashsalt": "orthocl", "svg.fonttype": "none"}):
        figure.savefig(out, format=suffix, dpi=160, metadata=metadata)


def figure_svg(figure: Figure) -> str:
    """A figure as SVG text to put into a page; it takes the page's text colour."""
    out = io.StringIO()
    figure.patch.set_alpha(0.0)
    for axis in figure.axes:
        axis.patch.set_alpha(0.0)
    _save(figure, out, "svg")
    text = out.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")


def _per_stream(pairs: Pairs, label: str, values: Callable[[Record], list[float]]) -> Figure:
    """One panel per stream, one line per method. A method keeps its colour even where others have nothing to show."""
    from matplotlib.ticker import MaxNLocator

    methods = list(dict.fromkeys(method for _, method, _ in groups(pairs)))
    lines = {
        (stream, method): rows
        for stream, method, records in groups(pairs)
        if not np.isnan(rows := [values(record) for record in records]).all()
    }
    if not lines:
        raise DataError("there is no finished run to draw: run the experiment first")
    streams = list(dict.fromkeys(stream for stream, _ in lines))
    figure, axes = _panels(len(streams))
    for axis, stream in zip(axes, streams, strict=True):
        for (name, method), rows in lines.items():
            if name == stream:
                _line(axis, method, _alike(methods, method), rows)
        axis.set_title(stream, fontsize=10)
        axis.set_xlabel("tasks learnt")
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = {
        text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(6, len(handles)),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    return figure


def _alike(methods: Sequence[str], method: str) -> int:
    """How many methods of the same colour come before one."""
    before = methods[: methods.index(method)]
    return sum(method_style(other) == method_style(method) for other in before)


def _line(axis: Axes, label: str, alike: int, rows: Sequence[Sequence[float]]) -> None:
    length = min(len(row) for row in rows)
    values = np.array([row[:length] for row in rows])
    mean, position = values.mean(0), np.arange(1, length + 1)
    colour, marker = method_style(label)
    style = STYLES[alike % len(STYLES)]
    axis.plot(position, mean, style, color=colour, marker=marker, markersize=4, linewidth=1.6, label=label)
    if len(rows) > 1:
        spread = values.std(0, ddof=1)
        low, high = (np.clip(mean + side * spread, 0.0, 100.0) for side in (-1, 1))
        axis.fill_between(position, low, high, color=colour, alpha=0.12, linewidth=0)


def groups(pairs: Iterable[tuple[RunSettings, Record]]) -> list[tuple[str, str, list[Record]]]:
    """(stream, method, records over seeds) of the finished runs, in order."""
    by_label: dict[tuple[str, str, str], list[Record]] = {}
    for settings, record in pairs:
        if record.status == "finished":
            stream = settings.stream_label or settings.stream.name
            method = settings.method_label or settings.method.name
            by_label.setdefault((stream, method, record.settings.without_seed()), []).append(record)
    return [(stream, method, records) for (stream, method, _), records in by_label.items()]


def _panels(count: int, width: float = 4.4) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, at most three to a row; independent of any global state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, 3.3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(count)]
    for axis in axes:
        axis.grid(True, color="#8884", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8, colors=INK)
        for spine in axis.spines.values():
            spine.set_color(INK)
        for text in (axis.xaxis.label, axis.yaxis.label, axis.title):
            text.set(color=INK, fontsize=9)
    return figure, axes
