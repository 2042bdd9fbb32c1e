"""Verdicts on what the paper claims, from runs paired seed by seed. Nothing here is tuned to the print.

A comparison counts as decided when the 95 % confidence interval of the paired difference excludes zero. A single seed
has no spread; the printed spreads of the two methods then stand for it, and the verdict says so. Equality needs the
interval to lie within the printed spread of the two methods. A method that diverged or ended at chance is no rival: it
is named and left out.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from orthocl.formatting import joined
from orthocl.lab.reporting.findings import BARELY, hardly_learnt
from orthocl.paper.evidence import METRICS, Evidence, Measure
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
        detail: the numbers.
        condition: where it holds, or does after all, if not everywhere.
    """

    claim: str
    place: str
    status: Status
    detail: str
    condition: str = ""

    @property
    def text(self) -> str:
        """The verdict with its condition."""
        return f"{self.status}: {self.condition}" if self.condition else self.status


def conclude(
    claim: str,
    place: str,
    findings: Sequence[Finding],
    note: str = "",
    *,
    everywhere: bool = False,
    condition: str = "",
    preposition: str = "on",
) -> Verdict:
    """One verdict from the findings of all streams.

    Args:
        claim: in plain words.
        place: where the paper says so.
        findings: one for each case that the claim speaks of.
        note: a sentence after the numbers.
        everywhere: the claim says "all" or "every", so that one case against it refutes it; else it takes more than
            there are for it.
        condition: under which any "yes" was found, if it is another than where.
        preposition: before the cases, such as streams.

    >>> conclude("c", "p", [Finding("a", "yes"), Finding("b", "unclear")]).text
    'holds with a condition: on a only'
    >>> conclude("c", "p", [Finding("a", "yes"), Finding("b", "no"), Finding("c", "no")]).text
    'does not hold: except on a'
    """
    answers = [finding.answer for finding in findings]
    where = joined([finding.where for finding in findings if finding.answer == "yes"])
    status: Status
    if not set(answers) - {"missing"}:
        status, condition = "not run", ""
    elif "no" in answers and (everywhere or answers.count("no") > answers.count("yes")):
        status, condition = "does not hold", f"except {preposition} {where}" if where else ""
    elif where and (condition or "no" in answers or len(set(answers)) > 1):
        status, condition = "holds with a condition", condition or f"{preposition} {where} only"
    elif where:
        status, condition = "holds", ""
    else:
        status, condition = "undecided", ""
    parts = [f"{finding.where}: {_words(finding)}" for finding in findings]
    return Verdict(claim, place, status, "; ".join(parts) + (f". {note}" if note else ""), condition)


def _broken(evidence: Evidence, stream: str, methods: Sequence[str], kept: bool = False) -> str:
    """Which of the methods that a claim compares learnt nothing, or never finished; empty if all is well.

    Args:
        evidence: the runs.
        stream: where.
        methods: those that are compared.
        kept: whether those that learnt, but kept nothing, are spoken of too: two such are equal, which says nothing.
    """
    texts = []
    for name in methods:
        records, diverged = evidence.records(stream, name), evidence.diverged_seeds(stream, name)
        warning = hardly_learnt(records)
        if warning.startswith(BARELY) or (warning and kept):
            texts.append(f"{name} learnt nothing" if warning.startswith(BARELY) else f"{name} kept nothing")
        elif diverged and not records:
            texts.append(f"{name} diverged")
    return ", ".join(texts)


def _words(finding: Finding) -> str:
    missing = "no result" if finding.detail else "not run"
    start = {"yes": "yes", "no": "no", "unclear": "unclear", "missing": missing}[finding.answer]
    return f"{start}, {finding.detail}" if finding.detail else start


def is_higher(
    evidence: Evidence, stream: str, better: str, worse: str, measure: Measure, spread: float | None = None
) -> Finding:
    """Whether one method is above another on a stream, paired over seeds."""
    change = evidence.sample(stream, better, measure).minus(evidence.sample(stream, worse, measure))
    broken = _broken(evidence, stream, (better, worse))
    if broken or not len(change):
        return Finding(stream, "unclear" if len(change) else "missing", broken)
    low, high = change.interval(spread)
    answer: Answer = "yes" if low > 0 else "no" if high < 0 else "unclear"
    return Finding(stream, answer, difference_text(change, spread))


def is_equal(
    evidence: Evidence, stream: str, left: str, right: str, measure: Measure, spread: float | None
) -> Finding:
    """Whether two methods are as good as each other: their difference lies within the printed spread."""
    change = evidence.sample(stream, left, measure).minus(evidence.sample(stream, right, measure))
    broken = _broken(evidence, stream, (left, right), kept=True)
    if broken or not len(change):
        return Finding(stream, "unclear" if len(change) else "missing", broken)
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


def working(evidence: Evidence, stream: str, methods: Sequence[str]) -> tuple[list[str], str]:
    """Those methods that are fit to be compared with, and words about those that are not.

    Left out are methods whose runs all diverged or ended near chance. One that was neither asked for nor run, such as a
    second row of Stable SGD, is not spoken of.
    """
    fit, broken = [], []
    for name in methods:
        records = evidence.records(stream, name)
        diverged = len(evidence.diverged_seeds(stream, name))
        if not records and diverged:
            broken.append(f"{name} (diverged)")
        elif records and hardly_learnt(records):
            broken.append(f"{name} (at chance)")
        elif records or name in evidence.methods(stream):
            fit.append(name)
    return fit, f"; left out: {', '.join(broken)}" if broken else ""


def is_above_median(
    evidence: Evidence,
    stream: str,
    method: str,
    others: Sequence[str],
    metric: str,
    item: str,
    wanted: bool = True,
) -> Finding:
    """Whether a method is above the median of the others (what "competitive" is taken to mean), paired over seeds.

    Args:
        evidence: the runs.
        stream: where.
        method: the one that is judged.
        others: the baselines; broken ones are left out, see `working`.
        metric: by which, one of `METRICS`.
        item: whose printed spreads stand for those of a single seed.
        wanted: whether the claim says "above", else "below".
    """
    measure = METRICS[metric]
    own = evidence.sample(stream, method, measure)
    fit, left_out = working(evidence, stream, others)
    rivals = {name: evidence.sample(stream, name, measure) for name in fit}
    broken = _broken(evidence, stream, (method,)) or ("" if rivals else left_out.removeprefix("; "))
    if broken:
        return Finding(stream, "unclear" if len(own) else "missing", broken)
    if not len(own) or not rivals or not all(map(len, rivals.values())):
        return Finding(stream, "missing")
    seeds = [seed for seed in own.values if all(seed in sample.values for sample in rivals.values())]
    middle = Sample(
        {seed: statistics.median(sample.values[seed] for sample in rivals.values()) for seed in seeds}
    )
    change = own.minus(middle)
    if not len(change):
        return Finding(stream, "missing")
    order = sorted(rivals, key=lambda name: rivals[name].mean)
    around = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    spreads = [printed_spread(item, stream, (method, name), metric) for name in around]
    known = [spread for spread in spreads if spread is not None]
    spread = max(known) if len(known) == len(spreads) else None
    low, high = change.interval(spread)
    above: Answer = "yes" if low > 0 else "no" if high < 0 else "unclear"
    swapped: dict[Answer, Answer] = {"yes": "no", "no": "yes", "unclear": "unclear"}
    place = 1 + sum(sample.mean > own.mean for sample in rivals.values())
    better = ", better than the paper claims" if not wanted and above == "yes" else ""
    detail = f"{difference_text(change, spread)} from the median (place {place} of {len(rivals) + 1}){better}{left_out}"
    return Finding(stream, above if wanted else swapped[above], detail)


def is_above_on_most(where: str, changes: Sequence[Sample]) -> Finding:
    """Whether one method is above another on most tasks: the share of tasks, seed by seed, against one half.

    Args:
        where: what the finding is about.
        changes: the difference of the two on each task.
    """
    if not changes or not all(map(len, changes)):
        return Finding(where, "missing")
    seeds = [seed for seed in changes[0].values if all(seed in change.values for change in changes)]
    counts = Sample({seed: float(sum(change.values[seed] > 0 for change in changes)) for seed in seeds})
    low, high = counts.interval()
    half = len(changes) / 2
    answer: Answer = "yes" if low > half else "no" if high < half else "unclear"
    clearly = sum(change.interval()[0] > 0 for change in changes)
    seeds_text = "one seed" if len(seeds) == 1 else f"mean over {len(seeds)} seeds"
    detail = f"above on {counts.mean:.3g} of {len(changes)} tasks ({seeds_text}), on {clearly} beyond doubt"
    return Finding(where, answer, detail)


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
