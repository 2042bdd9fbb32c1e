"""The trade-off figure: points where they belong, lines for what costs nothing."""

from dataclasses import replace

import pytest

from orthocl.errors import DataError
from orthocl.lab.reporting.trade_off import METRICS, bytes_figure, directions_figure


@pytest.fixture
def pairs(make_record):
    costs = {"sgd": {}, "ewc": {"memory_bytes": 3e6}, "ogd": {"memory_bytes": 5e6, "rank": 40.0}}
    made = []
    for method, monitors in costs.items():
        for seed, final in ((1, 0.5), (2, 0.7)):
            record = make_record(method, seed, final)
            rows = [{**monitors, "rank": 10.0} if "rank" in monitors else dict(monitors), dict(monitors)]
            record = replace(record, result=replace(record.result, monitors=rows))
            made.append((replace(record.settings, method_label=method), record))
    return made


def _points(axis):
    return {
        drawn.get_label(): drawn.lines[0].get_xydata().tolist()[0]
        for drawn in axis.containers
        if drawn.get_label()
    }


def test_points_stand_at_their_bytes_and_free_methods_are_lines(pairs):
    figure = bytes_figure(pairs)
    assert len(figure.axes) == len(METRICS)
    accuracy = figure.axes[0]
    expected = 100 * sum(record.metric("aac") for _, record in pairs[:2]) / 2
    assert _points(accuracy) == {"ewc": pytest.approx([3.0, expected]), "ogd": pytest.approx([5.0, expected])}
    (line,) = [line for line in accuracy.get_lines() if line.get_label() == "sgd"]
    assert line.get_ydata()[0] == pytest.approx(expected)
    assert accuracy.get_xscale() == "log"


def test_a_free_method_is_a_line_under_any_label(pairs):
    renamed = [(replace(s, method_label="mine") if s.method_label == "sgd" else s, r) for s, r in pairs]
    assert "mine" in [line.get_label() for line in bytes_figure(renamed).axes[0].get_lines()]


def test_directions_are_those_at_the_end_and_only_of_methods_that_protect_any(pairs):
    accuracy = directions_figure(pairs).axes[0]
    assert {name: point[0] for name, point in _points(accuracy).items()} == {"ogd": 40.0}
    assert "sgd" in [line.get_label() for line in accuracy.get_lines()]


def test_nothing_to_draw_is_an_error():
    with pytest.raises(DataError, match="run the experiment first"):
        bytes_figure([])
