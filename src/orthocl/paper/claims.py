"""Verdicts on what the paper claims, from runs paired seed by seed. Nothing here is tuned to the print.

A comparison counts as decided when the 95 % confidence interval of the paired difference excludes zero. A single seed
has no spread; the printed spreads of the two methods then stand for it, and the verdict says so. Equality needs the
interval to lie within the printed spread of the two methods.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from orthocl.paper.evidence import Evidence, Measure
from orthocl.paper.published import find_printed
from orthocl.paper.samples import Sample, number_text

Status = Literal["holds", "holds with a condition", "does not hold", "undecided", "not run"]
Answer = Literal["yes", "no", "unclear", "missing"]


@dataclass(frozen=True)
class Finding:
    """What the runs of one stream say about a claim."""

    where: str
    answer: Answer
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper and what the runs say about it.

    Args:
        claim: in the paper's sense, in plain words.
        place: where the paper says so.
        status: the verdict.
        detail: the numbers, or the condition.
    """

    claim: str
    place: str
    status: Status
    detail: str


def conclude(claim: str, place: str, findings: Sequence[Finding], note: str = "") -> Verdict:
    """One verdict from the findings of all streams.

    >>> conclude("c", "p", [Finding("a", "yes"), Finding("b", "no")]).status
    'holds with a condition'
    """
    answers = {finding.answer for finding in findings}
    made = answers - {"missing"}
    status: Status
    if not made:
        status = "not run"
    elif made == {"yes"}:
        status = "holds" if answers == made else "holds with a condition"
    elif "yes" in made:
        status = "holds with a condition"
    else:
        status = "does not hold" if "no" in made else "undecided"
    parts = [f"{finding.where}: {_words(finding)}" for finding in findings]
    return Verdict(claim, place, status, "; ".join(parts) + (f". {note}" if note else ""))


def _words(finding: Finding) -> str:
    start = {"yes": "yes", "no": "no", "unclear": "unclear", "missing": "not run"}[finding.answer]
    return f"{start}, {finding.detail}" if finding.detail else start


def is_higher(
    evidence: Evidence, stream: str, better: str, worse: str, measure: Measure, spread: float | None = None
) -> Finding:
    """Whether one method is above another on a stream, paired over seeds."""
    change = evidence.sample(stream, better, measure).minus(evidence.sample(stream, worse, measure))
    if not len(change):
        return Finding(stream, "missing")
    low, high = change.interval(spread)
    answer: Answer = "yes" if low > 0 else "no" if high < 0 else "unclear"
    return Finding(stream, answer, difference_text(change, spread))


def is_equal(
    evidence: Evidence, stream: str, left: str, right: str, measure: Measure, spread: float | None
) -> Finding:
    """Whether two methods are as good as each other: their difference lies within the printed spread."""
    change = evidence.sample(stream, left, measure).minus(evidence.sample(stream, right, measure))
    if not len(change):
        return Finding(stream, "missing")
    margin = math.inf if spread is None else spread
    if len(change) == 1:  # no interval to tell: within the spread is compatible, beyond twice of it is not
        size = abs(change.mean)
        answer: Answer = "no" if size > 2 * margin else "unclear"
    else:
        low, high = change.interval(level=0.9)  # two one-sided tests at 5 %
        answer = (
            "yes"
            if -margin < low and high < margin
            else "no"
            if low > margin or high < -margin
            else "unclear"
        )
    within = "" if spread is None else f", against a spread of {spread:.2f} in the print"
    return Finding(stream, answer, difference_text(change, spread) + within)


def is_above_median(
    evidence: Evidence, stream: str, method: str, others: Sequence[str], measure: Measure, wanted: bool = True
) -> Finding:
    """Whether a method's mean is above the median of the others' means (what "competitive" is taken to mean).

    Another method that diverged with every seed that was run is below all that did not.
    """
    own = evidence.sample(stream, method, measure)
    rivals = {name: evidence.sample(stream, name, measure) for name in others}
    broken = [name for name in others if not len(rivals[name]) and evidence.diverged_seeds(stream, name)]
    means = [-math.inf] * len(broken) + sorted(sample.mean for sample in rivals.values() if len(sample))
    if not len(own) or len(means) < len(others):
        return Finding(stream, "missing")
    middle = means[len(means) // 2] if len(means) % 2 else sum(means[len(means) // 2 - 1 :][:2]) / 2
    answer: Answer = "yes" if (own.mean > middle) == wanted else "no"
    rank = 1 + sum(mean > own.mean for mean in means)
    detail = f"{number_text(own.mean)} against a median of {number_text(middle)} (place {rank} of {len(means) + 1})"
    return Finding(stream, answer, f"{detail}, {', '.join(broken)} diverged" if broken else detail)


def rises(where: str, samples: Sequence[tuple[float, Sample]], uniformly: bool) -> Finding:
    """Whether a number rises with another, by the slope of each seed; `uniformly`: from each value to the next."""
    present = [(x, sample) for x, sample in samples if len(sample)]
    if len(present) < 2:
        return Finding(where, "missing")
    slopes = Sample({seed: _slope(present, seed) for seed in _common_seeds(present)})
    low, high = slopes.interval()
    means = [sample.mean for _, sample in present]
    steady = all(b > a for a, b in itertools.pairwise(means))
    path = " → ".join(f"{number_text(mean)} at {x:g}" for (x, _), mean in zip(present, means, strict=True))
    seeds = len(slopes)
    if seeds < 2:
        return Finding(where, "unclear", f"{path} (one seed)" if seeds else f"{path} (no seed in common)")
    answer: Answer = "yes" if low > 0 and (steady or not uniformly) else "no" if high < 0 else "unclear"
    tail = "" if steady else ", not from each value to the next"
    return Finding(where, answer, f"{path} ({seeds} seeds{tail})")


def printed_spread(item: str, stream: str, methods: Iterable[str], metric: str) -> float | None:
    """The printed spreads of some methods in one: the root of the sum of their squares; None if one is not printed."""
    cells = [find_printed(item, stream, method, metric) for method in methods]
    if any(cell is None or cell.spread is None for cell in cells):
        return None
    return math.sqrt(sum((cell.spread or 0.0) ** 2 for cell in cells if cell is not None))


def difference_text(change: Sample, spread: float | None = None) -> str:
    """A difference over seeds, with its interval."""
    signed = f"{change.mean:+.2f}"
    if len(change) == 1:
        return f"{signed} (one seed{'' if spread is None else ', judged by the printed spread'})"
    low, high = change.interval()
    return f"{signed} [{number_text(low)}, {number_text(high)}] over {len(change)} seeds"


def _common_seeds(samples: Sequence[tuple[float, Sample]]) -> list[int]:
    first = samples[0][1].values
    return [seed for seed in first if all(seed in sample.values for _, sample in samples)]


def _slope(samples: Sequence[tuple[float, Sample]], seed: int) -> float:
    """Least squares slope of one seed."""
    xs, ys = [x for x, _ in samples], [sample.values[seed] for _, sample in samples]
    middle = sum(xs) / len(xs)
    return sum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)
