"""Figure 5: test accuracy on the first ten tasks of Rotated MNIST while training, every 250 mini-batches.

Paper: Figure 5 (`fig:app:split-cifar`), appendix. The runs are those of `experiments/figure_5.toml`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orthocl.lab import Record
from orthocl.palette import method_style
from orthocl.paper.claims import Verdict, conclude, is_above_on_most
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.drawing import band, describe, panels, shared_legend
from orthocl.paper.evidence import Evidence, seeds_behind
from orthocl.paper.page import Page
from orthocl.paper.published import published_item
from orthocl.paper.samples import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure-5"
TASKS = 10
"""Panels of the figure."""


def curve(records: list[Record], task: int) -> tuple[list[float], list[Sample]]:
    """Steps since the beginning of the stream, and the accuracy on a task there, from when it is being learnt."""
    points: dict[float, dict[int, float]] = {}
    for record in records:
        lengths: dict[int, int] = {}
        for point in record.result.curves:
            lengths[point["task"]] = max(lengths.get(point["task"], 0), point["step"])
        for point in record.result.curves:
            if point["task"] >= task:
                before = sum(length for number, length in lengths.items() if number < point["task"])
                values = points.setdefault(before + point["step"], {})
                values[record.settings.seed] = 100 * point["accuracies"][task - 1]
    steps = sorted(points)
    return steps, [Sample(points[step]) for step in steps]


def figure_5(evidence: Evidence, comparable: bool = True) -> Page:
    """Figure 5 from the records of its runs."""
    lines = [
        Line(stream, method, f"task {task}", _mean_after(evidence, stream, method, task))
        for stream in evidence.streams
        for task in range(1, tasks_shown(evidence) + 1)
        for method in evidence.methods(stream)
    ]
    return Page(
        NAME,
        "Figure 5: test accuracy on the first tasks of Rotated MNIST while training",
        published_item(NAME).caption + seeds_behind(evidence),
        (
            Comparison(
                "Mean accuracy in % at all points after the task", tuple(lines), comparable, across=True
            ),
        ),
        verdicts=tuple(
            verdict(evidence, stream, other) for stream in evidence.streams for other in ("ogd", "ogd+")
        ),
        draw=partial(draw, evidence) if any(len(line.ours) for line in lines) else None,
    )


def verdict(evidence: Evidence, stream: str, other: str) -> Verdict:
    """Whether A-GEM keeps most of the first tasks better than another method while later ones are learnt."""
    shown = range(1, tasks_shown(evidence) + 1)
    changes = [
        _mean_after(evidence, stream, "a-gem", task).minus(_mean_after(evidence, stream, other, task))
        for task in shown
    ]
    claim = f"While later tasks are learnt, A-GEM keeps most of the first tasks better than {other.upper()}"
    return conclude(claim, "appendix A.1", [is_above_on_most(stream, changes)])


def tasks_shown(evidence: Evidence) -> int:
    """At most ten, and only tasks that others follow."""
    counts = [len(record.result.accuracies) - 2 for _, record in evidence.pairs]
    return max(0, min([TASKS, *counts])) if counts else 0


def draw(evidence: Evidence) -> Figure:
    """One panel per task."""
    shown = tasks_shown(evidence)
    figure, axes = panels(shown, columns=2, width=5.0, height=2.4)
    stream = evidence.streams[0]
    for task, axis in enumerate(axes, start=1):
        for method in evidence.methods(stream):
            steps, samples = curve(evidence.records(stream, method), task)
            if steps:
                band(axis, steps, samples, method, method_style(method))
        describe(axis, f"{stream}, task {task}", "mini-batches", "test accuracy, %")
    shared_legend(figure, axes)
    return figure


def _mean_after(evidence: Evidence, stream: str, method: str, task: int) -> Sample:
    values = {}
    for record in evidence.records(stream, method):
        later = [point["accuracies"][task - 1] for point in record.result.curves if point["task"] > task]
        if later:
            values[record.settings.seed] = 100 * sum(later) / len(later)
    return Sample(values)
