"""Experiment files. Every row: the content, and words that the answer must contain. The exit code is always 2."""

from __future__ import annotations

import os

import pytest

BOTH = 'streams = ["rotated-mnist-mini"]\nmethods = ["sgd"]\n'
STREAMS = 'streams = ["rotated-mnist-mini"]\n'
METHODS = 'methods = ["sgd"]\n'
ADDED: list[tuple[str, list[str]]] = [
    ("method = 5", ["[method] must be a table, got 5"]),
    ("grid = 5", ["[grid] must be a table"]),
    ("grid = [1]", ["[grid] must be a table"]),
    ("[grid]\nmethod = 5", ["[method] must be a table"]),
    ("[grid]\nmethod.x = 5", ["unknown hyperparameter of any method 'x'"]),
    ("[grid]\ntrain.epochs = 5", ["train.epochs needs a list of values, got 5"]),
    ("[grid]\ntrain.epochs = []", ["train.epochs needs a list of values"]),
    ("[grid]\ntrain = 5", ["needs a name after the first part"]),
    ("[grid]\nzzz.epochs = [1]", ["unknown first part of grid setting"]),
    ("table = 5", ["[table] must be a table"]),
    ("table.metrics = 5", ["`table.metrics` must be a list of names"]),
    ("table.metrics = [5]", ["`table.metrics` must be a list of names"]),
    ('table.metrics = "aac"', ["`table.metrics` must be a list of names"]),
    ('table.metrics = ["accc"]', ["did you mean 'aac'?"]),
    ("table.zzz = 1", ["unknown key of [table] 'zzz'"]),
    ("include = 5", ["`include` must be a list of files, got 5"]),
    ("include = [5]", ["`include` must be a list of files, got [5]"]),
    ('include = "nofile.toml"', ["cannot read experiment", "nofile.toml"]),
    ('include = "given.toml"', ["includes itself"]),
    ("selected = 5", ["unknown key of an experiment 'selected'"]),
    ('selected.methods = ["x"]', ["unknown key of an experiment 'selected'"]),
    ("search = 5", ["[search] must be a table"]),
    ("stream.step = 2020-01-01", ["step of stream", "must be float"]),
    ("net.hidden = 2020-01-01", ["hidden must be a list of int"]),
    ("train.epochs = " + "9" * 5000, ["is not TOML", "digits"]),
    ("net.hidden = " + "[" * 5000 + "]" * 5000, ["is not TOML"]),
    ("seeds = []", ["seeds must be a list of integers"]),
    ("seeds = 5", ["seeds must be a list of integers"]),
    ("seeds = [1.5]", ["seeds must be a list of integers"]),
    ('seeds = ["a"]', ["seeds must be a list of integers"]),
    ("seeds = [true]", ["seeds must be a list of integers"]),
    ("name = 5", ["`name` must be a text, got 5"]),
    ("name = [1]", ["`name` must be a text"]),
    ("description = 5", ["`description` must be a text"]),
    ('only = "x"', ["`only` must be a list of patterns"]),
    ("only = [5]", ["`only` must be a list of patterns"]),
    ('only = ["zzz"]', ["unknown stream or method 'zzz'"]),
    ("zzz = 1", ["unknown key of an experiment 'zzz'"]),
    ("trian.epochs = 1", ["did you mean 'train'?"]),
    ("train = 5", ["[train] must be a table"]),
    ('train = "x"', ["[train] must be a table"]),
    ("net = 5", ["[net] must be a table"]),
    ("net.name = 5", ["net setting name must be str"]),
    ('net = "mlp"', ["[net] must be a table"]),
    ("net.hidden = [0]", ["each of hidden must be at least 1"]),
    ("stream = 5", ["[stream] must be a table"]),
    ("stream.zzz = 1", ["unknown key of [stream] 'zzz'"]),
    ("stream.tasks = 1000000000", ["1,000,000,000 tasks", "--yes"]),
    ("train.epochs = nan", ["epochs must be int, got nan"]),
    ("train.learning_rate = inf", ["learning_rate", "finite"]),
    ("stream.step = nan", ["step of stream", "finite"]),
    ('train.loss = "x.py:f"', ["cannot read", "x.py"]),
    (
        "seeds = [" + ", ".join(map(str, range(2000))) + "]\n[grid]\ntrain.epochs = [" + "1, " * 100 + "]",
        ["200,000 runs", "--yes"],
    ),
    (
        "[grid]\n"
        + "".join(
            f"train.{key} = [{'0.1, ' * 61}]\n" for key in ("learning_rate", "momentum", "weight_decay")
        ),
        ["226,981 points", "--yes"],
    ),
]
WHOLE: list[tuple[str, list[str]]] = [
    ("streams = 5\n" + METHODS, ["`streams` must be a list of names or a table of tables"]),
    (STREAMS + "methods = 5", ["`methods` must be a list of names or a table of tables"]),
    ("streams = [5]\n" + METHODS, ["`streams` must be a list of names, got 5"]),
    (STREAMS + "methods = [5]", ["`methods` must be a list of names, got 5"]),
    ("streams = []\n" + METHODS, ["at least one name in `streams`"]),
    (METHODS, ["at least one name in `streams`"]),
    (STREAMS, ["at least one name in `methods`"]),
    ('streams = "rotated-mnist-mini"\nmethods = "sgd"', ["must be a list of names"]),
    (STREAMS + "[methods]\nsgd = 5", ["[sgd] must be a table"]),
    (STREAMS + "[methods.sgd]\ngrid = 5", ["[grid] must be a table"]),
    (STREAMS + "[methods.sgd]\nmethod = 5", ["unknown method '5'"]),
    (STREAMS + '[methods.a]\nmethod = "zzz"', ["unknown method 'zzz'"]),
    (STREAMS + "[methods.sgd]\nzzz = 1", ["unknown key of [methods.sgd] 'zzz'"]),
    (
        STREAMS + 'methods = ["ogd"]\nmethod.memory_per_task = -1',
        ["memory_per_task of ogd must be at least 0"],
    ),
    (METHODS + "[streams.x]\nstream = 5", ["unknown stream '5'"]),
    (METHODS + "[streams.x]\nzzz = 1", ["unknown stream 'x'"]),
    (METHODS + "[streams.rotated-mnist-mini]\ngrid = 5", ["[grid] must be a table"]),
    (METHODS + "[streams]\nrotated-mnist-mini = 5", ["[rotated-mnist-mini] must be a table"]),
    (METHODS + "[streams.rotated-mnist-mini]\nmethods = 5", ["[methods] must be a table"]),
    (METHODS + "[streams.rotated-mnist-mini.methods]\nsgd = 5", ["[sgd] must be a table"]),
    (METHODS + "[streams.rotated-mnist-mini.methods.zzz]\n", ["unknown method in", "'zzz'"]),
    (METHODS + "[streams.x]\nfolder = 5", ["folder of stream 'folder' must be str or Path"]),
    (METHODS + '[streams.x]\nfolder = ["a"]', ["folder of stream 'folder' must be str or Path"]),
    (METHODS + '[streams.x]\nfolder = "none"', ["is not a folder"]),
    (METHODS + '[streams.x]\narrays = "none.npz"', ["no such file"]),
    (METHODS + 'streams = ["x.py:make"]', ["cannot read"]),
    (STREAMS + 'methods = ["x.py:make"]', ["cannot read"]),
    (STREAMS + 'methods = ["nomodule.sub:X"]', ["cannot be imported: No module named 'nomodule'"]),
    (STREAMS + 'methods = ["os:path"]', ["is not a class derived from orthocl.Method"]),
    ("not toml", ["is not TOML"]),
    ("", ["at least one name in `streams`"]),
    ("a = 1\na = 2", ["is not TOML"]),
]


@pytest.mark.parametrize(
    ("text", "words"), [(BOTH + text, words) for text, words in ADDED], ids=[t[:40] for t, _ in ADDED]
)
def test_one_thing_wrong(refused, tmp_path, text, words):
    (tmp_path / "given.toml").write_text(text)
    refused(["run", "given.toml", "--store", "store", "--jobs", "0"], words)


@pytest.mark.parametrize(("text", "words"), WHOLE, ids=[t[:60] for t, _ in WHOLE])
def test_wrong_shapes(refused, tmp_path, text, words):
    (tmp_path / "given.toml").write_text(text)
    refused(["run", "given.toml", "--store", "store", "--jobs", "0"], words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("search.zzz = 1", ["unknown key of [search] 'zzz'"]),
        ("search = 5", ["[search] must be a table"]),
        ("search.keep = 7.0", ["keep"]),
        ("search.after = [0]", ["after"]),
        ('search.metric = "zzz"', ["zzz"]),
    ],
)
def test_searches(refused, tmp_path, text, words):
    (tmp_path / "given.toml").write_text(BOTH + text)
    refused(["search", "given.toml", "--store", "store", "--jobs", "0"], words)


def test_links_that_lead_nowhere_pipes_and_other_encodings(refused, tmp_path):
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'\n")
    refused(["run", "loop.toml"], ["cannot read experiment"])
    refused(["run", "pipe.toml"], ["is not a file"])
    refused(["run", "latin.toml"], ["is not TOML", "utf-8"])


def test_the_mark_of_windows_editors_is_no_error(tmp_path):
    from orthocl.lab import load_experiment

    (tmp_path / "bom.toml").write_text("\ufeff" + BOTH, encoding="utf-8")
    assert len(load_experiment(tmp_path / "bom.toml").runs) == 1


def test_a_list_of_methods_goes_with_a_table_for_a_pair(tmp_path):
    from orthocl.lab import load_experiment

    text = (
        STREAMS.replace("streams", "#")
        + 'methods = ["sgd", "ewc"]\n[streams.rotated-mnist-mini.methods.ewc]\nstrength = 5.0\n'
    )
    (tmp_path / "pair.toml").write_text(text)
    runs = load_experiment(tmp_path / "pair.toml").runs
    assert [run.method.settings.get("strength") for run in runs] == [None, 5.0]
