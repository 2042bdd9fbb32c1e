"""Where our numbers differ from the print, in sentences computed from the records, and what is known about why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orthocl.paper.authors import authors_value
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.evidence import Evidence, aac
from orthocl.paper.page import Page
from orthocl.paper.published import find_printed
from orthocl.paper.samples import number_text
from orthocl.paper.table_2 import STABLE_SGD

FAR = 2.0
"""Standard errors beyond which a difference is spoken of."""


def discuss(pages: Sequence[Page], evidence: Evidence) -> list[str]:
    """Paragraphs of the discussion; `evidence` is that of Table 2."""
    sentences = [_agreement(page) for page in pages]
    table_2 = next((page for page in pages if page.name == "table-2"), None)
    parts = [sentence for sentence in sentences if sentence]
    if table_2 is not None:
        parts += _far_lines(table_2)
    parts += [_rerun(evidence), _scatter(evidence), STABLE_SGD]
    parts.append(
        "Means are over the seeds named, spreads are standard deviations with n - 1; the paper does not say which of "
        "the two it prints. Differences are given in standard errors of the difference of two means, with 5 runs "
        "behind each printed one. Nothing was tuned to come closer to the print: the settings are those of the paper "
        "and, where it is silent, of the authors' scripts, with the coefficients of EWC, SI and MAS converted between "
        "conventions by a tested formula."
    )
    return [part for part in parts if part]


def _agreement(page: Page) -> str:
    counts = [comparison.agreement() for comparison in page.comparisons if comparison.comparable]
    close, told = sum(close for close, _ in counts), sum(told for _, told in counts)
    if not told:
        return ""
    return f"{page.title.partition(':')[0]}: {close} of {told} numbers lie within two standard errors of the print."


def _far_lines(page: Page) -> list[str]:
    far = [line for line in _lines(page.comparisons) if abs(line.errors_apart) > FAR]
    if not far:
        return []
    texts = [
        f"{line.method} on {line.stream} ({line.ours.text()} over {len(line.ours)} against "
        f"{number_text(_printed(line))}, {line.errors_apart:+.1f})"
        for line in far
    ]
    return [f"Average accuracies further than two standard errors from the print: {'; '.join(texts)}."]


def _lines(comparisons: Sequence[Comparison]) -> list[Line]:
    return [line for each in comparisons for line in each.lines if not math.isnan(line.errors_apart)]


def _printed(line: Line) -> float:
    return math.nan if line.printed is None or line.printed.mean is None else line.printed.mean


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
