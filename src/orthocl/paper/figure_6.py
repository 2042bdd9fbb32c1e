"""Figure 6: test accuracy on tasks 1 and 7 at the end of each task, all methods, all streams.

Paper: Figure 6 (`fig:app:val`), appendix. The runs are those of Table 2.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orthocl.formatting import joined
from orthocl.lab import Record
from orthocl.palette import method_style
from orthocl.paper.claims import conclude, is_higher, working
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.drawing import band, clip, describe, panels, shared_legend
from orthocl.paper.evidence import Evidence, final_accuracy, seeds_behind
from orthocl.paper.page import Page
from orthocl.paper.published import published_item
from orthocl.paper.samples import Sample
from orthocl.paper.table_1 import LOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure-6"
TASKS = (1, 7)


def figure_6(evidence: Evidence, comparable: bool = True) -> Page:
    """Figure 6 from the records of its runs."""
    lines = [
        Line(stream, method, f"task {task}", evidence.sample(stream, method, final_accuracy(task)))
        for stream in evidence.streams
        for task in _shown(evidence, stream)
        for method in evidence.methods(stream)
    ]
    findings = [is_higher(evidence, stream, "ogd+", "ogd", final_accuracy(1)) for stream in LOW]
    return Page(
        NAME,
        "Figure 6: test accuracy on tasks 1 and 7 through the tasks",
        published_item(NAME).caption + seeds_behind(evidence),
        (Comparison("Accuracy in % after the last task", tuple(lines), comparable, across=True),),
        verdicts=(
            conclude(
                "On the MNIST streams OGD+ keeps the first task better than OGD", "section 7.3", findings
            ),
        ),
        draw=partial(draw, evidence) if any(len(line.ours) for line in lines) else None,
    )


def draw(evidence: Evidence) -> Figure:
    """One panel per stream and task."""
    wanted = [(stream, task) for stream in evidence.streams for task in _shown(evidence, stream)]
    figure, axes = panels(len(wanted), columns=2, width=5.0)
    for axis, (stream, task) in zip(axes, wanted, strict=True):
        lines = {
            method: samples
            for method in evidence.methods(stream)
            if (samples := through_tasks(evidence.records(stream, method), task))
        }
        fit, _ = working(evidence, stream, list(lines))
        for method, samples in lines.items():
            band(axis, range(task, task + len(samples)), samples, method, method_style(method))
        lost = [method for method in evidence.methods(stream) if evidence.diverged_seeds(stream, method)]
        below = [method for method in lines if method not in fit]
        clip(axis, [sample.mean for method in fit for sample in lines[method]] if below else [])
        remarks = [f"{joined(lost)} diverged"] * bool(lost) + [f"{joined(below)} below, at chance"] * bool(
            below
        )
        describe(axis, "; ".join([f"{stream}, task {task}", *remarks]), "tasks learnt", "test accuracy, %")
    shared_legend(figure, axes)
    return figure


def through_tasks(records: list[Record], task: int) -> list[Sample]:
    """Accuracy on a task after it and after each later one, over seeds."""
    ends = min((len(record.result.accuracies) for record in records), default=0)
    return [
        Sample({record.settings.seed: 100 * record.result.accuracies[end][task - 1] for record in records})
        for end in range(task, ends)
    ]


def _shown(evidence: Evidence, stream: str) -> list[int]:
    records = [record for run, record in evidence.pairs if run.stream_label == stream]
    tasks = min((len(record.result.accuracies) - 1 for record in records), default=0)
    return [task for task in TASKS if task <= tasks]
