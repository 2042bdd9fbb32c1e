from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from orthocl.lab import RunSettings
from orthocl.lab.reporting.findings import find
from orthocl.lab.reporting.groups import group_runs
from orthocl.lab.reporting.page_data import LETTERS, PageInput, pack, page_data, to_script
from orthocl.lab.reporting.page_extras import dense_ogd
from orthocl.lab.reporting.report import render_report


def unpack(text: str) -> list[float]:
    levels = [
        sum(
            LETTERS.index(letter) << shift
            for letter, shift in zip(text[at : at + 3], (12, 6, 0), strict=True)
        )
        if text[at] != " "
        else float("nan")
        for at in range(0, len(text), 3)
    ]
    return [level / 262143 for level in levels]


def test_packing_keeps_five_digits():
    values = np.random.RandomState(0).rand(1000)
    assert np.abs(np.array(unpack(pack(values))) - values).max() < 2e-6
    assert np.isnan(unpack(pack([float("nan")])))[0]


def test_the_data_hold_every_accuracy(make_runs):
    pairs = make_runs()
    values = page_data(PageInput(pairs, "x")).values
    record = next(
        r for s, r in pairs if s.method_label == "ewc" and s.stream_label == "permuted" and s.seed == 2
    )
    group = next(
        g
        for g in values["groups"]
        if g["label"] == "ewc" and values["streams"][g["stream"]]["name"] == "permuted"
    )
    run = next(run for run in group["runs"] if run["seed"] == 2)
    expected = [value for after, row in enumerate(record.result.accuracies) for value in row[:after]]
    assert unpack(run["after"]) == pytest.approx(expected, abs=2e-6)
    means = np.mean(
        [r.result.accuracies for s, r in pairs if s.method_label == "ewc" and s.stream_label == "permuted"], 0
    )
    assert unpack(group["before"]) == pytest.approx(
        [v for n, row in enumerate(means) for v in row[n:]], abs=2e-6
    )
    names = [metric["name"] for metric in values["metrics"]]
    assert run["values"][names.index("aac")] == pytest.approx(record.metric("aac"), rel=1e-5)
    assert [g["label"] for g in values["groups"] if g["stream"] == 0] == ["sgd", "ewc", "ogd", "ogd+"]


def test_common_settings_stand_once_and_only_differences_in_the_groups(make_runs):
    values = page_data(PageInput(make_runs(changes=({}, {"epochs": 5})), "x")).values
    assert values["common"]["train.learning_rate"] == 0.05
    assert {group["settings"]["train.epochs"] for group in values["groups"]} == {2, 5}
    assert all("train.learning_rate" not in group["settings"] for group in values["groups"])
    assert {group["label"] for group in values["groups"]} >= {"sgd epochs=2", "sgd epochs=5"}


def test_nothing_in_the_data_can_end_its_script():
    text = to_script({"a": "</script><!-- & \u2028", "b": float("nan"), "c": 2.0})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028", "b": None, "c": 2}


def test_the_headline_is_computed(make_runs):
    pairs = make_runs()
    finding = find(group_runs(pairs))[0]
    best, plain = (
        np.mean(
            [r.metric("aac") for s, r in pairs if s.method_label == name and s.stream_label == "permuted"]
        )
        for name in ("ogd+", "sgd")
    )
    assert finding.stream == "permuted"
    assert finding.headline == (
        f"On permuted, ogd+ keeps {100 * best:.1f} %, {100 * (best - plain):.1f} points above plain SGD, "
        "for 4.0x the processor time of a step."
    )
    assert [tile[0] for tile in finding.tiles] == ["average accuracy of ogd+", "forgetting", "price"]
    alone = find(group_runs(make_runs(methods=["sgd"])))[0]
    assert alone.headline.startswith("On permuted, plain SGD keeps")
    last = find(group_runs(make_runs(methods=["ogd", "sgd"])))[0]
    assert last.headline.startswith("On permuted, nothing beats plain SGD, which keeps")
    without = find(group_runs(make_runs(methods=["ewc", "ogd"])))[0]
    assert "SGD" not in without.headline


def test_the_headline_names_ties(make_runs):
    pairs = make_runs(methods=["ewc", "ogd"], streams=["rotated"])
    records = {(s.method_label, s.seed): r for s, r in pairs}
    shaken = [
        (
            s,
            replace(
                r,
                result=replace(
                    records["ewc", s.seed].result, accuracies=_shaken(records["ewc", s.seed], s.seed)
                ),
            ),
        )
        if s.method_label == "ogd"
        else (s, r)
        for s, r in pairs
    ]
    assert "; 3 seeds cannot tell it from " in find(group_runs(shaken))[0].headline


def _shaken(record, seed):
    return [[value + (0.004 if seed % 2 else -0.004) for value in row] for row in record.result.accuracies]


def test_barely_trained_runs_make_the_headline(make_runs):
    pairs = [
        (s, replace(r, result=replace(r.result, accuracies=[[0.1] * 4] * 5)))
        for s, r in make_runs(methods=["sgd"])
    ]
    assert "nothing has been learnt" in find(group_runs(pairs))[0].headline


def test_what_dense_ogd_would_cost(make_runs):
    groups = {group.label: group for group in group_runs(make_runs(streams=["rotated"]))}
    assert dense_ogd(groups["sgd"]) is None
    found = dense_ogd(groups["ogd"])
    batch = groups["ogd"].records[0].settings.train.batch_size
    assert found == {"bytes": 4 * 200 * 13_000, "work": pytest.approx(1 + 200 / (3 * batch))}


def test_what_lies_beside_the_records_is_shown(make_runs, fill, store):
    pairs = make_runs(streams=["rotated"])
    store = fill(store, pairs)
    values = page_data(PageInput(pairs, "x", folder=store.directory)).values
    assert values["certificates"][0]["certificate"]["bound"] == 0.1
    assert values["certificates"][0]["label"] == "sgd"
    assert values["theory"] == [
        {"stream": "rotated", "dissimilarity": {"sgd": [0.1, 0.2], "ogd": [0.1, 0.1]}}
    ]
    assert values["groups"][0]["forecasts"][0] == [2, 1, 0.1, 0.2, 0.01, 0.02]
    (store.folder(pairs[0][1].id) / "certificate.json").write_text("[1")
    (store.directory / "theory.json").write_text("[]")
    values = page_data(PageInput(pairs, "x", folder=store.directory)).values
    assert values["certificates"] == values["theory"] == []


def test_a_thousand_runs_stay_small(make_runs):
    """15 tasks, 1,000 settings of one seed each: the largest that so many runs can be."""
    pairs = make_runs(methods=["ogd+"], streams=["rotated"], seeds=[1], tasks=15)
    settings, record = pairs[0]
    numbers = np.random.RandomState(0)
    many = []
    for number in range(1000):
        run = replace(settings, train=replace(settings.train, epochs=number + 1))
        result = replace(record.result, accuracies=numbers.rand(16, 15).tolist())
        many.append((run, replace(record, id=f"{number:016x}", settings=run, result=result)))
    page = render_report(many, title="many")
    assert len(page.encode()) < 1_500_000
    assert page.count("epochs=1000") >= 1


def test_grouping_reads_the_settings_of_every_run_once(make_runs, monkeypatch):
    calls = []
    original = RunSettings.without_seed
    monkeypatch.setattr(RunSettings, "without_seed", lambda self: calls.append(1) or original(self))
    pairs = make_runs()
    render_report(pairs, title="x")
    assert len(calls) == len(pairs)
