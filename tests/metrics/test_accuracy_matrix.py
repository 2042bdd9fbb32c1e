import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthocl.errors import DataError, SettingsError
from orthocl.metrics import METRICS, AccuracyMatrix, compute, memorised_variation, over_parameterisation


@st.composite
def matrices(draw: st.DrawFn, tasks: int | None = None) -> AccuracyMatrix:
    count = draw(st.integers(1, 6)) if tasks is None else tasks
    value = st.floats(0, 1)
    return AccuracyMatrix.from_rows([[draw(value) for _ in range(count)] for _ in range(count + 1)])


EXAMPLE = AccuracyMatrix.from_rows(
    [[0.9, 0.8, 0.1], [0.7, 0.6, 0.1], [0.7, 0.5, 0.9]], initial=[0.1, 0.1, 0.1]
)


def test_the_worked_example_of_the_three_definitions_of_forgetting():
    assert compute("forgetting", EXAMPLE) == pytest.approx(0.25)
    assert compute("forgetting-since-learnt", EXAMPLE) == pytest.approx(0.15)
    assert -compute("bwt", EXAMPLE) == pytest.approx(0.15)
    assert compute("forgetting-first-minus-last", EXAMPLE) == pytest.approx(0.15)


def test_hand_computed_values():
    assert compute("aac", EXAMPLE) == pytest.approx(0.7)
    assert compute("fwt", EXAMPLE) == pytest.approx(((0.8 - 0.1) + (0.1 - 0.1)) / 2)
    assert compute("fwt-accuracy", EXAMPLE) == pytest.approx(0.45)
    assert compute("learning-accuracy", EXAMPLE) == pytest.approx((0.9 + 0.6 + 0.9) / 3)
    assert compute("bwt-all-pairs", EXAMPLE) == pytest.approx((-0.2 - 0.2 - 0.1) / 3)
    assert compute("forgetting-with-last", EXAMPLE) == pytest.approx((0.2 + 0.3) / 2)


@given(matrices())
def test_forgetting_definitions_are_ordered(a: AccuracyMatrix):
    if a.tasks == 1:
        assert math.isnan(compute("forgetting", a))
        return
    slack = 1e-12
    largest, since, first = (compute(f"forgetting{s}", a) for s in ("", "-since-learnt", "-first-minus-last"))
    assert largest + slack >= since
    assert since + slack >= first
    assert first == pytest.approx(-compute("bwt", a), abs=1e-12)
    assert compute("forgetting-with-last", a) >= -slack
    assert compute("forgetting-with-last", a) + slack >= largest


@given(matrices())
def test_average_accuracy_is_learning_accuracy_plus_weighted_backward_transfer(a: AccuracyMatrix):
    transfer = compute("bwt", a) if a.tasks > 1 else 0.0
    expected = compute("learning-accuracy", a) + transfer * (a.tasks - 1) / a.tasks
    assert compute("aac", a) == pytest.approx(expected, abs=1e-12)


@given(matrices())
def test_json_round_trip(a: AccuracyMatrix):
    assert AccuracyMatrix.from_json(a.to_json()) == a
    assert AccuracyMatrix.from_json(json.loads(a.to_json())) == a


def test_missing_values_spoil_only_the_metrics_that_need_them():
    nan = math.nan
    a = AccuracyMatrix.from_rows([[nan, nan], [0.9, nan], [0.5, 0.8]])
    assert compute("aac", a) == pytest.approx(0.65)
    assert compute("bwt", a) == pytest.approx(-0.4)
    assert compute("forgetting", a) == pytest.approx(0.4)
    assert math.isnan(compute("fwt", a))
    assert AccuracyMatrix.from_json(a.to_json()) == a
    later = AccuracyMatrix.from_rows([[0, 0, 0], [0.9, 0, 0], [nan, 0.5, 0], [0.1, 0.2, 0.3]])
    assert math.isnan(compute("forgetting", later))


@pytest.mark.parametrize("name", [n for n in METRICS if n not in ("aac", "learning-accuracy")])
def test_one_task_gives_nan_where_a_second_is_needed(name: str):
    assert math.isnan(compute(name, AccuracyMatrix.from_rows([[0.1], [0.9]])))


def test_bad_matrices_and_names_are_refused():
    with pytest.raises(DataError, match="row 1 has 1 accuracies"):
        AccuracyMatrix.from_rows([[0.1, 0.2], [0.1], [0.3, 0.4]])
    with pytest.raises(DataError, match="at least two rows"):
        AccuracyMatrix.from_rows([[0.1]])
    with pytest.raises(DataError, match="infinite"):
        AccuracyMatrix.from_rows([[0.1], [math.inf]])
    with pytest.raises(SettingsError, match="did you mean 'forgetting'"):
        compute("forgeting", EXAMPLE)


@pytest.mark.parametrize("position", [(4, 1), (-1, 1), (1, 0), (1, -1), (1, 4), (0, 0)])
def test_places_outside_of_the_matrix_are_refused_not_counted_from_the_end(position: tuple[int, int]):
    with pytest.raises(IndexError, match=r"does not exist: t is 0..3, tau is 1..3"):
        EXAMPLE[position]


def test_every_place_of_the_matrix():
    assert [EXAMPLE[after, 1] for after in range(4)] == [0.1, 0.9, 0.7, 0.7]
    assert [EXAMPLE[2, task] for task in (1, 2, 3)] == [0.7, 0.6, 0.1]


def test_matrices_are_equal_by_value_and_nothing_else():
    nan = math.nan
    one, other = (AccuracyMatrix.from_rows([[nan], [0.5]]) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != AccuracyMatrix.from_rows([[nan], [0.25]])
    assert one != one.to_json()
    assert (one == 0.5) is False


def test_json_text_holds_plain_numbers_and_null():
    text = AccuracyMatrix.from_rows([[math.nan, 0.25], [1, 0], [0.5, 0.75]]).to_json()
    assert json.loads(text) == [[None, 0.25], [1.0, 0.0], [0.5, 0.75]]


def test_over_parameterisation_and_memorised_variation():
    assert over_parameterisation(100, [50, 150]) == 1.0
    assert memorised_variation([{1: 1.0}, {1: 0.8, 2: 0.9}, {1: 0.7, 2: 0.95}]) == pytest.approx(-0.3)
    assert memorised_variation([{1: 1.0}, {1: 0.8, 2: 0.9}, {1: 0.7, 2: 0.95}], task=2) == pytest.approx(0.05)
    assert math.isnan(memorised_variation([]))


def test_a_metric_of_ones_own_is_a_function(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("LIMIT = 0.5\n\n\ndef first(a):\n    return a[a.tasks, 1]\n")
    assert compute(f"{file}:first", EXAMPLE) == 0.7
    with pytest.raises(SettingsError, match="is not a function of an AccuracyMatrix"):
        compute(f"{file}:LIMIT", EXAMPLE)
