"""Means, spreads, intervals and verdicts against slow, obvious references."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from orthocl.lab import Record, RunSettings
from orthocl.paper.claims import (
    Finding,
    conclude,
    is_above_median,
    is_above_on_most,
    is_equal,
    is_higher,
    printed_spread,
    rises,
)
from orthocl.paper.comparison import Comparison, Line, csv_rows
from orthocl.paper.evidence import Evidence, aac
from orthocl.paper.published import Printed
from orthocl.paper.samples import Sample, standard_errors_apart
from orthocl.paper.theory_page import rank_correlation

VALUES = {1: 70.0, 2: 71.5, 3: 69.25, 4: 72.0}


def test_sample_against_numpy():
    sample, array = Sample(VALUES), np.array(list(VALUES.values()))
    assert sample.mean == pytest.approx(array.mean())
    assert sample.spread == pytest.approx(array.std(ddof=1))
    low, high = stats.t.interval(0.95, 3, loc=array.mean(), scale=stats.sem(array))
    assert sample.interval() == pytest.approx((low, high))


def test_one_seed_has_no_spread_and_uses_one_from_elsewhere():
    one = Sample({1: 3.0})
    assert math.isnan(one.spread)
    assert one.interval() == (-math.inf, math.inf)
    assert one.interval(spread=1.0) == pytest.approx(stats.norm.interval(0.95, loc=3.0))


def test_differences_are_paired_over_common_seeds():
    assert Sample({1: 3.0, 2: 5.0}).minus(Sample({2: 1.0, 3: 9.0})).values == {2: 4.0}


def test_standard_errors_against_the_formula():
    cell = Printed("table-2", "", "", mean=68.0, spread=0.5)
    array = np.array(list(VALUES.values()))
    expected = (array.mean() - 68.0) / math.sqrt(array.var(ddof=1) / 4 + 0.25 / 5)
    assert standard_errors_apart(Sample(VALUES), cell) == pytest.approx(expected)
    assert standard_errors_apart(Sample({1: 69.0}), cell) == pytest.approx(1.0 / math.sqrt(0.25 + 0.25 / 5))
    assert math.isnan(standard_errors_apart(Sample(), cell))


def test_rank_correlation_against_scipy(two_methods):
    rng = np.random.default_rng(3)
    predictor, measured = rng.normal(size=9), rng.normal(size=(4, 9))
    found = rank_correlation(predictor, measured)
    assert found.value == pytest.approx(stats.spearmanr(predictor, measured.mean(0))[0])
    assert found.low <= found.value <= found.high
    assert rank_correlation(predictor, measured) == found
    assert rank_correlation(predictor, measured[:1]).text().endswith("(one seed)")
    assert math.isnan(rank_correlation([1.0, 1.0, 1.0], [[1.0, 2.0, 3.0]]).value)


# ---- verdicts --------------------------------------------------------------------------------------------------


@pytest.fixture
def two_methods(record_for) -> Callable[[dict[str, list[float]]], Evidence]:
    """Evidence on one stream, with given average accuracies (as shares) of each seed."""

    def build(values: dict[str, list[float]]) -> Evidence:
        pairs: list[tuple[RunSettings, Record]] = []
        for method, shares in values.items():
            for seed, share in enumerate(shares, start=1):
                run = RunSettings.from_dict(
                    {
                        "stream": {"name": "rotated-mnist-mini", "tasks": 2},
                        "method": {"name": "sgd"},
                        "seed": seed,
                        "stream_label": "rotated-mnist",
                        "method_label": method,
                    }
                )
                pairs.append((run, record_for(run, [share, share])))
        return Evidence(tuple(run for run, _ in pairs), tuple(pairs))

    return build


def test_higher(two_methods):
    better = {"a": [0.80, 0.82, 0.81], "b": [0.70, 0.73, 0.71]}
    assert is_higher(two_methods(better), "rotated-mnist", "a", "b", aac).answer == "yes"
    assert is_higher(two_methods(better), "rotated-mnist", "b", "a", aac).answer == "no"
    assert is_higher(two_methods(better), "rotated-mnist", "a", "c", aac).answer == "missing"
    noisy = {"a": [0.80, 0.60, 0.81], "b": [0.70, 0.73, 0.71]}
    assert is_higher(two_methods(noisy), "rotated-mnist", "a", "b", aac).answer == "unclear"


def test_pairing_decides_what_unpaired_spreads_would_hide(two_methods):
    shares = [0.60, 0.75, 0.90]
    paired = {"a": [share + 0.01 for share in shares], "b": shares}
    found = is_higher(two_methods(paired), "rotated-mnist", "a", "b", aac)
    assert found.answer == "yes"
    assert "+1.00" in found.detail


def test_one_seed_is_judged_by_the_printed_spread(two_methods):
    evidence = two_methods({"a": [0.80], "b": [0.75]})
    assert is_higher(evidence, "rotated-mnist", "a", "b", aac).answer == "unclear"
    found = is_higher(evidence, "rotated-mnist", "a", "b", aac, spread=1.0)
    assert (found.answer, "printed spread" in found.detail) == ("yes", True)
    assert is_higher(evidence, "rotated-mnist", "a", "b", aac, spread=5.0).answer == "unclear"


def test_equal(two_methods):
    alike = two_methods({"a": [0.700, 0.711, 0.720], "b": [0.701, 0.709, 0.721]})
    assert is_equal(alike, "rotated-mnist", "a", "b", aac, spread=1.0).answer == "yes"
    assert is_equal(alike, "rotated-mnist", "a", "b", aac, spread=0.01).answer == "unclear"
    apart = two_methods({"a": [0.80, 0.82, 0.81], "b": [0.70, 0.73, 0.71]})
    assert is_equal(apart, "rotated-mnist", "a", "b", aac, spread=1.0).answer == "no"


OTHERS = ("sgd", "si", "mas")


def above(evidence, wanted=True, others=OTHERS):
    return is_above_median(evidence, "rotated-mnist", "ogd+", others, "aac", "table-2", wanted)


def test_above_the_median(two_methods):
    rivals = {"sgd": [0.70, 0.71, 0.72], "si": [0.90, 0.91, 0.92], "mas": [0.75, 0.76, 0.77]}
    evidence = two_methods({"ogd+": [0.80, 0.82, 0.81], **rivals})
    found = above(evidence)
    assert found.answer == "yes"
    assert found.detail.startswith("+5.00 [")
    assert "(place 2 of 4)" in found.detail
    against = above(evidence, wanted=False)
    assert (against.answer, "better than the paper claims" in against.detail) == ("no", True)
    noisy = two_methods({"ogd+": [0.70, 0.90, 0.74], **rivals})
    assert (above(noisy).answer, above(noisy, wanted=False).answer) == ("unclear", "unclear")


def test_above_the_median_with_one_seed_by_the_printed_spread(two_methods):
    """The printed spreads of OGD+ (0.50) and MAS (0.46) on Rotated MNIST amount to 0.68, of which 1.96 are 1.33."""
    for own, answer in ((0.76, "unclear"), (0.765, "yes"), (0.735, "no")):
        evidence = two_methods({"ogd+": [own], "sgd": [0.70], "si": [0.90], "mas": [0.75]})
        assert above(evidence).answer == answer
    nothing_printed = two_methods({"ogd+": [0.90], "sgd": [0.70], "a-gem": [0.75], "si": [0.80]})
    assert above(nothing_printed, others=("sgd", "a-gem")).answer == "unclear"


def test_the_median_is_that_of_baselines_that_work(two_methods):
    rivals = {"sgd": [0.70] * 3, "si": [0.90] * 3}
    evidence = two_methods({"ogd+": [0.80, 0.82, 0.81], **rivals, "mas": [0.105, 0.11, 0.1]})
    found = above(evidence)
    assert (found.answer, "left out: mas (at chance)" in found.detail) == ("unclear", True)
    lost = replace(evidence.runs[0], method_label="ewc")
    diverged = replace(evidence, diverged=((lost, "the loss became inf"),))
    assert "ewc (diverged), mas (at chance)" in above(diverged, others=("ewc", *OTHERS)).detail
    assert "plain" not in above(evidence, others=(*OTHERS, "stable-sgd-plain")).detail
    asked = replace(lost, method_label="stable-sgd-plain")
    waiting = replace(evidence, runs=(*evidence.runs, asked))
    assert above(waiting, others=(*OTHERS, "stable-sgd-plain")).answer == "missing"


def test_methods_that_learnt_nothing_are_not_compared(two_methods):
    evidence = two_methods({"a": [0.10, 0.101, 0.102], "b": [0.10, 0.101, 0.102], "c": [0.8, 0.81, 0.79]})
    assert is_equal(evidence, "rotated-mnist", "a", "b", aac, spread=1.0).answer == "unclear"
    assert is_higher(evidence, "rotated-mnist", "c", "a", aac).answer == "yes", "a learnt, and forgot"
    untrained = replace(
        evidence,
        pairs=tuple(
            (run, replace(record, result=replace(record.result, accuracies=[[0.1, 0.1]] * 3)))
            if run.method_label == "a"
            else (run, record)
            for run, record in evidence.pairs
        ),
    )
    found = is_higher(untrained, "rotated-mnist", "c", "a", aac)
    assert (found.answer, found.detail) == ("unclear", "a learnt nothing")


def test_above_on_most_tasks():
    clear = [Sample({1: 1.0, 2: 2.0, 3: 1.5})] * 4 + [Sample({1: -1.0, 2: -1.0, 3: -1.0})]
    assert is_above_on_most("x", clear).answer == "yes"
    assert is_above_on_most("x", [Sample({1: 1.0})] * 5).answer == "unclear"
    assert (
        is_above_on_most("x", [Sample({s: -v for s, v in one.values.items()}) for one in clear]).answer
        == "no"
    )
    assert is_above_on_most("x", [Sample()]).answer == "missing"


def test_rises():
    up = [
        (100.0, Sample({1: -9.0, 2: -8.0})),
        (200.0, Sample({1: -7.0, 2: -6.0})),
        (300.0, Sample({1: -2.0, 2: -1.0})),
    ]
    assert rises("x", up, uniformly=True).answer == "yes"
    assert (
        rises("x", [(x, Sample({s: -v for s, v in y.values.items()})) for x, y in up], uniformly=False).answer
        == "no"
    )
    bent = [up[0], (200.0, Sample({1: -9.5, 2: -8.5})), up[2]]
    assert rises("x", bent, uniformly=False).answer == "yes"
    assert rises("x", bent, uniformly=True).answer == "unclear"
    assert rises("x", up[:1], uniformly=False).answer == "missing"
    assert rises("x", [(x, Sample({1: y.values[1]})) for x, y in up], uniformly=False).answer == "unclear"


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        (["yes", "yes"], "holds"),
        (["yes", "missing"], "holds with a condition"),
        (["yes", "no"], "holds with a condition"),
        (["yes", "no", "no"], "does not hold"),
        (["yes", "unclear"], "holds with a condition"),
        (["no", "unclear"], "does not hold"),
        (["no", "missing"], "does not hold"),
        (["unclear", "missing"], "undecided"),
        (["missing", "missing"], "not run"),
    ],
)
def test_conclusions(answers, status):
    assert conclude("c", "p", [Finding(str(n), answer) for n, answer in enumerate(answers)]).status == status


def test_conclusions_name_their_conditions():
    mixed = [Finding("a", "yes"), Finding("b", "no")]
    assert conclude("c", "p", mixed).text == "holds with a condition: on a only"
    assert conclude("c", "p", mixed, everywhere=True).text == "does not hold: except on a"
    assert conclude("c", "p", mixed, preposition="against").text == "holds with a condition: against a only"
    assert conclude("c", "p", [*mixed, Finding("d", "no")]).text == "does not hold: except on a"
    assert conclude("c", "p", mixed[:1], condition="in part").text == "holds with a condition: in part"


def test_printed_spread_is_of_the_difference():
    assert printed_spread("table-2", "cub200", ("ogd", "ogd+"), "aac") == pytest.approx(
        math.hypot(0.89, 0.52)
    )
    assert printed_spread("table-2", "cub200", ("ogd", "a-gem"), "aac") is None


# ---- rendering -------------------------------------------------------------------------------------------------

LINE = Line(
    "cub200",
    "ogd",
    "AAC",
    Sample({1: 58.0, 2: 60.0}),
    Printed("table-2", "OGD", "CUB200", mean=57.89, spread=0.89),
)


def test_formats_of_a_comparison():
    comparison = Comparison("t", (LINE,))
    assert (
        comparison.to_markdown().splitlines()[-1]
        == "| cub200 | ogd | AAC | 59.00 ± 1.41 | 2 | 57.89 ± 0.89 | +1.11 | +1.0 |"
    )
    assert r"59.00 $\pm$ 1.41" in comparison.to_latex()
    assert comparison.to_values()[0]["ours"]["values"] == {"1": 58.0, "2": 60.0}
    assert csv_rows([comparison]).splitlines()[1].startswith("cub200,ogd,AAC,1 2,59.0,1.4142")
    assert comparison.agreement() == (1, 1)


def test_where_the_problem_is_another_no_difference_is_shown():
    text = Comparison("t", (LINE,), comparable=False).to_markdown()
    assert "57.89" in text
    assert "+1.11" not in text
