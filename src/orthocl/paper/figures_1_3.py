"""Figures 1 to 3: variation of the training accuracy on the memorised samples as the hidden layers grow.

Paper: Figure 1 (`fig:mem-ogd`, first task), Figure 2 (`fig:hidden-size-perm`, every task) in section 7.1, Figure 3
(`fig:app-hidden-size-perm`, every task) in the appendix. The text of Figure 3 speaks of OGD+, its experiment of OGD:
Figure 2 is drawn for OGD, Figure 3 for OGD+. The runs are those of `experiments/figures_1_3.toml`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orthocl.lab import RunSettings
from orthocl.palette import method_style
from orthocl.paper.claims import Finding, Verdict, conclude, rises
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.drawing import band, describe, measured_band, panels, series_style, shared_legend
from orthocl.paper.evidence import Evidence, Measure, memorised, memorised_everywhere
from orthocl.paper.page import Page
from orthocl.paper.published import published_item
from orthocl.paper.samples import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("ogd", "ogd+")
TITLES = {
    "figure-1": "Figure 1: memorised samples of the first task against the hidden size",
    "figure-2": "Figure 2: memorised samples of every task against the hidden size, OGD",
    "figure-3": "Figure 3: memorised samples of every task against the hidden size, OGD+",
}


def hidden_size(run: RunSettings) -> int:
    """Hidden units per layer of a run's network."""
    hidden = run.net.settings["hidden"]
    return int(hidden[0] if isinstance(hidden, list | tuple) else hidden)


def by_width(evidence: Evidence, stream: str, method: str, measure: Measure) -> list[tuple[float, Sample]]:
    """A number over seeds for every hidden size that was asked for."""
    labels = {
        run.method_label: hidden_size(run)
        for run in evidence.runs
        if run.stream_label == stream and run.method_label.split(" ")[0] == method
    }
    found = [(float(width), evidence.sample(stream, label, measure)) for label, width in labels.items()]
    return sorted(found, key=lambda pair: pair[0])


def memorised_by_width(name: str, evidence: Evidence, comparable: bool = True) -> Page:
    """One of Figures 1 to 3 from the records of its runs."""
    shown = METHODS if name == "figure-1" else ("ogd",) if name == "figure-2" else ("ogd+",)
    first = name == "figure-1"
    lines = [
        Line(stream, method, f"{width:g} hidden units", sample)
        for stream in evidence.streams
        for method in shown
        for width, sample in by_width(
            evidence, stream, method, memorised(1) if first else memorised_everywhere
        )
    ]
    what = "first task" if first else "mean over the tasks that others followed"
    printed = published_item(name)
    drawn = any(len(line.ours) for line in lines)
    return Page(
        name,
        TITLES[name],
        printed.caption,
        (Comparison(f"Variation in % ({what})", tuple(lines), comparable),),
        verdicts=(verdict(name, evidence, shown),),
        draw=partial(draw_first if first else draw_each, evidence, shown) if drawn else None,
    )


figure_1 = partial(memorised_by_width, "figure-1")
figure_2 = partial(memorised_by_width, "figure-2")
figure_3 = partial(memorised_by_width, "figure-3")


def verdict(name: str, evidence: Evidence, methods: tuple[str, ...]) -> Verdict:
    """Whether less is forgotten as the network grows."""
    measure = memorised(1) if name == "figure-1" else memorised_everywhere
    uniformly = name == "figure-3"
    findings: list[Finding] = [
        rises(stream, by_width(evidence, stream, method, measure), uniformly)
        for stream in evidence.streams
        for method in (("ogd",) if name == "figure-1" else methods)
    ]
    word = "uniformly " if uniformly else ""
    claim = f"What is forgotten of the memorised samples shrinks {word}as the hidden layers grow"
    return conclude(claim, "appendix" if uniformly else "section 7.1", findings)


def draw_first(evidence: Evidence, methods: tuple[str, ...]) -> Figure:
    """One panel per stream: variation of the first task against the hidden size."""
    figure, axes = panels(len(evidence.streams))
    for axis, stream in zip(axes, evidence.streams, strict=True):
        for method in methods:
            measured_band(
                axis, by_width(evidence, stream, method, memorised(1)), method, method_style(method)
            )
        run = {
            width
            for method in methods
            for width, sample in by_width(evidence, stream, method, memorised(1))
            if sample
        }
        if len(run) == 1:
            axis.set_ylim(-100, 0)  # on the scale of its own noise a single width would look like an effect
        title = f"{stream}: one width run" if len(run) == 1 else stream
        describe(axis, title, "hidden units", "variation on memorised samples of task 1, %")
    shared_legend(figure, axes)
    return figure


def draw_each(evidence: Evidence, methods: tuple[str, ...]) -> Figure:
    """One panel per stream: variation of every task, one line per hidden size, of one colour in all panels."""
    figure, axes = panels(len(evidence.streams))
    measured = {stream: by_width(evidence, stream, methods[0], memorised(1)) for stream in evidence.streams}
    every = sorted({width for points in measured.values() for width, _ in points})
    for axis, stream in zip(axes, evidence.streams, strict=True):
        widths = [width for width, sample in measured[stream] if len(sample)]
        records = [record for run, record in evidence.pairs if run.stream_label == stream]
        tasks = range(1, min((len(record.result.memorised) for record in records), default=1))
        for width in widths:
            samples = [dict(by_width(evidence, stream, methods[0], memorised(task)))[width] for task in tasks]
            band(axis, list(tasks), samples, f"{width:g} hidden units", series_style(every.index(width)))
        describe(axis, f"{stream}, {methods[0]}", "task", "variation on its memorised samples, %")
    shared_legend(figure, axes)
    return figure
