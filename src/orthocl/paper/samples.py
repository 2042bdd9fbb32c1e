"""Numbers over seeds: mean, spread, intervals, and differences that are paired seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from orthocl.paper.published import SEEDS, Printed

LEVEL = 0.95
"""Of all confidence intervals."""
ROUNDING = 1e-9
"""No interval is narrower: what differs by less is equal, whatever its spread."""


@dataclass(frozen=True)
class Sample:
    """One number per seed.

    >>> sample = Sample({1: 70.0, 2: 72.0})
    >>> sample.mean, round(sample.spread, 3), len(sample)
    (71.0, 1.414, 2)
    """

    values: Mapping[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN without any."""
        return statistics.fmean(self.values.values()) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation with n - 1; NaN with fewer than two seeds."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else math.nan

    def minus(self, other: Sample) -> Sample:
        """The differences of the seeds that both have."""
        common = [seed for seed in self.values if seed in other.values]
        return Sample({seed: self.values[seed] - other.values[seed] for seed in common})

    def interval(self, spread: float | None = None, level: float = LEVEL) -> tuple[float, float]:
        """Student's confidence interval of the mean.

        Args:
            spread: a deviation known from elsewhere, used (with the normal distribution) where one seed has none.
            level: of confidence.

        >>> low, high = Sample({1: 1.0, 2: 2.0, 3: 3.0}).interval()
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
        """
        count = len(self.values)
        if count > 1:
            from scipy.stats import t

            half = float(t.ppf((1 + level) / 2, count - 1)) * self.spread / math.sqrt(count)
        elif count == 1 and spread is not None:
            half = statistics.NormalDist().inv_cdf((1 + level) / 2) * spread
        else:
            return -math.inf, math.inf
        half = max(half, ROUNDING)
        return self.mean - half, self.mean + half

    def text(self, digits: int = 2) -> str:
        """Mean and spread for people.

        >>> Sample({1: 70.0, 2: 72.0}).text(), Sample({1: 3.14159}).text(), Sample().text()
        ('71.00 ± 1.41', '3.14', '–')
        """
        if not self.values:
            return "–"
        mean = number_text(self.mean, digits)
        return mean if math.isnan(self.spread) else f"{mean} ± {self.spread:.{digits}f}"


def number_text(value: float, digits: int = 2) -> str:
    """A number with so many decimals; never minus zero.

    >>> number_text(-0.001), number_text(2.345)
    ('0.00', '2.35')
    """
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def standard_errors_apart(ours: Sample, printed: Printed | None) -> float:
    """Our mean minus the printed one, in standard errors of the difference; NaN where there is no error to tell.

    The printed mean is over 5 runs. A single seed of ours has no spread: the printed one then stands for it.

    >>> cell = Printed("table-2", "", "", mean=70.0, spread=1.0)
    >>> round(standard_errors_apart(Sample({1: 71.0, 2: 73.0}), cell), 3)
    1.826
    """
    if printed is None or printed.mean is None or printed.spread is None or not len(ours):
        return math.nan
    own = printed.spread if math.isnan(ours.spread) else ours.spread
    error = math.sqrt(own**2 / len(ours) + printed.spread**2 / SEEDS)
    return (ours.mean - printed.mean) / error if error else math.nan
