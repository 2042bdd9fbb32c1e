"""Predictions of the theory on tiny streams against the closed form asked directly, and the page that shows them."""

import json
from dataclasses import replace

import pytest
import torch

from orthocl.errors import StoreError, UnsupportedError
from orthocl.lab import make_experiment
from orthocl.lab.experiment.settings import NetSettings
from orthocl.nets import MultiHead, make_net
from orthocl.paper.evidence import Evidence
from orthocl.paper.predictions import (
    AllHeads,
    Prediction,
    bound_stream,
    fitting,
    predict_stream,
    read_predictions,
    settings_hash,
    write_predictions,
)
from orthocl.paper.theory_page import TRIVIAL, measured_forgetting, predictors, tangent_drift, theory_page
from orthocl.streams import make
from orthocl.theory import InfiniteWidthNTK, certify, early_stopping_ridge, solve_stream
from orthocl.theory.regression_targets import regression_tasks


def tiny_runs(stream: str, methods=("sgd", "ogd"), seeds=(1, 2)):
    content = {
        "streams": {"tiny": {"stream": stream, "tasks": 3, "train_size": 60, "test_size": 40}},
        "methods": {name: {} for name in methods},
        "net": {"name": "mlp", "hidden": [16, 16]},
        "train": {"epochs": 2, "batch_size": 10, "learning_rate": 0.05},
        "seeds": list(seeds),
    }
    return make_experiment(content).runs


@pytest.fixture(scope="module")
def shared() -> Prediction:
    return predict_stream(tiny_runs("rotated-mnist-mini")[0], samples=20)


def test_shared_head_against_the_closed_form(shared):
    stream = make("rotated-mnist-mini", tasks=3, train_size=60, test_size=40)
    tasks = regression_tasks(list(stream), 20, "one-hot", 20, disjoint=False)
    ridge = early_stopping_ridge(20, 0.05, 2 * 6)
    kernel = InfiniteWidthNTK(2, parameterisation="pytorch", widths=[16, 16])
    solution = solve_stream(
        kernel, [(task.inputs.flatten(1), task.targets) for task in tasks], rule="sgd", ridge=ridge
    )
    assert shared.ridge == pytest.approx(ridge, rel=1e-5)
    assert shared.dissimilarity["sgd"][1] == pytest.approx(solution.dissimilarity(2) / 20, rel=1e-5)
    first = tasks[0]
    errors = [
        float(
            (solution.predict(first.test_inputs.flatten(1), after) - first.test_targets).square().sum() / 20
        )
        for after in (1, 3)
    ]
    assert shared.forgetting["sgd"][0] == pytest.approx(errors[1] - errors[0], rel=1e-4)
    assert shared.forgetting["sgd"][-1] == 0
    assert len(shared.complexity["ogd"]) == 3


def test_bounds_are_the_smallest_valid_ones_on_different_samples():
    run = tiny_runs("rotated-mnist-mini")[0]
    found = bound_stream(run, points=60)
    stream = make("rotated-mnist-mini", tasks=3, train_size=60, test_size=40)
    tasks = regression_tasks(list(stream), 20, "one-hot", 1)
    kernel = InfiniteWidthNTK(2, parameterisation="pytorch", widths=[16, 16])
    data = [(task.inputs[:18].flatten(1), task.targets[:18]) for task in tasks]
    solution = solve_stream(kernel, data, rule="sgd", ridge=early_stopping_ridge(18, 0.05, 2 * 6))
    held = (tasks[1].inputs[18:].flatten(1), tasks[1].targets[18:])
    expected = certify(solution, task=2, delta=0.05, held_out=held).smallest.value
    assert found["sgd"][1] == pytest.approx(expected, rel=1e-5)
    assert set(found) == {"sgd", "ogd"}
    assert all(value > 0 for values in found.values() for value in values)


def test_bounds_need_a_shared_head_and_a_wide_kernel():
    with pytest.raises(UnsupportedError, match="share a head"):
        bound_stream(tiny_runs("split-mnist-mini")[0])
    lenet = replace(tiny_runs("rotated-mnist-mini")[0], net=NetSettings("lenet", {}))
    with pytest.raises(UnsupportedError, match="infinitely wide lenet"):
        bound_stream(lenet)


def test_heads_of_their_own_interfere_through_the_trunk():
    found = predict_stream(tiny_runs("split-mnist-mini")[0], head_samples=6)
    assert (found.samples, found.kernel) == (6, "mlp at its initial weights, seed 1")
    assert any(abs(value) > 1e-6 for value in found.forgetting["sgd"][:-1])
    assert found.forgetting["sgd"][-1] == 0


def test_all_heads_are_the_heads_side_by_side():
    net = make_net("mlp", (1, 4, 4), {"a": 2, "b": 3}, {"hidden": [8]})
    assert isinstance(net, MultiHead)
    inputs = torch.randn(5, 1, 4, 4)
    both = AllHeads(net)(inputs)
    net.select("b")
    assert torch.equal(both[:, 2:], net(inputs))


def test_files_of_predictions(tmp_path, shared):
    path = tmp_path / "new" / "theory.json"
    assert read_predictions(path) == {}
    write_predictions(path, {"tiny": shared})
    assert read_predictions(path) == {"tiny": shared}
    before = path.read_bytes()
    write_predictions(path, read_predictions(path))
    assert path.read_bytes() == before
    path.write_text(json.dumps({"streams": [{"stream": "x"}]}))
    with pytest.raises(StoreError, match="remove it and make it again"):
        read_predictions(path)


def test_predictions_fit_the_settings_they_were_made_for(shared):
    runs = tiny_runs("rotated-mnist-mini")
    assert fitting({"tiny": shared}, runs) == {"tiny": shared}
    other = make_experiment(
        {"streams": {"tiny": {"stream": "rotated-mnist-mini", "tasks": 4}}, "methods": ["sgd"], "seeds": [1]}
    ).runs
    assert fitting({"tiny": shared}, other) == {}
    assert settings_hash(runs[0]) == settings_hash(runs[1])  # another seed, the same prediction


def test_what_is_measured(record_for):
    run = tiny_runs("rotated-mnist-mini")[0]
    record = record_for(run, [0.5, 0.7, 0.95])
    assert measured_forgetting(record) == pytest.approx([45.0, 25.0])
    assert tangent_drift(record) == pytest.approx([0.2, 0.1])  # cosine 0.9 after each of the later tasks


def test_page(record_for, shared):
    """More is forgotten of earlier tasks: the trivial predictor is perfect, and so is a prediction that says so."""
    runs = tiny_runs("rotated-mnist-mini", seeds=(1, 2, 3))
    evidence = Evidence(
        runs, tuple((run, record_for(run, [0.5 + 0.01 * run.seed, 0.7, 0.95])) for run in runs)
    )
    right = replace(shared, stream="tiny", forgetting={"sgd": [3.0, 1.0, 0.0], "ogd": [1.0, 3.0, 0.0]})
    page = theory_page(evidence, {"tiny": right})
    assert page.words[1].rows[1:] == (
        ("tiny", "100", "100"),
    )  # both rules predict 2 on average, and forget alike
    head, sgd, ogd = page.words[2].rows
    assert head[3] == TRIVIAL
    assert sgd[3] == ogd[3] == "1.00 [1.00, 1.00]"
    column = head.index("predicted forgetting")
    assert (sgd[column], ogd[column]) == ("1.00 [1.00, 1.00]", "-1.00 [-1.00, -1.00]")
    assert head[-1] == "tangent drift"
    assert (sgd[-1], ogd[-1]) == ("", "1.00 [1.00, 1.00]")
    assert page.verdicts[0].status == "does not hold"  # on sgd it only does as well
    assert page.notes[0].endswith("than the predicted forgetting in 1 of 2 rows.")
    assert len(page.draw().axes) == 1
    assert page.words[0].rows[1][-1] == "34.00"
    found = predictors(right, "sgd", [])
    assert found["dissimilarity of later tasks"][0] == pytest.approx(sum(right.dissimilarity["sgd"][1:]))


def test_page_without_anything():
    runs = tiny_runs("rotated-mnist-mini")
    page = theory_page(Evidence(runs), {})
    assert page.verdicts[0].status == "not run"
    assert page.draw is None
