"""Headlines, marks and prices of the report, attacked with records that make them false; clean ones must get them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orthocl.cli.app import call
from orthocl.lab import Record, Result, RunSettings, Store
from orthocl.lab.experiment.settings import run_id
from orthocl.lab.reporting.chosen_runs import failed_runs
from orthocl.lab.reporting.figure import make_figure
from orthocl.lab.reporting.findings import find
from orthocl.lab.reporting.groups import group_runs
from orthocl.lab.reporting.page_data import PageInput, page_data
from orthocl.lab.reporting.report import render_report
from orthocl.lab.reporting.table import make_table
from orthocl.palette import METHODS, method_style

Pairs = list[tuple[RunSettings, Record]]
TASKS, UNTRAINED = 4, 0.1
SEEDS = (1, 2, 3)


def runs(
    label: str,
    final: float,
    *,
    seeds: Sequence[int] = SEEDS,
    learnt: float = 0.95,
    wobble: float = 0.004,
    method: str = "sgd",
    hidden: int = 16,
    train: Mapping[str, Any] | None = None,
    seconds: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Pairs:
    """Runs whose tasks are learnt to one accuracy and end at another, with a little noise of their own."""
    noise = np.random.default_rng(abs(hash((len(label), round(1000 * final)))) % 2**32)
    pairs = []
    for seed in seeds:
        values = {
            "stream": {"name": "rotated-mnist-mini", "tasks": TASKS},
            "method": {"name": method},
            "net": {"name": "mlp", "settings": {"hidden": [hidden]}},
            "train": {"epochs": 2, **(train or {})},
            "seed": seed,
        }
        settings = RunSettings.from_dict(values).resolved()
        settings = replace(settings, stream_label="rotated", method_label=label)
        shift = wobble * (seed - 2) + wobble / 10 * float(noise.normal())
        rows = [[UNTRAINED] * TASKS]
        for after in range(1, TASKS):
            rows.append([learnt if task <= after else UNTRAINED for task in range(1, TASKS + 1)])
        rows.append([final + shift] * TASKS)
        every = settings.train.evaluate_every
        curves = [{"task": 1, "step": every, "accuracies": rows[1]}] if every else []
        result = Result(
            rows, [{1: 1.0}] * TASKS, curves, [{}] * TASKS, [[1.0]] * TASKS, 13_000, [200] * TASKS
        )
        about = {
            "seconds": seconds or {"processor": 2.0, "total": 9.0},
            "machine": {"cpus": 2},
            **(provenance or {}),
        }
        stream = {"name": "rotated", "fingerprint": "f", "settings": {}, "tasks": ["t"] * TASKS}
        pairs.append(
            (settings, Record(run_id(settings, "f"), settings, stream, result=result, provenance=about))
        )
    return pairs


def headline(*pairs: Pairs) -> str:
    (finding,) = find(group_runs([pair for some in pairs for pair in some]))
    return finding.headline


def page_of(pairs: Pairs) -> dict[str, Any]:
    return page_data(PageInput(pairs, "t")).values


# ---- who keeps how much, and how far above plain SGD -----------------------------------------------------------


def test_the_margin_is_said_of_runs_that_differ_in_the_method_alone():
    assert headline(runs("sgd", 0.60), runs("ogd+", 0.80, method="ogd+")) == (
        "On rotated, ogd+ keeps 80.0 %, 20.0 points above plain SGD, for 1.0x the processor time of a step."
    )


@pytest.mark.parametrize(
    "other", [{"hidden": 400}, {"train": {"epochs": 9}}, {"train": {"learning_rate": 0.5}}]
)
def test_networks_and_trainings_are_not_compared_with_each_other(other):
    alone = headline(runs("sgd", 0.60), runs("ogd+", 0.80, method="ogd+", **other))
    assert "points above" not in alone
    assert "another network or training, so no margin is given" in alone
    beside = headline(
        runs("sgd", 0.60), runs("ogd", 0.70, method="ogd"), runs("ogd+", 0.80, method="ogd+", **other)
    )
    assert beside.startswith("On rotated, ogd keeps 70.0 %, 10.0 points above plain SGD")
    assert "; higher with other settings: ogd+" in beside
    wide = headline(runs("sgd", 0.60), runs("sgd", 0.75, hidden=400), runs("ogd", 0.70, method="ogd"))
    assert "10.0 points above plain SGD" in wide, "the SGD of the same network, not the best one"


def test_the_best_of_many_settings_does_not_stand_for_the_method():
    points = [
        runs(f"ogd strength={n}", 0.70 + 0.01 * n, method="ogd", train={"batch_size": 8 + n})
        for n in range(9)
    ]
    text = headline(runs("sgd", 0.60), runs("ogd", 0.66, method="ogd"), *points)
    assert text.startswith("On rotated, ogd keeps 66.0 %, 6.0 points above plain SGD")
    assert "higher with other settings: ogd strength=8" in text


@pytest.mark.parametrize(("seeds", "words"), [((1,), "with one seed"), ((1, 2), "with 2 seeds")])
def test_few_seeds_are_said(seeds, words):
    text = headline(runs("sgd", 0.60, seeds=seeds), runs("ogd", 0.80, method="ogd", seeds=seeds))
    assert words in text
    assert "seed" not in headline(runs("sgd", 0.60), runs("ogd", 0.80, method="ogd"))


def test_other_seeds_give_no_margin():
    text = headline(runs("sgd", 0.60), runs("ogd", 0.80, method="ogd", seeds=(4, 5, 6)))
    assert "points above" not in text
    assert "other seeds, so no margin is given" in text
    shared = headline(
        runs("sgd", 0.60, wobble=0.1), runs("ogd", 0.80, method="ogd", wobble=0.1, seeds=(2, 3, 4))
    )
    margin = float(shared.partition(" points above")[0].rpartition(", ")[2])
    assert margin == pytest.approx(20.0, abs=3.0), (
        "over the seeds of both, not the means of different ones (30)"
    )


def test_nothing_is_measured_against_a_plain_sgd_that_learnt_nothing():
    text = headline(runs("sgd", UNTRAINED, learnt=UNTRAINED), runs("ogd", 0.80, method="ogd"))
    assert "points above" not in text
    assert "plain SGD is barely trained, so there is no margin to speak of" in text


def test_whoever_learnt_nothing_does_not_lead():
    nothing = headline(
        runs("sgd", UNTRAINED, learnt=UNTRAINED), runs("ogd", UNTRAINED, method="ogd", learnt=UNTRAINED)
    )
    assert nothing.startswith("On rotated nothing has been learnt")


# ---- marks -----------------------------------------------------------------------------------------------------


def marks(*pairs: Pairs, metric: str = "forgetting") -> dict[str, str]:
    table = make_table([pair for some in pairs for pair in some], [metric])
    return {row.method: row.marks[0] for row in table.rows}


def test_the_best_is_marked():
    clean = marks(runs("sgd", 0.60), runs("ogd", 0.80, method="ogd"))
    assert clean == {"sgd": "", "ogd": "best"}


def test_a_method_that_learnt_nothing_is_not_the_best_at_forgetting():
    found = marks(
        runs("sgd", 0.60),
        runs("ogd", 0.80, method="ogd"),
        runs("ewc", UNTRAINED, method="ewc", learnt=UNTRAINED),
    )
    assert found == {"sgd": "", "ogd": "best", "ewc": ""}


def test_nothing_is_marked_where_all_tie_or_seeds_are_few():
    shaken = [runs("sgd", 0.60, wobble=0.1), runs("ogd", 0.61, method="ogd", wobble=-0.1)]
    assert set(marks(*shaken).values()) == {""}
    assert set(
        marks(runs("sgd", 0.60, seeds=(1,)), runs("ogd", 0.80, method="ogd", seeds=(1,))).values()
    ) == {""}
    latex = make_table([pair for some in shaken for pair in some]).render("latex")
    assert "textbf" not in latex
    assert "dagger" not in latex


def test_latex_makes_one_bold_and_its_ties_daggers():
    three = [
        *runs("sgd", 0.60),
        *runs("ogd", 0.80, method="ogd", wobble=0.05),
        *runs("ogd+", 0.81, method="ogd+", wobble=-0.05),
    ]
    table = make_table(three, ["aac"])
    assert [row.marks[0] for row in table.rows] == ["", "tie", "best"]
    latex = table.render("latex")
    assert (latex.count(r"\textbf"), latex.count(r"$^\dagger$")) == (1, 1)


# ---- price -----------------------------------------------------------------------------------------------------


def test_a_price_is_said_of_processor_time():
    text = headline(
        runs("sgd", 0.60, seconds={"processor": 2.0}),
        runs("ogd", 0.80, method="ogd", seconds={"processor": 5.0}),
    )
    assert "for 2.5x the processor time of a step" in text


@pytest.mark.parametrize(
    "circumstances",
    [
        {"seconds": {"train": 90.0, "evaluate": 30.0, "total": 120.0}},
        {"seconds": {"processor": 0.2}},
        {"provenance": {"together": 3}},
        {"provenance": {"resumes": 2}},
        {"provenance": {"machine": {"cpus": 64}}},
    ],
    ids=["only the clock on the wall", "a moment", "seeds together", "resumed", "another machine"],
)
def test_there_is_no_price_otherwise(circumstances):
    pairs = [*runs("sgd", 0.60), *runs("ogd", 0.80, method="ogd", **circumstances)]
    assert "the processor time" not in headline(pairs)
    values = page_of(pairs)
    assert all("times" not in group for group in values["groups"] if group["method"] == "ogd")


def test_no_column_of_the_clock_on_the_wall_stands_beside_a_price():
    pairs = [*runs("sgd", 0.60), *runs("ogd", 0.80, method="ogd")]
    assert "Time" not in make_table(pairs).titles()
    shown = {metric["name"]: metric["shown"] for metric in page_of(pairs)["metrics"]}
    assert (shown["aac"], shown["seconds"]) == (True, False)


# ---- runs that failed, and records that are one run -------------------------------------------------------------


@pytest.fixture
def store_with_failures(tmp_path) -> Store:
    """Three good runs of SGD, two of EWC that diverged."""
    store = Store(tmp_path / "store")
    for _, record in runs("sgd", 0.60):
        store.write_record(record)
    for settings, record in runs("ewc", 0.60, method="ewc", seeds=(1, 2), hidden=200):
        store.folder(record.id).mkdir(parents=True)
        store.begin(record.id, settings, {"threads": 1})
        failure = {"reason": f"the loss became inf, seed {settings.seed}", "expected": True, "diverged": True}
        store.write_failure(record.id, failure)
    return store


def test_failed_runs_are_on_the_page_and_in_the_counts(store_with_failures, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    out = tmp_path / "page.html"
    assert call(["report", "--store", str(store_with_failures.directory), "--out", str(out)]) == 0
    assert "3 runs finished, 2 failed, to" in capsys.readouterr().err
    page = out.read_text()
    assert "3 runs finished, 2 failed" in page
    assert "the loss became inf, seed 2" in page
    assert "hidden=200" in page
    assert call(["runs", "doctor", "--store", str(store_with_failures.directory)]) == 0
    captured = capsys.readouterr()
    assert "3 good records, 2 failed runs, 0 damaged files" in captured.err
    assert "ewc / seed 1" in captured.out
    assert call(["runs", "doctor", "--store", str(store_with_failures.directory), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["failed"]) == 2


def test_failed_runs_are_chosen_like_others_and_gone_once_they_succeed(store_with_failures):
    assert [one.settings.seed for one in failed_runs(store_with_failures, seeds=[2])] == [2]
    assert failed_runs(store_with_failures, only=["sgd"]) == []
    store_with_failures.write_record(runs("ewc", 0.60, method="ewc", seeds=(1,), hidden=200)[0][1])
    assert [one.settings.seed for one in failed_runs(store_with_failures)] == [2]


def test_without_failures_none_are_spoken_of():
    page = render_report(runs("sgd", 0.60), title="t")
    assert "3 runs finished" in page
    assert "failed" not in page.partition("</header>")[0]


def test_what_is_written_down_does_not_make_another_row():
    """Two seeds were run twice, once with curves: they are two seeds, not four, and one method."""
    often = runs("sgd", 0.62, seeds=(1, 2), train={"evaluate_every": 5})
    pairs = [*often, *runs("sgd", 0.60), *runs("ogd", 0.80, method="ogd")]
    (sgd, ogd) = group_runs(pairs)
    assert (sgd.label, ogd.label) == ("sgd", "ogd")
    assert [record.settings.seed for record in sgd.records] == [1, 2, 3]
    assert make_table(pairs, ["aac"]).rows[0].cells[0].mean == pytest.approx(0.60, abs=0.002)
    assert [record.settings.train.evaluate_every for record in sgd.with_curves] == [5, 5]
    assert len(make_figure("curves", pairs).axes) == 1
    assert "20.0 points above plain SGD" in headline(pairs)


def test_methods_of_ones_own_do_not_look_like_others():
    built_in = {colour for colour, _ in METHODS.values()}
    for name in ("decay", "leash", "my-method", "x", "ogd-mine", "own"):
        assert method_style(name)[0] not in built_in
    assert method_style("ogd memory_per_task=5") == METHODS["ogd"]
