"""The authors' grid search on Split CIFAR-100 and our runs: is the scale of EWC, SI and MAS right everywhere?

Their 216 runs (one seed, 100 hidden units) are in `authors_cifar100.csv`. Ours are looked for among the runs of
`experiments/authors_grid.toml` and of `experiments/split_cifar100_hidden_100.toml`, which has the protocol's point.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from orthocl.formatting import joined
from orthocl.lab import Record, RunSettings
from orthocl.palette import COLOURS
from orthocl.paper.authors import AuthorsValue, GridRun, authors_grid, authors_value
from orthocl.paper.claims import Answer, Finding, Verdict, conclude
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.drawing import describe, panels, shared_legend
from orthocl.paper.evidence import Evidence, aac
from orthocl.paper.page import Page, WordTable
from orthocl.paper.published import find_printed
from orthocl.paper.samples import Sample, number_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "authors-grid"
STREAM = "split-cifar100"
METHODS = ("ewc", "si", "mas")
CLOSE = 5.0
"""Points of average accuracy within which one seed of ours and one of theirs count as close: about two and a half times
the largest printed spread of the three methods."""
CHANCE = 20.0
"""What the authors' code recorded where training diverged: it went on with weights that are no numbers. Ours stops."""


def ours_at(evidence: Evidence, point: GridRun) -> Sample:
    """Our average accuracy, over seeds, at a point of the authors' grid."""
    values = {
        record.settings.seed: aac(record)
        for _, record in evidence.pairs
        if record.status == "finished" and _at(record.settings, point)
    }
    return Sample(values)


def ours_diverged(evidence: Evidence, point: GridRun) -> bool:
    """Whether a run of ours at a point of the authors' grid diverged."""
    return any(_at(run, point) for run, _ in evidence.diverged)


def _at(run: RunSettings, point: GridRun) -> bool:
    if run.method.name != point.method or run.net.settings.get("hidden") != 100:
        return False
    settings = (run.train.learning_rate, run.train.batch_size, float(run.method.settings["strength"]))
    wanted = (point.learning_rate, point.batch_size, point.strength)
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(settings, wanted, strict=True))


def grid_page(evidence: Evidence, comparable: bool = True) -> Page:
    """The grid with our runs, and the runs with the authors' hidden size."""
    matched = [(point, ours_at(evidence, point)) for point in authors_grid()]
    matched = [(point, sample) for point, sample in matched if len(sample)]
    points = [
        Line(
            STREAM,
            point.method,
            f"lr {point.learning_rate:g}, batch {point.batch_size}, c {point.coefficient:g}",
            sample,
            None,
            AuthorsValue(point.aac, "authors' recorded search, one seed, 100 hidden units"),
        )
        for point, sample in matched
    ]
    comparisons = [
        Comparison("AAC with the authors' hidden size, 100", tuple(_hidden_lines(evidence)), comparable)
    ]
    if points:
        comparisons.insert(
            0, Comparison("Points of the grid that were run here, AAC", tuple(points), comparable)
        )
    return Page(
        NAME,
        "The authors' grid on Split CIFAR-100",
        "216 runs recorded by the authors (EWC, SI, MAS; 4 learning rates, 3 batch sizes, 6 coefficients; LeNet with "
        "100 hidden units, one seed), beside ours with the coefficients converted to the strengths used here.",
        tuple(comparisons),
        words=(
            WordTable(
                "The authors' grid by coefficient, best AAC over learning rates and batch sizes",
                _by_coefficient(),
            ),
        ),
        verdicts=(verdict(evidence),),
        draw=partial(draw, evidence),
        notes=tuple(_notes()),
    )


def verdict(evidence: Evidence) -> Verdict:
    """Whether our runs agree with theirs wherever there is one, those that diverged among them."""
    findings, complete = [], True
    for method in METHODS:
        points = [point for point in authors_grid() if point.method == method]
        pairs = [(point.aac, ours_at(evidence, point)) for point in points]
        gaps = [sample.mean - theirs for theirs, sample in pairs if len(sample)]
        broken = [point for point in points if ours_diverged(evidence, point)]
        if not gaps and not broken:
            findings.append(Finding(method, "missing"))
            continue
        run = len(gaps) + len(broken)
        complete = complete and run == len(points)
        parts = []
        if gaps:
            parts.append(f"largest difference {max(gaps, key=abs):+.2f}")
        if broken:
            alike = sum(point.aac == CHANCE for point in broken)
            parts.append(f"{len(broken)} diverged, in theirs {alike} of them")
        same = all(abs(gap) <= CLOSE for gap in gaps) and all(point.aac == CHANCE for point in broken)
        answer: Answer = "yes" if same else "no"
        findings.append(Finding(f"{method} ({run} of {len(points)} points run)", answer, ", ".join(parts)))
    claim = (
        f"With converted coefficients our runs lie within {CLOSE:g} points of the authors' recorded ones, and diverge "
        "where theirs did"
    )
    agreed = joined([finding.where for finding in findings if finding.answer == "yes"])
    condition = "" if complete else f"on {agreed} only"
    return conclude(claim, "authors' results, not in the paper", findings, condition=condition)


def _hidden_lines(evidence: Evidence) -> list[Line]:
    lines = []
    for method in ("sgd", "ewc", "si", "mas", "stable-sgd", "ogd", "ogd+"):
        sample = evidence.sample(STREAM, method, _with_authors_width)
        lines.append(
            Line(
                STREAM,
                method,
                "AAC, 100 hidden units",
                Sample({seed: value for seed, value in sample.values.items() if not math.isnan(value)}),
                find_printed("table-11", STREAM, method, "aac"),
                authors_value(STREAM, method, "aac"),
            )
        )
    return lines


def _with_authors_width(record: Record) -> float:
    return aac(record) if record.settings.net.settings.get("hidden") == 100 else math.nan


def _by_coefficient() -> tuple[tuple[str, ...], ...]:
    coefficients = sorted({point.coefficient for point in authors_grid()})
    rows = [("method", *(f"c = {value:g}" for value in coefficients))]
    for method in METHODS:
        best = [
            max(p.aac for p in authors_grid() if (p.method, p.coefficient) == (method, value))
            for value in coefficients
        ]
        rows.append((method, *(number_text(value) for value in best)))
    return tuple(rows)


def _notes() -> list[str]:
    broken = sum(point.aac == CHANCE for point in authors_grid())
    notes = [
        f"In {broken} of the 216 runs the authors recorded exactly {number_text(CHANCE)}, chance with five classes: "
        "the mark of training that diverged. A penalty is stable only while learning rate x coefficient x importance "
        "stays below 1, and importances add up over tasks, so where it breaks is a check of the scale that costs few "
        "steps."
    ]
    for method in METHODS:
        best = max((point for point in authors_grid() if point.method == method), key=lambda point: point.aac)
        printed = find_printed("table-11", STREAM, method, "aac")
        at_protocol = authors_value(STREAM, method, "aac")
        if printed is not None and printed.mean is not None and at_protocol is not None:
            notes.append(
                f"{method.upper()}: the authors' search found its best, {number_text(best.aac)}, at learning rate "
                f"{best.learning_rate:g}, batch {best.batch_size}, coefficient {best.coefficient:g}; at the protocol's "
                f"settings it recorded {number_text(at_protocol.value)}; the paper prints {number_text(printed.mean)}."
            )
    return notes


def draw(evidence: Evidence) -> Figure:
    """One panel per method: average accuracy against the coefficient, a line per learning rate, ours as crosses."""
    figure, axes = panels(len(METHODS))
    for axis, method in zip(axes, METHODS, strict=True):
        own = [point for point in authors_grid() if point.method == method and point.batch_size == 32]
        for number, rate in enumerate(sorted({point.learning_rate for point in own})):
            line = sorted((p.coefficient, p.aac) for p in own if p.learning_rate == rate)
            axis.plot(
                *zip(*line, strict=True),
                "o-",
                color=COLOURS[number],
                markersize=3,
                label=f"authors, lr {rate:g}",
            )
            mine = [
                (point.coefficient, sample.mean)
                for point in own
                if point.learning_rate == rate and len(sample := ours_at(evidence, point))
            ]
            if mine:
                axis.plot(
                    *zip(*mine, strict=True),
                    "X",
                    color=COLOURS[number],
                    markersize=9,
                    label=f"ours, lr {rate:g}",
                )
        axis.set_xscale("log")
        describe(axis, f"{method}, batch 32", "authors' coefficient", "average accuracy, %")
    shared_legend(figure, axes)
    return figure
