"""The appendix's searches from records made by hand: what was run of each grid, its best, and each setting's part."""

import json

import pytest

from orthocl.paper.evidence import Evidence
from orthocl.paper.experiments import experiment_folder, load_runs
from orthocl.paper.items import find_evidence, get_item, make_page
from orthocl.paper.searches import find_searched, searches


def runs_of(name, method):
    runs = load_runs(experiment_folder() / f"{name}.toml")
    return [
        run
        for run in runs
        if run.stream_label == "rotated-mnist" and run.method_label.split(" ")[0] == method
    ]


@pytest.fixture
def evidence(record_for):
    """Twenty points of the grid of Stable SGD, better with a larger learning rate; another diverged."""
    points = runs_of("search_mnist", "stable-sgd")[::13][:21]
    pairs = [(run, record_for(run, [0.5 + run.train.learning_rate] * 15)) for run in points[:-1]]
    protocol = [run for run in runs_of("table_2_beside", "stable-sgd-plain") if run.seed <= 2]
    pairs += [(run, record_for(run, [0.88] * 15)) for run in protocol]
    other = [(run, record_for(run, [0.99] * 15)) for run in runs_of("table_2", "ewc")]  # no point of a grid
    return Evidence((), (*pairs, *other), ((points[-1], "the loss became inf"),))


def test_what_was_run_of_a_grid(evidence):
    (found,) = find_searched(evidence)
    assert (found.stream, found.method, found.size) == ("rotated-mnist", "stable-sgd", 270)
    assert found.tried == "21 of 270 (1 diverged)"
    by_rate = found.best_by_value()["learning_rate"]
    assert list(by_rate) == ["0.01", "0.1", "0.25"]
    assert list(by_rate.values()) == pytest.approx([51, 60, 75])


def test_page(evidence):
    page = searches(evidence)
    best, axes = page.words
    assert best.rows[1][:4] == ("rotated-mnist", "stable-sgd", "21 of 270 (1 diverged)", "75.00")
    assert "learning_rate 0.25" in best.rows[1][4]
    assert best.rows[1][5] == "88.00 ± 0.00 (2)"
    assert (
        "rotated-mnist",
        "stable-sgd",
        "learning_rate",
        "0.01: 51.00; 0.1: 60.00; 0.25: 75.00",
    ) in axes.rows
    json.dumps(page.to_values(), allow_nan=False)


def test_what_is_in_a_store_is_shown_and_nothing_is_asked_for(evidence):
    class Index:
        def find(self, runs):
            found = [pair for pair in evidence.pairs if pair[0] in runs]
            return Evidence(
                tuple(runs), tuple(found), tuple(one for one in evidence.diverged if one[0] in runs)
            )

    item = get_item("searches")
    gathered = find_evidence(item, Index(), ())
    assert gathered.missing == ()
    assert make_page(item, gathered).words[0].rows[1][2] == "21 of 270 (1 diverged)"


def test_one_point_is_no_search(evidence):
    assert find_searched(Evidence((), evidence.pairs[:1])) == []
    assert searches(Evidence((), evidence.pairs[:1])).words == ()
