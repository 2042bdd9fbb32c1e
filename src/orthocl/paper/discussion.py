"""Where our numbers differ from the print, in sentences computed from the records, and what is known about why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from orthocl.formatting import counted
from orthocl.paper.authors import authors_value
from orthocl.paper.comparison import Comparison, Line, markdown_table
from orthocl.paper.evidence import Evidence, aac, aac_after
from orthocl.paper.page import Page
from orthocl.paper.published import find_printed
from orthocl.paper.samples import number_text
from orthocl.paper.table_1 import LOW
from orthocl.paper.table_2 import STABLE_SGD
from orthocl.paper.tables_7_8 import STREAMS, printed_mean

ELSEWHERE = "stable-sgd"
"""Its printed row comes from another pipeline: it says nothing about the others'."""
LEAST_METHODS = 4
"""Methods that a stream needs before something is said about all of them."""
FEATURES = (
    "On CUB200 the classifier reads AlexNet's pool5 features (9,216), where the paper's reads fc6 (4,096), which lie "
    "beyond a trained layer of 38 million weights: all methods are less accurate here, and only their order and their "
    "forgetting can be compared."
)
STATISTICS = (
    "Means are over the seeds named, spreads are standard deviations with n - 1; the paper does not say which of the "
    "two it prints. Differences are given in standard errors of the difference of two means, with 5 runs behind each "
    "printed one. Nothing was tuned to come closer to the print: the settings are those of the paper and, where it is "
    "silent, of the authors' scripts, with the coefficients of EWC, SI and MAS converted between conventions by a "
    "tested formula."
)


def discuss(pages: Sequence[Page], evidence: Evidence) -> list[str]:
    """Paragraphs of the discussion.

    Args:
        pages: those that have records.
        evidence: that of Table 2.
    """
    named = {page.name: page for page in pages}
    parts = [_agreement([page for page in pages if page.name.startswith("table")])]
    if "table-2" in named:
        compared = [comparison for comparison in named["table-2"].comparisons if comparison.comparable]
        parts += [_by_stream(comparison) for comparison in compared]
        if "authors-grid" in named:
            lines = [line for comparison in compared for line in comparison.lines]
            parts.append(_two_widths(lines, named["authors-grid"].comparisons[-1].lines))
    parts += [_fewer_tasks(evidence), _rerun(evidence), _scatter(evidence), STABLE_SGD]
    parts += [FEATURES if evidence.records("cub200", "sgd") else "", STATISTICS]
    return [part for part in parts if part]


def _agreement(pages: Sequence[Page]) -> str:
    """How many numbers of each table are the printed ones, as a table."""
    rows = [("item", "numbers compared", "within two standard errors of the print")]
    for page in pages:
        counts = [comparison.agreement() for comparison in page.comparisons if comparison.comparable]
        close, told = sum(close for close, _ in counts), sum(told for _, told in counts)
        if told:
            rows.append((page.title.partition(":")[0], str(told), str(close)))
    return markdown_table(rows, numbers_from=1) if len(rows) > 1 else ""


def _by_stream(comparison: Comparison) -> str:
    """How far the average accuracies of a stream lie from the print, and whether the methods keep their order."""
    lines = [
        line for line in comparison.lines if not math.isnan(line.difference) and line.method != ELSEWHERE
    ]
    if not lines:
        return ""
    low, high = (choose(lines, key=lambda line: line.difference) for choose in (min, max))
    if low is high:
        return f"{low.stream}: {low.method} is {low.difference:+.2f} from the print; no other method was run."
    text = (
        f"{low.stream}: average accuracies lie from {low.difference:+.2f} ({low.method}) to {high.difference:+.2f} "
        f"({high.method}) from the print, {ELSEWHERE} apart"
    )
    if len(lines) < LEAST_METHODS:
        return f"{text}."
    return (
        f"{text}. The rank correlation with the print over these {len(lines)} methods is {_order(lines):.2f}."
    )


def _two_widths(wide: Sequence[Line], narrow: Sequence[Line]) -> str:
    """Split CIFAR-100 with the paper's hidden size and with that of the authors' scripts."""
    differences = {(line.stream, line.method): line.difference for line in wide}
    pairs = [
        (differences.get((line.stream, line.method), math.nan), line.difference)
        for line in narrow
        if line.method != ELSEWHERE
    ]
    pairs = [pair for pair in pairs if not any(map(math.isnan, pair))]
    if not pairs:
        return ""
    means = [statistics.fmean(side) for side in zip(*pairs, strict=True)]
    return (
        "For Split CIFAR-100 the paper says 200 hidden units, the authors' scripts 100. Over the "
        f"{counted(len(pairs), 'method')} run with both, average accuracies are {means[0]:+.2f} from the print with "
        f"200 and {means[1]:+.2f} with 100."
    )


def _order(lines: Sequence[Line]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr([line.ours.mean for line in lines], [_printed(line) for line in lines]).statistic)


def _printed(line: Line) -> float:
    return math.nan if line.printed is None or line.printed.mean is None else line.printed.mean


def _fewer_tasks(evidence: Evidence) -> str:
    """After how many tasks our average accuracies are nearest to the print, where data and network are the paper's."""
    rows = [
        ("stream", "tasks", "methods", "mean distance from the print", "nearest after", "mean distance there")
    ]
    sooner = []
    for stream in LOW:
        methods = [method for method in _compared(evidence, stream) if method != ELSEWHERE]
        if len(methods) < LEAST_METHODS:
            continue
        tasks = min(len(evidence.records(stream, method)[0].result.accuracies) for method in methods) - 1
        distances = {count: _distance(evidence, stream, methods, count) for count in range(tasks, 0, -1)}
        nearest = min(distances, key=lambda count: distances[count])
        sooner += [stream] if nearest < tasks else []
        cells = (number_text(distances[tasks]), f"{nearest} tasks", number_text(distances[nearest]))
        rows.append((stream, str(tasks), str(len(methods)), *cells))
    if not sooner:
        return ""
    return (
        "Where data and network are the paper's, our average accuracies are nearest to the print after fewer tasks "
        f"than it says:\n\n{markdown_table(rows, numbers_from=1)}\n\n{_print_against_itself(evidence)}"
        "Fewer tasks behind the printed averages would explain the difference; the paper does not say so, and this is "
        "no proof."
    )


def _print_against_itself(evidence: Evidence) -> str:
    """The mean of the final accuracies that Tables 7 and 8 print, beside Table 2 and ours; ends with a space."""
    texts, nearer = [], 0
    for item, stream in STREAMS.items():
        for method in ("ogd", "ogd+"):
            ours = evidence.sample(stream, method, aac)
            average = find_printed("table-2", stream, method, "aac")
            if not len(ours) or average is None or average.mean is None:
                continue
            mean = printed_mean(item, method)
            nearer += abs(ours.mean - mean) < abs(ours.mean - average.mean)
            texts.append(
                f"{method} on {stream} {number_text(mean)} (Table 2 {number_text(average.mean)}, "
                f"ours {number_text(ours.mean)})"
            )
    if not texts:
        return ""
    return (
        "Tables 7 and 8 print the final accuracy of each of fifteen tasks, whose mean is the average accuracy by "
        f"definition: {'; '.join(texts)}. Ours are nearer to these than to Table 2 in {nearer} of {len(texts)} cases. "
    )


def _compared(evidence: Evidence, stream: str) -> list[str]:
    """The methods of a stream that have records and a printed average accuracy."""
    return [
        method
        for method in evidence.methods(stream)
        if evidence.records(stream, method) and find_printed("table-2", stream, method, "aac") is not None
    ]


def _distance(evidence: Evidence, stream: str, methods: Sequence[str], tasks: int) -> float:
    """Mean distance of our average accuracies from the printed ones, to the digits of the print."""
    distances = []
    for method in methods:
        printed = find_printed("table-2", stream, method, "aac")
        if printed is not None and printed.mean is not None:
            distances.append(abs(evidence.sample(stream, method, aac_after(tasks)).mean - printed.mean))
    return round(statistics.fmean(distances), 2)


def _rerun(evidence: Evidence) -> str:
    """Rotated MNIST with plain SGD: the one number for which the authors' code was run again."""
    theirs = authors_value("rotated-mnist", "sgd", "aac")
    printed = find_printed("table-2", "rotated-mnist", "sgd", "aac")
    ours = evidence.sample("rotated-mnist", "sgd", aac)
    if theirs is None or printed is None or printed.mean is None:
        return ""
    start = (
        f"The authors' code, run again with its script settings (plain SGD, Rotated MNIST, one seed), gives "
        f"{number_text(theirs.value, 1)} where the paper prints {number_text(printed.mean)}"
    )
    if not len(ours):
        return f"{start}. So the printed tables are not the last word on the protocol."
    nearer = "re-run" if abs(ours.mean - theirs.value) < abs(ours.mean - printed.mean) else "printed value"
    return (
        f"{start}; we get {ours.text()} over {len(ours)} seed{'s' if len(ours) > 1 else ''}, nearer to the {nearer}. "
        "So the printed tables are not the last word on the protocol."
    )


def _scatter(evidence: Evidence) -> str:
    widest: tuple[float, str] | None = None
    for stream in evidence.streams:
        for method in evidence.methods(stream):
            sample = evidence.sample(stream, method, aac)
            if len(sample) > 1:
                low, high = min(sample.values.values()), max(sample.values.values())
                text = f"{method} on {stream} ranges from {number_text(low)} to {number_text(high)}"
                if widest is None or high - low > widest[0]:
                    widest = high - low, text
    if widest is None:
        return "No method has more than one seed yet, so nothing can be said about how single seeds scatter."
    return f"Single seeds scatter: {widest[1]} over its seeds. A verdict from one seed is marked as such."
