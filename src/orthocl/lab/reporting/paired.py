"""Which of several means are the best, as far as the seeds can tell: a paired test over the seeds that they share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

Mark = Literal["", "best", "tie"]
LEVEL = 0.05
LEAST_SEEDS = 3
"""With fewer seeds in common nothing is marked: two of them cannot tell a difference from noise."""


def marks(values: Sequence[Mapping[int, float]], higher_is_better: bool = True) -> list[Mark]:
    """What a table marks: see `standing`; nothing where all that could be tested tie.

    >>> marks([{1: 0.90, 2: 0.92, 3: 0.91}, {1: 0.91, 2: 0.90, 3: 0.90}])
    ['', '']
    """
    found = standing(values, higher_is_better)
    tested = [mark for mark, one in zip(found, values, strict=True) if len(_finite(one)) >= LEAST_SEEDS]
    return found if "" in tested else ["" for _ in found]


def standing(values: Sequence[Mapping[int, float]], higher_is_better: bool = True) -> list[Mark]:
    """The best mean as "best", and as "tie" those that a paired t test at 5 % cannot tell from it.

    Args:
        values: seed -> value, for each competitor; values that are not finite do not count.
        higher_is_better: the direction of the metric.

    Nothing stands out without a rival of at least three seeds in common, nor if somebody with fewer seeds has a better
    mean. The level is not corrected for the number of rivals.

    >>> standing([{1: 0.90, 2: 0.92, 3: 0.91}, {1: 0.80, 2: 0.81, 3: 0.82}, {1: 0.91, 2: 0.90, 3: 0.90}])
    ['best', '', 'tie']
    """
    clean = [_finite(one) for one in values]
    sign = 1.0 if higher_is_better else -1.0
    enough = [number for number, one in enumerate(clean) if len(one) >= LEAST_SEEDS]
    found: list[Mark] = [""] * len(clean)
    if not enough:
        return found
    means = [sign * statistics.fmean(one.values()) if one else -math.inf for one in clean]
    best = max(enough, key=lambda number: means[number])
    if max(means) > means[best]:
        return found
    p_values = {number: paired_p(clean[best], clean[number]) for number in enough if number != best}
    told = {number: p for number, p in p_values.items() if p is not None}
    if not told:
        return found
    found[best] = "best"
    for number, p in told.items():
        if p > LEVEL:
            found[number] = "tie"
    return found


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def paired_p(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """Two-sided p value of the paired t test over common seeds; None with fewer than three."""
    seeds = [seed for seed in first if seed in second]
    if len(seeds) < LEAST_SEEDS:
        return None
    differences = [first[seed] - second[seed] for seed in seeds]
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread <= 1e-12 * max(1e-300, abs(mean)):
        return 1.0 if mean == 0 else 0.0
    return student_tail(mean / (spread / math.sqrt(len(seeds))), len(seeds) - 1)


def student_tail(t: float, freedom: int) -> float:
    """The probability that |T| exceeds |t|, for Student's distribution with whole degrees of freedom.

    The finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4, so that SciPy is not needed.

    >>> round(student_tail(4.302653, 2), 4), round(student_tail(2.776445, 4), 4), round(student_tail(12.7062, 1), 4)
    (0.05, 0.05, 0.05)
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom == 1:
        return max(0.0, 1.0 - 2.0 * angle / math.pi)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for step in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    inside = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))
