"""Tables 7 and 8: test accuracy on each task after the last one, for A-GEM, OGD+ and OGD on the MNIST streams.

Paper: Table 7 (`tab:app-permuted-mnist`), Table 8 (`tab:app-rotated-mnist`), appendix on the variation of the NTK. The
runs are those of `experiments/tables_7_8.toml`.
"""

from __future__ import annotations

import statistics
from functools import partial

from orthocl.paper.claims import is_above_on_most
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.evidence import Evidence, final_accuracy
from orthocl.paper.page import Page
from orthocl.paper.published import find_printed, published_item
from orthocl.paper.samples import number_text

STREAMS = {"table-7": "permuted-mnist", "table-8": "rotated-mnist"}
METHODS = ("a-gem", "ogd+", "ogd")


def final_accuracies(name: str, evidence: Evidence, comparable: bool = True) -> Page:
    """Table 7 or 8 from the records of its runs."""
    stream = STREAMS[name]
    tasks = _tasks(evidence, stream)
    lines = [
        Line(
            stream,
            method,
            f"task {task}",
            evidence.sample(stream, method, final_accuracy(task)),
            find_printed(name, stream, method, "accuracy", task),
        )
        for task in range(1, tasks + 1)
        for method in METHODS
    ]
    number = name.partition("-")[2]
    return Page(
        name,
        f"Table {number}: final accuracy of each task, {stream}",
        published_item(name).caption,
        (Comparison("Test accuracy in %", tuple(lines), comparable, across=True),),
        notes=(*ahead(evidence, stream), *(contradictions(name) if comparable else ())),
    )


table_7 = partial(final_accuracies, "table-7")
table_8 = partial(final_accuracies, "table-8")


def printed_mean(name: str, method: str) -> float:
    """The mean over tasks of a printed row: the average accuracy by definition.

    >>> round(printed_mean("table-7", "ogd"), 2)
    82.13
    """
    return statistics.fmean(cell.mean or 0.0 for cell in published_item(name).cells if cell.method == method)


def contradictions(name: str) -> list[str]:
    """Rows of the print whose mean is not the average accuracy that Table 2 prints for the same method."""
    notes = []
    for method in METHODS:
        average = find_printed("table-2", STREAMS[name], method, "aac")
        if average is None or average.mean is None:
            continue
        mean = printed_mean(name, method)
        if abs(mean - average.mean) > (average.spread or 0.0):
            notes.append(
                f"The print does not agree with itself: its row of {method.upper()} here has a mean of "
                f"{number_text(mean)}, where Table 2 prints an average accuracy of {average.mean:.2f} "
                f"± {average.spread:.2f} for the same stream. This table fits networks with 100 hidden units, Table 2 "
                'wider ones: see "Where we differ".'
            )
    return notes


def ahead(evidence: Evidence, stream: str) -> list[str]:
    """On how many tasks A-GEM is above the others; the paper's claim, on average accuracy, is with Table 2."""
    tasks = range(1, _tasks(evidence, stream) + 1)
    notes = []
    for other in METHODS[1:]:
        changes = [
            evidence.sample(stream, "a-gem", final_accuracy(task)).minus(
                evidence.sample(stream, other, final_accuracy(task))
            )
            for task in tasks
        ]
        found = is_above_on_most(stream, changes)
        if found.detail:
            notes.append(f"A-GEM against {other.upper()}: {found.detail}. The paper's claim is with Table 2.")
    return notes


def _tasks(evidence: Evidence, stream: str) -> int:
    """Tasks of the stream: of the records, or of the settings as long as there is none."""
    counts = [
        len(record.result.accuracies) - 1 for method in METHODS for record in evidence.records(stream, method)
    ]
    asked = [run.resolved().stream.tasks or 0 for run in evidence.runs if run.stream_label == stream]
    return min(counts) if counts else max(asked, default=0)
