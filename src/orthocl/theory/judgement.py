"""How good forecasts are: rank correlations with what happened, compared with predictors that use no kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from orthocl.checking import checked


@dataclass(frozen=True)
class Pair:
    """What was expected and what happened when one task was learnt, on one earlier task.

    Args:
        task: the task learnt.
        earlier: the earlier task.
        tasks: of the whole stream.
        expected_change: mean squared change of the outputs, forecast.
        measured_change: measured.
        expected_drop: accuracy lost, forecast.
        measured_drop: measured.
    """

    task: int
    earlier: int
    tasks: int
    expected_change: float
    measured_change: float
    expected_drop: float
    measured_drop: float

    @property
    def lag(self) -> int:
        """How many tasks ago the earlier one was learnt."""
        return self.task - self.earlier

    @property
    def later(self) -> int:
        """How many tasks of the stream come after the earlier one."""
        return self.tasks - self.earlier


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % interval (Student's t)."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Judgement:
    """Rank correlations over the pairs of each seed, with intervals over seeds.

    Args:
        forecast: of the forecast with what was measured.
        lag: of the lag alone, in its better direction on average.
        later: of the number of later tasks alone, likewise.
        partial: of the forecast, given the lag.
    """

    forecast: Interval
    lag: Interval
    later: Interval
    partial: Interval


@checked()
def judge(seeds: Sequence[Sequence[Pair]], quantity: str = "change") -> Judgement:
    """Judge forecasts of "change" (of outputs) or "drop" (of accuracy), one list of pairs per seed.

    Pairs of one seed share networks and tasks: they are not independent, so intervals are over seeds only.
    """

    def read(name: str) -> Callable[[Pair], float]:
        return lambda pair: float(getattr(pair, name))

    measured, expected = read(f"measured_{quantity}"), read(f"expected_{quantity}")
    lag, later = read("lag"), read("later")
    return Judgement(
        interval([_rank(pairs, expected, measured) for pairs in seeds]),
        _either(interval([_rank(pairs, lag, measured) for pairs in seeds])),
        _either(interval([_rank(pairs, later, measured) for pairs in seeds])),
        interval(
            [partial_rank_correlation(*(_column(p, f) for f in (expected, measured, lag))) for p in seeds]
        ),
    )


def _either(found: Interval) -> Interval:
    """A trivial predictor may be used in either direction."""
    if found.mean >= 0 or math.isnan(found.mean):
        return found
    return Interval(-found.mean, -found.high, -found.low, found.seeds)


def _column(pairs: Sequence[Pair], read: Callable[[Pair], float]) -> NDArray[np.float64]:
    return np.array([read(pair) for pair in pairs], dtype=np.float64)


def _rank(pairs: Sequence[Pair], one: Callable[[Pair], float], other: Callable[[Pair], float]) -> float:
    return rank_correlation(_column(pairs, one), _column(pairs, other))


def rank_correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Spearman's; nan when one of the two does not vary.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    """
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    ranks = np.corrcoef(stats.rankdata(x), stats.rankdata(y))
    return min(1.0, max(-1.0, float(round(ranks[0, 1], 15))))


def partial_rank_correlation(x: NDArray[np.float64], y: NDArray[np.float64], z: NDArray[np.float64]) -> float:
    """Spearman's of x and y given z: (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2)(1 - r_yz^2))."""
    if len(z) and np.ptp(z) == 0:
        return rank_correlation(x, y)
    xy, xz, yz = rank_correlation(x, y), rank_correlation(x, z), rank_correlation(y, z)
    scale = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / math.sqrt(scale) if scale > 1e-12 else math.nan


def interval(values: Sequence[float]) -> Interval:
    """The mean over seeds and its 95 % interval; seeds without a value are left out.

    >>> str(interval([0.5, 0.7, 0.6]))
    '0.60 [0.35, 0.85]'
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(np.mean(known))
    if len(known) == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = float(stats.t.ppf(0.975, len(known) - 1) * np.std(known, ddof=1) / math.sqrt(len(known)))
    return Interval(mean, mean - half, mean + half, len(known))
