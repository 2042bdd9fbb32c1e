from __future__ import annotations

import numpy as np
import pytest

from orthocl.lab.reporting.paired import marks, paired_p, student_tail


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 29])
def test_the_tail_of_students_distribution_is_scipys(freedom):
    stats = pytest.importorskip("scipy.stats")
    for t in (0.0, 0.3, 1.0, 2.5, 12.0):
        assert student_tail(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-12)
        assert student_tail(-t, freedom) == student_tail(t, freedom)


def test_the_paired_test_is_scipys_over_common_seeds():
    stats = pytest.importorskip("scipy.stats")
    numbers = np.random.RandomState(0)
    one = dict(enumerate(numbers.rand(6)))
    two = dict(enumerate(numbers.rand(8), start=2))
    common = sorted(set(one) & set(two))
    expected = stats.ttest_rel([one[seed] for seed in common], [two[seed] for seed in common]).pvalue
    assert paired_p(one, two) == pytest.approx(expected)


def test_equal_differences_are_no_noise():
    one = {1: 0.5, 2: 0.6, 3: 0.7}
    assert paired_p(one, one) == 1.0
    assert paired_p(one, {seed: value + 0.25 for seed, value in one.items()}) == pytest.approx(0.0, abs=1e-9)


def test_marks():
    good, same, bad = {1: 0.90, 2: 0.92, 3: 0.91}, {1: 0.91, 2: 0.90, 3: 0.90}, {1: 0.80, 2: 0.81, 3: 0.82}
    assert marks([bad, good, same]) == ["", "best", "tie"]
    assert marks([bad, good, same], higher_is_better=False) == ["best", "", ""]
    assert marks([good]) == [""], "nobody to compare with"
    assert marks([good, {1: 0.1, 2: 0.1}]) == ["", ""], "too few seeds"
    assert marks([good, {4: 0.1, 5: 0.2, 6: 0.3}]) == ["", ""], "no seeds in common"
    assert marks([good, {1: float("nan"), 2: 0.1, 3: 0.2}]) == ["", ""]


def test_the_best_of_few_seeds_is_not_overlooked():
    """A mean of one seed above all others cannot be called best, and then nobody else can."""
    three = [{1: 0.90, 2: 0.92, 3: 0.91}, {1: 0.80, 2: 0.81, 3: 0.82}]
    assert marks(three) == ["best", ""]
    assert marks([*three, {1: 0.99}]) == ["", "", ""]
    assert marks([*three, {1: 0.5}]) == ["best", "", ""]
