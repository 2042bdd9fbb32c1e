"""Searches against the obvious: make every run, sort, look."""

from __future__ import annotations

import copy
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from orthocl.cli.app import call
from orthocl.errors import DataError, SettingsError
from orthocl.lab.experiment.experiment import Experiment, load_experiment, make_experiment
from orthocl.lab.laboratory import Results, run_experiment
from orthocl.lab.reporting.figure import save_figure
from orthocl.lab.run.execute import RunOptions, execute
from orthocl.lab.search.search import (
    SearchResult,
    SearchSettings,
    find_groups,
    run_search,
    score_after,
    toml_text,
)
from orthocl.lab.search.sensitivity import sensitivity_figure
from orthocl.lab.store.store import Store

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
RATES = [1e-3, 1e-2, 1e-1, 1e30]
STRENGTHS = [0.01, 1.0]
CONTENT: dict[str, Any] = {
    "name": "tiny",
    "seeds": [0],
    "streams": {"turned": {"stream": "rotated-mnist-mini", "step": 25.0, "tasks": 3}},
    "methods": {
        "ewc": {"grid": {"method": {"strength": STRENGTHS}, "train": {"learning_rate": RATES}}},
    },
    "stream": {"train_size": 120, "test_size": 60},
    "train": {"epochs": 2, "batch_size": 10},
    "net": {"name": "mlp", "hidden": [12]},
}


@pytest.mark.parametrize(
    "name",
    [
        "../../../evil",
        "/any/where",
        "a/b",
        "a\\b",
        "..",
        ".hidden",
        "",
        "  ",
        "a\0b",
        "a\nb",
        "x" * 300,
        "ü" * 150,
    ],
)
def test_a_name_that_is_no_file_name_is_refused_before_any_training(tmp_path, name, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {**CONTENT, "name": name}
    with pytest.raises(SettingsError, match="the name of a search is that of a file"):
        run_search(make_experiment(content), Store(tmp_path / "s"), make=lambda *_: pytest.fail("trained"))
    (tmp_path / "x.toml").write_text(
        f"name = {json.dumps(name, ensure_ascii=True)}\n"
        'streams = ["rotated-mnist-mini"]\nmethods = ["ewc"]\ngrid.method.strength = [1.0, 2.0]\n'
    )
    assert call(["search", "x.toml", "--dry-run"]) == 2
    assert "name of a search" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def make(store: Store) -> Any:
    """Makes runs in this process."""

    def work(part: Experiment, options: RunOptions) -> Results:
        return run_experiment(part, store, jobs=0, options=options, on_event=lambda event: None)

    return work


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Store]:
    """A search of all points, without cutting."""
    store = Store(tmp_path_factory.mktemp("whole"))
    return run_search(make_experiment(CONTENT), store, make=make(store)), store


def test_the_best_point_is_the_best_of_all_runs_made_one_by_one(whole, tmp_path: Path) -> None:
    result, _ = whole
    (group,) = result.groups
    assert (group.stream, group.method) == ("turned", "ewc")
    assert group.axes == {"method.strength": STRENGTHS, "train.learning_rate": RATES}
    scores = {}
    for run in make_experiment(CONTENT).runs:
        if run.train.learning_rate < 1:
            point = (run.method.settings["strength"], run.train.learning_rate)
            scores[point] = execute(run, Store(tmp_path)).metric("aac")
    best = result.best(group)
    assert best.score == max(scores.values())
    assert (best.point["method.strength"], best.point["train.learning_rate"]) == max(scores, key=scores.get)
    for trial in group.trials:
        if trial.point["train.learning_rate"] < 1:
            assert trial.status == "finished"
            assert trial.score == scores[tuple(trial.point.values())]
        else:
            assert trial.status == "failed"
            assert "smaller learning rate" in trial.reason


def test_cutting_keeps_the_better_half_and_changes_no_run(whole, tmp_path: Path) -> None:
    full, all_runs = whole
    store = Store(tmp_path)
    settings = SearchSettings(after=(1, 2), keep=0.5)
    result = run_search(make_experiment(CONTENT), store, settings=settings, make=make(store))
    (group,) = result.groups

    # the obvious: from the complete runs, the accuracies on the first tasks after those tasks
    left = list(range(8))
    cut: dict[int, int] = {}
    for tasks in (1, 2):
        early = {}
        for number in left:
            record = all_runs.record(full.groups[0].trials[number].ids[0])
            row = record.result.accuracies[tasks][:tasks] if record else None
            early[number] = sum(row) / tasks if row else -math.inf
        last = sorted(early.values(), reverse=True)[(len(left) + 1) // 2 - 1]
        kept = [number for number in left if early[number] >= last and early[number] > -math.inf]
        cut |= {number: tasks for number in left if number not in kept}
        left = kept
    assert {n: t.cut_after for n, t in enumerate(group.trials) if t.status == "cut"} == {
        n: after for n, after in cut.items() if group.trials[n].status == "cut"
    }
    assert [n for n, trial in enumerate(group.trials) if trial.status == "finished"] == left
    assert all(trial.status in ("cut", "failed") for n, trial in enumerate(group.trials) if n not in left)
    assert {trial.status for trial in group.trials} >= {"cut", "finished"}
    for number in left:
        run = group.trials[number].ids[0]
        assert store.record(run).result_hash == all_runs.record(run).result_hash
    for trial in group.trials:
        if trial.status == "cut":
            assert store.record(trial.ids[0]) is None
            assert store.checkpoint(trial.ids[0]).exists() == (not math.isnan(trial.early[trial.cut_after]))
    written = json.loads((tmp_path / "searches" / "tiny.json").read_text())
    assert [t["cut_after"] for t in written["groups"][0]["trials"]] == [t.cut_after for t in group.trials]
    assert written["search"]["after"] == [1, 2]


def test_equal_scores_at_the_cut_are_all_kept_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "ties.toml").write_text(
        'seeds = [0]\nstreams = ["rotated-mnist-mini"]\n'
        "[stream]\ntasks = 2\ntrain_size = 60\ntest_size = 40\n[train]\nepochs = 1\nbatch_size = 10\n"
        "[net]\nhidden = [8]\n[methods.ewc.grid]\nmethod.strength = [1.0, 2.0, 4.0]\n"
        "[search]\nafter = 1\nkeep = 0.3\n"
    )
    store = tmp_path / "store"
    assert call(["search", str(tmp_path / "ties.toml"), "--store", str(store), "--jobs", "0"]) == 0
    captured = capsys.readouterr()
    assert "after 1 task 3 of 3 were kept, more than the share of 0.3: 3 tie at the cut, 0." in captured.out
    assert "method.strength = 1.0; method.strength = 2.0; method.strength = 4.0" in captured.out
    assert "0 of 3 runs" not in captured.err, "runs that are paused at a cut count as made"
    assert "paused rotated-mnist-mini" in captured.err
    written = json.loads((store / "searches" / "ties.json").read_text())
    assert [trial["tied_after"] for trial in written["groups"][0]["trials"]] == [[1], [1], [1]]


def test_equal_scores_that_decide_nothing_are_not_mentioned(whole, tmp_path: Path) -> None:
    _, all_runs = whole
    result = run_search(
        make_experiment(CONTENT), all_runs, settings=SearchSettings(after=(1,), keep=0.5), make=make(all_runs)
    )
    (group,) = result.groups
    kept = [trial for trial in group.trials if trial.cut_after is None]
    # after one task the two strengths of each rate tie: four of eight are two whole pairs, so none was kept by a tie
    assert len(kept) == 4
    assert not any(trial.tied_after for trial in group.trials)


def test_several_best_are_named(whole) -> None:
    result, _ = whole
    group = copy.deepcopy(result.groups[0])
    best = result.best(group)
    assert result.bests(group) == [best]
    other = next(trial for trial in group.trials if trial.status == "finished" and trial is not best)
    other.score = best.score
    equals = SearchResult(result.name, result.settings, [group])
    assert equals.bests(group) == [trial for trial in group.trials if trial in (best, other)]
    assert "1 more equally good, the first was taken" in equals.to_toml()
    assert "equally good" not in result.to_toml()


def test_an_interrupted_search_goes_on_and_makes_nothing_twice(tmp_path: Path) -> None:
    content = {**CONTENT, "methods": {"ewc": {"grid": {"train": {"learning_rate": [1e-3, 1e-2, 1e-1]}}}}}
    settings = SearchSettings(after=(1,))
    calm = Store(tmp_path / "calm")
    wanted = run_search(make_experiment(content), calm, settings=settings, make=make(calm))

    store, calls = Store(tmp_path / "store"), []

    def interrupted(part: Experiment, options: RunOptions) -> Results:
        calls.append((options.pause_after, len(part.runs)))
        if len(calls) == 2:
            make(store)(Experiment(part.name, part.runs[:1]), options)
            raise KeyboardInterrupt
        return make(store)(part, options)

    with pytest.raises(KeyboardInterrupt):
        run_search(make_experiment(content), store, settings=settings, make=interrupted)
    result = run_search(make_experiment(content), store, settings=settings, make=interrupted)
    # all three for a task; the two that are left, one of which is done when the interruption comes; then the other
    assert calls == [(1, 3), (None, 2), (None, 1)]
    assert result.to_json() == wanted.to_json()


def test_the_summary_pasted_into_an_experiment_gives_the_best_run(whole, tmp_path: Path) -> None:
    result, _ = whole
    best = result.best(result.groups[0])
    plain = {**CONTENT, "methods": {"ewc": {}}}
    pasted = tomllib.loads(result.to_toml())
    (run,) = make_experiment(plain | {"streams": _merged(plain["streams"], pasted["streams"])}).runs
    assert run == best.runs[0]

    (tmp_path / "best.toml").write_text(result.to_toml())
    (tmp_path / "mine.toml").write_text(
        'include = ["best.toml"]\nseeds = [0]\nstream.train_size = 120\nstream.test_size = 60\n'
        'train = {epochs = 2, batch_size = 10}\nnet = {name = "mlp", hidden = [12]}\n'
        '[streams.turned]\nstream = "rotated-mnist-mini"\nstep = 25.0\ntasks = 3\n[methods.ewc]\n'
    )
    assert load_experiment(tmp_path / "mine.toml").runs[0] == best.runs[0]


def _merged(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    return {key: {**lower[key], **upper.get(key, {})} for key in lower}


def test_values_survive_toml() -> None:
    for value in (1e-5, 10, True, 'a "quoted" name', [1, [2.5, 3e30]], -0.5):
        assert tomllib.loads(f"value = {toml_text(value)}")["value"] == value
    with pytest.raises(SettingsError, match="leave it out"):
        toml_text(None)


def test_the_score_after_some_tasks_is_the_same_from_the_record_and_from_a_paused_run(
    whole, tmp_path: Path
) -> None:
    result, all_runs = whole
    trial = result.groups[0].trials[1]
    store = Store(tmp_path)
    make(store)(Experiment("one", tuple(trial.runs)), RunOptions(pause_after=2))
    run = trial.ids[0]
    assert store.record(run) is None
    for metric in ("aac", "bwt", "fwt", "forgetting"):
        paused = score_after(run, store, metric, 2)
        assert paused == score_after(run, all_runs, metric, 2)
        assert math.isfinite(paused)
    assert math.isnan(score_after(run, store, "aac", 3))


def test_a_metric_that_should_be_small_is_minimised(whole, tmp_path: Path) -> None:
    _, store = whole
    result = run_search(
        make_experiment(CONTENT), store, settings=SearchSettings(metric="forgetting"), make=make(store)
    )
    scores = [trial.score for trial in result.groups[0].trials if trial.status == "finished"]
    assert result.best(result.groups[0]).score == min(scores) < max(scores)


def test_points_drawn_at_random_are_the_same_every_time_and_part_of_the_grid() -> None:
    experiment = make_experiment(CONTENT)
    every = [trial.point for trial in find_groups(experiment, SearchSettings())[0].trials]
    drawn = [
        [trial.point for trial in find_groups(experiment, SearchSettings(samples=3))[0].trials]
        for _ in (1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 3
    assert all(point in every for point in drawn[0])


def test_several_seeds_are_averaged(tmp_path: Path) -> None:
    content = {**CONTENT, "seeds": [0, 1], "methods": {"sgd": {"grid": {"train": {"learning_rate": [1e-2]}}}}}
    store = Store(tmp_path)
    result = run_search(make_experiment(content), store, make=make(store))
    (trial,) = result.groups[0].trials
    assert trial.score == sum(store.record(run).metric("aac") for run in trial.ids) / 2


def test_the_sensitivity_plot_is_drawn_in_every_format(whole, tmp_path: Path) -> None:
    result, _ = whole
    figure = sensitivity_figure(result)
    assert len(figure.axes) == 2
    line = next(line for line in figure.axes[1].lines if line.get_label() == "best")
    finished = [trial for trial in result.groups[0].trials if trial.status == "finished"]
    highest = [
        100 * max(trial.score for trial in finished if trial.point["train.learning_rate"] == rate)
        for rate in RATES[:3]
    ]
    assert list(line.get_ydata()) == pytest.approx(highest)
    for suffix in ("svg", "pdf", "png"):
        assert save_figure(figure, tmp_path / f"plot.{suffix}").stat().st_size > 1000
    assert "train.learning_rate" in (tmp_path / "plot.svg").read_text()
    with pytest.raises(DataError, match="no candidate with a score"):
        sensitivity_figure(SearchResult("empty", SearchSettings(), []))


def test_the_command_finds_the_best_and_writes_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.toml").write_text(
        'seeds = [0]\nstreams = ["rotated-mnist-mini"]\n'
        "[stream]\ntasks = 2\ntrain_size = 60\ntest_size = 40\n[train]\nepochs = 2\nbatch_size = 10\n"
        "[net]\nhidden = [8]\n[methods.sgd.grid]\ntrain.learning_rate = [1e-3, 1e-1]\n"
        "[search]\nafter = 1\n"
    )
    command = ["search", str(tmp_path / "small.toml"), "--store", str(tmp_path / "store")]
    assert call([*command, "--dry-run"]) == 0
    assert "2 runs, cut after 1 task." in capsys.readouterr().out
    assert call([*command, "--plot", str(tmp_path / "plot.gif")]) == 2, "before the work"
    assert not (tmp_path / "store").exists()
    best, plot = tmp_path / "new" / "best.toml", tmp_path / "newer" / "plot.svg"
    files = ["--best", str(best), "--plot", str(plot)]
    assert call([*command, *files, "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "1 cut" in shown
    pair = tomllib.loads(best.read_text())["streams"]["rotated-mnist-mini"]["methods"]["sgd"]
    assert pair["train"]["learning_rate"] in (1e-3, 1e-1)
    assert "<svg" in plot.read_text()
    assert call([*command, "--keep", "2"]) == 2
    assert "`keep` must be between 0 and 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"metrik": "aac"}, "did you mean 'metric'"),
        ({"metric": "acc"}, "did you mean 'aac'"),
        ({"after": [0]}, "numbers of tasks"),
        ({"keep": 1.5}, "between 0 and 1"),
        ({"keep": "half"}, "wrong kind"),
        ({"samples": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_searched_is_said(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SearchSettings.from_table(table)


# ---- the grids of the paper, copied here from its appendix by hand ----------------------------------------------

COEFFICIENTS = [0.1, 1, 10, 100, 1000, 10000]
GAMMA, DROPOUT = [0.5, 0.6, 0.7, 0.8, 0.9], [0, 0.1, 0.2, 0.3, 0.4, 0.5]
SMALL_RATES, SIZES = [0.00001, 0.001, 0.01, 0.1], [32, 64, 256]


@pytest.mark.parametrize("name", ["mnist", "cifar100", "cub200"])
def test_the_grids_are_the_papers(name: str) -> None:
    experiment = load_experiment(EXPERIMENTS / f"search_{name}.toml")
    found: dict[tuple[str, str], set[tuple[Any, ...]]] = {}
    for run in experiment.runs:
        resolved = run.resolved()
        method, train = resolved.method.settings, resolved.train
        if resolved.method.name == "stable-sgd":
            point = (
                method["decay"],
                train.learning_rate,
                method["batch_size"],
                method["dropout"],
                train.epochs,
            )
        elif "strength" in method:
            point = (method["strength"], train.learning_rate, train.batch_size, train.epochs)
        else:
            point = (train.learning_rate, train.batch_size, train.epochs)
        found.setdefault((resolved.stream.name, resolved.method.name), set()).add(point)
        assert run.seed == (0 if name == "mnist" else 1)
    wanted: dict[tuple[str, str], set[tuple[Any, ...]]] = {}
    if name == "mnist":
        for stream in ("permuted-mnist", "rotated-mnist", "split-mnist"):
            for method in ("ewc", "si", "mas"):
                wanted[stream, method] = {(c, 1e-3, 32, 5) for c in COEFFICIENTS}
            wanted[stream, "stable-sgd"] = set(
                itertools.product(GAMMA, [0.01, 0.1, 0.25], [10, 32, 64], DROPOUT, [1])
            )
    else:
        stream, epochs = {"cifar100": ("split-cifar100", 50), "cub200": ("cub200", 75)}[name]
        for method in ("ewc", "si", "mas"):
            wanted[stream, method] = set(itertools.product(COEFFICIENTS, SMALL_RATES, SIZES, [epochs]))
        for method in ("sgd", "ogd", "ogd+"):
            wanted[stream, method] = set(itertools.product(SMALL_RATES, SIZES, [1, 20, 50]))
        wanted[stream, "stable-sgd"] = set(
            itertools.product(GAMMA, [0.001, 0.01, 0.1], [10, 64], DROPOUT, [1, 10, 50])
        )
    assert found == wanted
