"""Figure 4: variation of the training accuracy on the memorised samples of the first task as the memory grows.

Paper: Figure 4 (`fig:app-mem-size-perm`), appendix. The runs are those of `experiments/figure_4.toml`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orthocl.palette import method_style
from orthocl.paper.claims import conclude, rises
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.drawing import describe, measured_band, panels
from orthocl.paper.evidence import Evidence, Measure, memorised
from orthocl.paper.page import Page
from orthocl.paper.published import published_item
from orthocl.paper.samples import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure-4"
METHODS = ("ogd", "ogd+")


def by_memory(evidence: Evidence, stream: str, method: str, measure: Measure) -> list[tuple[float, Sample]]:
    """A number over seeds for every memory that was asked for."""
    labels = {
        run.method_label: float(run.method.settings["memory_per_task"])
        for run in evidence.runs
        if run.stream_label == stream and run.method_label.split(" ")[0] == method
    }
    found = [(size, evidence.sample(stream, label, measure)) for label, size in labels.items()]
    return sorted(found, key=lambda pair: pair[0])


def figure_4(evidence: Evidence, comparable: bool = True) -> Page:
    """Figure 4 from the records of its runs."""
    lines = [
        Line(stream, method, f"{size:g} samples per task", sample)
        for stream in evidence.streams
        for method in METHODS
        for size, sample in by_memory(evidence, stream, method, memorised(1))
    ]
    findings = [
        rises(f"{stream} with {method}", by_memory(evidence, stream, method, memorised(1)), uniformly=True)
        for stream in evidence.streams
        for method in METHODS
    ]
    claim = "What is forgotten of the memorised samples shrinks uniformly as the memory grows"
    return Page(
        NAME,
        "Figure 4: memorised samples of the first task against the memory",
        published_item(NAME).caption,
        (Comparison("Variation in %", tuple(lines), comparable),),
        verdicts=(conclude(claim, "appendix", findings),),
        draw=partial(draw, evidence) if any(len(line.ours) for line in lines) else None,
    )


def draw(evidence: Evidence) -> Figure:
    """One panel per stream and method, each on a scale of its own: variation against the memory."""
    wanted = [(stream, method) for stream in evidence.streams for method in METHODS]
    figure, axes = panels(len(wanted))
    for axis, (stream, method) in zip(axes, wanted, strict=True):
        measured_band(axis, by_memory(evidence, stream, method, memorised(1)), method, method_style(method))
        what = "variation on memorised samples of task 1, %"
        describe(axis, f"{stream}, {method}", "memory per task", what)
    return figure
