"""Tables 7 and 8: test accuracy on each task after the last one, for A-GEM, OGD+ and OGD on the MNIST streams.

Paper: Table 7 (`tab:app-permuted-mnist`), Table 8 (`tab:app-rotated-mnist`), appendix on the variation of the NTK. The
runs are those of `experiments/tables_7_8.toml`.
"""

from __future__ import annotations

import statistics
from functools import partial

from orthocl.paper.claims import Answer, Finding, Verdict, conclude
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
        verdicts=(verdict(evidence, stream, "ogd+"), verdict(evidence, stream, "ogd")),
        notes=tuple(contradictions(name)) if comparable else (),
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
                f"± {average.spread:.2f} for the same stream."
            )
    return notes


def verdict(evidence: Evidence, stream: str, other: str) -> Verdict:
    """Whether A-GEM is above another method on most tasks, and on the early ones."""
    claim = f"A-GEM is more accurate than {other.upper()} on most tasks"
    tasks = _tasks(evidence, stream)
    samples = [
        (task, evidence.sample(stream, "a-gem", final_accuracy(task)).minus(
            evidence.sample(stream, other, final_accuracy(task))
        ))
        for task in range(1, tasks + 1)
    ]  # fmt: skip
    if not all(len(sample) for _, sample in samples) or not evidence.records(stream, "a-gem"):
        return conclude(claim, "appendix A.1", [Finding(stream, "missing")])
    above = [task for task, sample in samples if sample.mean > 0]
    clearly = sum(sample.interval()[0] > 0 for _, sample in samples)
    early = sum(task <= tasks // 2 for task in above)
    answer: Answer = "yes" if 2 * len(above) > tasks else "no"
    first = samples[0][1]
    detail = (
        f"above on {len(above)} of {tasks} tasks ({clearly} beyond doubt), {early} of the first {tasks // 2}; "
        f"task 1 {first.mean:+.2f} over {len(first)} seed{'s' if len(first) > 1 else ''}"
    )
    return conclude(claim, "appendix A.1", [Finding(stream, answer, detail)])


def _tasks(evidence: Evidence, stream: str) -> int:
    """Tasks of the stream: of the records, or of the settings as long as there is none."""
    counts = [
        len(record.result.accuracies) - 1 for method in METHODS for record in evidence.records(stream, method)
    ]
    asked = [run.resolved().stream.tasks or 0 for run in evidence.runs if run.stream_label == stream]
    return min(counts) if counts else max(asked, default=0)
