"""Trivial predictors of forgetting count in their better direction, with their own interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orthocl.theory.judgement import Pair, judge, rank_correlation


@pytest.mark.parametrize("quantity", ["change", "drop"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_lag_and_later_tasks_against_scipy(quantity, sign):
    """What was measured grows (or falls) with the lag, up to noise: correlations by SciPy, a t-interval by hand."""
    generator = np.random.default_rng(1)
    seeds, expected = [], {"lag": [], "later": []}
    for _ in range(4):
        pairs, rows = [], []
        for task in range(2, 7):
            for earlier in range(1, task):
                truth = sign * (task - earlier) + 2 * float(generator.normal())
                kinds = (0.0, truth, 0.0, 7.0) if quantity == "change" else (0.0, 7.0, 0.0, truth)
                pairs.append(Pair(task, earlier, 6, *kinds))
                rows.append((task - earlier, 6 - earlier, truth))
        seeds.append(pairs)
        lags, laters, truths = zip(*rows, strict=True)
        expected["lag"].append(stats.spearmanr(lags, truths).statistic)
        expected["later"].append(stats.spearmanr(laters, truths).statistic)
    found = judge(seeds, quantity)
    for name, values in expected.items():
        better = np.array(values) * np.sign(np.mean(values))
        half = stats.t.ppf(0.975, 3) * better.std(ddof=1) / 2
        own = getattr(found, name)
        assert (own.mean, own.low, own.high) == pytest.approx(
            (better.mean(), better.mean() - half, better.mean() + half)
        )
        assert own.seeds == 4


def test_what_does_not_vary_has_no_rank_correlation():
    rising, constant = np.array([1.0, 2.0, 2.0]), np.array([5.0, 5.0, 5.0])
    assert rank_correlation(rising, -rising) == -1
    for one, other in ((rising, constant), (constant, rising), (rising[:2], rising[:2])):
        assert math.isnan(rank_correlation(one, other))


def test_the_same_order_is_exactly_one():
    for count in range(3, 60):
        x = np.arange(float(count)) ** 2
        assert rank_correlation(x, np.exp(x / count)) == 1
        assert rank_correlation(x, -x) == -1
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == 0.5
    assert rank_correlation(np.array([0.0, 0.5, 1.0]), np.array([7.0, 8.0, 8.0])) == pytest.approx(0.75**0.5)
