from __future__ import annotations

import re
from pathlib import Path

import pytest

from orthocl.errors import SettingsError
from orthocl.lab import load_experiment, make_experiment
from orthocl.lab.experiment.file import read_file

LAYERED = """
seeds = [1, 2]
net.hidden = [10]
[train]
epochs = 1
learning_rate = 0.1
batch_size = 7
[method]
memory_per_task = 11
[stream]
tasks = 2
step = 3.0
[streams.rotated-mnist-mini]
train.epochs = 2
train.batch_size = 8
[streams.split]
stream = "split-mnist-mini"
net = { name = "lenet", hidden = 30 }
[streams.split.methods.ewc]
strength = 4.0
train.epochs = 4
[methods.ewc]
strength = 3.0
train.epochs = 3
[methods.small]
method = "ogd"
memory_per_task = 5
"""


def write(tmp_path: Path, text: str, name: str = "file.toml") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def by_pair(experiment):
    return {(run.stream_label, run.method_label, run.seed): run.resolved() for run in experiment.runs}


def test_the_most_specific_setting_wins(tmp_path):
    runs = by_pair(load_experiment(write(tmp_path, LAYERED)))
    assert len(runs) == 8
    plain, pair = runs["rotated-mnist-mini", "ewc", 1], runs["split", "ewc", 2]
    assert (plain.train.epochs, plain.train.batch_size, plain.train.learning_rate) == (3, 8, 0.1)
    assert (pair.train.epochs, pair.train.batch_size, pair.method.settings["strength"]) == (4, 7, 4.0)
    assert plain.method.settings["strength"] == 3.0
    small = runs["rotated-mnist-mini", "small", 1]
    assert (small.method.name, small.method.settings["memory_per_task"], small.train.epochs) == ("ogd", 5, 2)
    assert (plain.stream.tasks, plain.stream.options["step"]) == (2, 3.0)
    assert pair.stream.name == "split-mnist-mini"
    assert pair.net.name == "lenet"
    assert pair.net.settings["hidden"] == 30
    assert plain.net.settings["hidden"] == [10]


def test_command_line_has_the_last_word(tmp_path):
    path = write(tmp_path, LAYERED)
    experiment = load_experiment(
        path, only=["split/ewc"], seeds=[7], overrides=["train.epochs=9", "method.strength=8.5"]
    )
    (run,) = experiment.runs
    assert (run.seed, run.train.epochs, run.method.settings["strength"]) == (7, 9, 8.5)


def test_overrides_reach_only_methods_that_know_them(tmp_path):
    runs = by_pair(load_experiment(write(tmp_path, LAYERED), overrides={"method.memory_per_task": 3}))
    assert runs["split", "small", 1].method.settings["memory_per_task"] == 3
    assert "memory_per_task" not in runs["split", "ewc", 1].method.settings


def test_grids_make_all_combinations():
    content = {
        "streams": ["rotated-mnist-mini"],
        "methods": {"sgd": {}, "ewc": {"grid": {"method": {"strength": [1.0, 2.0]}}}},
        "grid": {"train": {"learning_rate": [0.1, 0.2]}, "net": {"hidden": [[5], [6, 7]]}},
    }
    runs = make_experiment(content).runs
    assert len(runs) == 2 * 2 + 2 * 2 * 2
    assert len(set(runs)) == len(runs)
    assert "ewc learning_rate=0.1 hidden=6x7 strength=2" in {run.method_label for run in runs}


def test_a_shared_grid_leaves_out_methods_without_the_setting():
    content = {
        "streams": ["rotated-mnist-mini"],
        "methods": ["sgd", "ogd"],
        "grid": {"method": {"memory_per_task": [5, 6]}, "stream": {"tasks": [2, 3]}},
    }
    labels = [(run.stream_label, run.method_label) for run in make_experiment(content).runs]
    assert len(labels) == 2 * 3
    assert ("rotated-mnist-mini tasks=3", "sgd") in labels


def test_includes_are_merged_and_lists_select(tmp_path):
    write(tmp_path, LAYERED, "lower.toml")
    path = write(tmp_path, 'include = "lower.toml"\nseeds = [5]\nmethods = ["ewc"]\n[train]\nepochs = 6\n')
    runs = by_pair(load_experiment(path))
    assert set(runs) == {("rotated-mnist-mini", "ewc", 5), ("split", "ewc", 5)}
    assert runs["split", "ewc", 5].method.settings["strength"] == 4.0
    assert read_file(path)["train"]["epochs"] == 6


def test_tables_above_a_list_add_to_it(tmp_path):
    write(tmp_path, 'streams = ["rotated-mnist-mini"]\nmethods = ["sgd"]\n', "lower.toml")
    path = write(tmp_path, 'include = ["lower.toml"]\n[methods.ewc]\nstrength = 2.0\n')
    assert [run.method_label for run in load_experiment(path).runs] == ["sgd", "ewc"]


def test_circular_includes_are_refused(tmp_path):
    write(tmp_path, 'include = ["two.toml"]', "one.toml")
    write(tmp_path, 'include = ["one.toml"]', "two.toml")
    with pytest.raises(SettingsError, match="includes itself"):
        load_experiment(tmp_path / "one.toml")


def test_only_takes_patterns_and_pairs(tmp_path):
    path = write(tmp_path, LAYERED)

    def labels(*only):
        return {(r.stream_label, r.method_label) for r in load_experiment(path, only=only).runs}

    assert labels("split") == {("split", "ewc"), ("split", "small")}
    assert labels("s*/e*") == {("split", "ewc")}
    assert labels("split", "small") == {("split", "ewc"), ("split", "small"), ("rotated-mnist-mini", "small")}
    with pytest.raises(SettingsError, match="did you mean 'split'"):
        labels("spilt")


def test_only_takes_a_grid_by_the_name_of_its_method_and_errors_do_not_list_its_points():
    file = Path(__file__).parents[3] / "experiments" / "search_mnist.toml"
    for only, points in {
        "rotated-mnist/stable-sgd": 270,
        "stable-sgd": 810,
        "split-mnist/ewc strength=10": 1,
    }.items():
        assert len(load_experiment(file, only=[only]).runs) == points
    with pytest.raises(SettingsError) as caught:
        load_experiment(file, only=["rotated-mnist/stabel-sgd"])
    assert str(caught.value).endswith(
        "choices are: ewc, mas, permuted-mnist, rotated-mnist, si, split-mnist, stable-sgd"
    )


def test_only_in_the_file_and_on_the_command_line(tmp_path):
    path = write(tmp_path, 'only = ["split", "*/ewc"]\n' + LAYERED)
    labels = {(r.stream_label, r.method_label) for r in load_experiment(path, only=["ewc"]).runs}
    assert labels == {("split", "ewc"), ("rotated-mnist-mini", "ewc")}
    with pytest.raises(SettingsError, match="list of patterns"):
        load_experiment(write(tmp_path, 'only = "split"\n' + LAYERED))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sedes = [1]", "did you mean 'seeds'"),
        ("[trian]\nepochs = 1", "did you mean 'train'"),
        ("[train]\nepoch = 1", "did you mean 'epochs'"),
        ("[stream]\ntask = 1", "did you mean 'tasks'"),
        ("[streams.rotated-mnist-mini]\nsteps = 1", "did you mean 'step'"),
        ("[methods.ewc]\nstrenght = 1.0", "did you mean 'strength'"),
        ("[method]\nmemory_per_tsk = 1", "hyperparameter of any method"),
        ("[streams.rotated-mnist-mini.methods.ecw]\nstrength = 1.0", "did you mean 'ewc'"),
        ("[methods.ewcc]", "did you mean 'ewc'"),
        ("[grid]\ntrain.epochs = 3", "needs a list of values"),
        ("[grid]\ntrian.epochs = [3]", "did you mean 'train'"),
        ("seeds = []", "seeds must be a list of integers"),
        ("seeds = [1.5]", "seeds must be a list of integers"),
        ("seeds = [", "is not TOML"),
        ("train = 3", "must be a table"),
    ],
)
def test_mistakes_are_named_with_the_nearest_key(tmp_path, text, words):
    write(tmp_path, "[streams.rotated-mnist-mini]\n[methods.ewc]\n", "lower.toml")
    path = write(tmp_path, f'include = ["lower.toml"]\n{text}\n')
    with pytest.raises(SettingsError, match=words):
        load_experiment(path)


@pytest.mark.parametrize("text", ["epochs=1", "train.epochs", "tarin.epochs=1", "train.=1"])
def test_bad_overrides_are_refused(tmp_path, text):
    with pytest.raises(SettingsError):
        load_experiment(write(tmp_path, LAYERED), overrides=[text])


def test_missing_file_and_empty_experiment(tmp_path):
    with pytest.raises(SettingsError, match="cannot read"):
        load_experiment(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="at least one name in `streams`"):
        load_experiment(write(tmp_path, 'methods = ["sgd"]'))


SHIPPED = sorted((Path(__file__).parents[3] / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_experiments_load(path):
    experiment = load_experiment(path)
    assert experiment.runs
    assert experiment.description


def test_the_file_of_the_guide_says_what_the_guide_says(tmp_path):
    guide = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()
    file = tmp_path / "small.toml"
    file.write_text(re.search(r"```toml\n(.*?)```", guide, re.DOTALL)[1])
    runs = load_experiment(file, overrides=["train.batch_size=7"]).runs
    assert len(runs) == 3 * (1 + 2 + 1)
    ewc = [run for run in runs if run.method.name == "ewc"]
    assert {run.method.settings["strength"] for run in ewc} == {1.0, 10.0}
    assert {run.method.settings["fisher_samples"] for run in ewc} == {128}
    assert {(run.train.epochs, run.train.batch_size) for run in runs} == {(3, 7)}
    assert {run.train.learning_rate for run in ewc} == {0.01}
    assert len(load_experiment(file, only=["turned/ogd*"], seeds=[1]).runs) == 1
