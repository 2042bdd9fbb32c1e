"""The command line. Every row: what is typed, and words that the answer must contain. The exit code is always 2."""

from __future__ import annotations

import pytest

LONG = "x" * 300
SETTINGS: list[tuple[str, str, list[str]]] = [
    ("sgd", "train.momentum=nan", ["momentum must be a finite number, got nan"]),
    ("sgd", "train.momentum=inf", ["momentum must be a finite number, got inf"]),
    ("sgd", "train.momentum=-1", ["momentum must be a finite number, 0 or more, got -1"]),
    ("sgd", "train.momentum=abc", ["momentum must be float, got 'abc'"]),
    ("sgd", "train.weight_decay=nan", ["weight_decay", "finite"]),
    ("sgd", "train.weight_decay=inf", ["weight_decay", "finite"]),
    ("sgd", "train.weight_decay=-1", ["weight_decay", "0 or more"]),
    ("sgd", "train.learning_rate=nan", ["learning_rate", "finite"]),
    ("sgd", "train.learning_rate=0", ["learning_rate must be a positive number"]),
    ("sgd", "train.learning_rate=-1", ["learning_rate must be a positive number"]),
    ("sgd", "train.learning_rate=1e300", ["learning_rate", "below 1e38", "got 1e+300"]),
    ("sgd", "train.learning_rate=" + "9" * 400, ["learning_rate", "finite"]),
    ("sgd", "train.learning_rate=" + "9" * 5000, ["learning_rate must be float"]),
    ("sgd", "train.learning_rate=true", ["learning_rate must be float, got True"]),
    ("sgd", "train.learning_rate=" + "[" * 3000, ["learning_rate must be float"]),
    ("sgd", "train.nesterov=true", ["nesterov needs a momentum above 0"]),
    ("sgd", "train.nesterov=1", ["nesterov must be bool, got 1"]),
    ("sgd", "train.optimizer=sdg", ["did you mean 'sgd'?"]),
    ("sgd", "train.optimizer=5", ["optimizer must be 'sgd' or 'adam' or 'rmsprop'"]),
    ("sgd", "train.epochs=0", ["epochs must be at least 1"]),
    ("sgd", "train.epochs=1.5", ["epochs must be int, got 1.5"]),
    ("sgd", "train.epochs=-3", ["epochs must be at least 1"]),
    ("sgd", "train.epochs=abc", ["epochs must be int, got 'abc'"]),
    ("sgd", "train.batch_size=0", ["batch_size must be at least 1"]),
    ("sgd", "train.evaluate_every=0", ["evaluate_every must be at least 1 step"]),
    ("sgd", "train.loss=hinge", ["unknown loss 'hinge'", "cross-entropy"]),
    ("sgd", "train.loss=5", ["loss must be str, got 5"]),
    ("sgd", "train.batch_norm=no", ["the choices are: freeze, keep"]),
    ("sgd", "train.unknown=1", ["unknown train setting 'unknown'"]),
    ("sgd", "trian.epochs=1", ["did you mean 'train'?"]),
    ("sgd", "train=1", ["needs a name after the first part"]),
    ("sgd", "=1", ["unknown first part of setting"]),
    ("ogd", "memory_per_task=10", ["did you mean method.memory_per_task?"]),
    ("ogd", "epochs=10", ["did you mean train.epochs?"]),
    ("ogd", "hidden=10", ["did you mean net.hidden?"]),
    ("ogd", "step=10", ["did you mean stream.step?"]),
    ("ogd", "zzz=10", ["unknown first part of setting", "method, net, stream, train"]),
    ("sgd", "stream.step=" + "9" * 400, ["step of stream", "finite"]),
    ("sgd", "stream.angles=[" + "9" * 400 + "]", ["finite angle in degrees"]),
    ("sgd", "train.momentum=99999999999999999999", ["momentum must be at most 1"]),
    ("sgd", "train.epochs=99999999999999999999", ["epochs", "--yes"]),
    ("sgd", "train.epochs=1000001", ["1,000,001 epochs", "--yes"]),
    ("sgd", "train.batch_size=99999999999999999999", ["batch_size must be at most"]),
    ("sgd", "train.epochs", ["expected KEY=VALUE"]),
    ("sgd", "stream.step=nan", ["step of stream", "finite"]),
    ("sgd", "stream.step=inf", ["step of stream", "finite"]),
    ("sgd", "stream.step=abc", ["step of stream", "must be float"]),
    ("sgd", "stream.step=[1]", ["step of stream", "must be float"]),
    ("sgd", "stream.tasks=0", ["tasks of stream 'rotated-mnist-mini' must be at least 1"]),
    ("sgd", "stream.tasks=-1", ["must be at least 1, got -1"]),
    ("sgd", "stream.tasks=1.5", ["tasks must be int or None"]),
    ("sgd", "stream.tasks=1000000000", ["1,000,000,000 tasks", "--yes"]),
    ("sgd", "stream.train_size=0", ["train_size of stream", "at least 1"]),
    ("sgd", "stream.train_size=-5", ["train_size of stream", "at least 1"]),
    ("sgd", "stream.train_size=10000000", ["a task has 5000 samples"]),
    ("sgd", "stream.test_size=0", ["test_size of stream", "at least 1"]),
    ("sgd", "stream.resample=cubic", ["unknown resample 'cubic'", "bilinear"]),
    ("sgd", "stream.angles=[]", ["at least one finite angle"]),
    ("sgd", "stream.angles=[nan]", ["must be a list of float"]),
    ("sgd", "stream.angles=5", ["must be a list of float"]),
    ("sgd", "stream.seed=1.5", ["seed must be int"]),
    ("sgd", "stream.data=nowhere", ["unknown setting of stream"]),
    ("sgd", "stream.folder=x", ["unknown setting of stream"]),
    ("sgd", "net.hidden=5", ["hidden must be a list of int, got 5"]),
    ("sgd", "net.hidden=abc", ["hidden must be a list of int"]),
    ("sgd", "net.hidden=[1.5]", ["hidden must be a list of int"]),
    ("sgd", "net.hidden=[[1]]", ["hidden must be a list of int"]),
    ("sgd", "net.hidden=[true]", ["hidden must be a list of int"]),
    ("sgd", "net.hidden=[0]", ["each of hidden must be at least 1, got 0"]),
    ("sgd", "net.hidden=[-3]", ["each of hidden must be at least 1, got -3"]),
    ("sgd", "net.hidden=[]", ["hidden must have at least one layer"]),
    ("sgd", "net.hidden=[10000000000]", ["each of hidden must be at most 1e+07"]),
    ("sgd", "net.dropout=2", ["dropout must be at most 1, got 2"]),
    ("sgd", "net.dropout=-1", ["dropout must be at least 0"]),
    ("sgd", "net.dropout=nan", ["dropout must be a finite number"]),
    ("sgd", "net.dropout=a", ["dropout must be float"]),
    ("sgd", "net.width=3", ["unknown setting of net 'mlp' 'width'"]),
    ("sgd", "net.name=mpl", ["did you mean 'mlp'?"]),
    ("sgd", "net.name=5", ["net setting name must be str"]),
    ("sgd", "method.strength=3", ["unknown hyperparameter of the methods here 'strength'"]),
    ("ewc", "method.strength=nan", ["strength of ewc", "finite"]),
    ("ewc", "method.strength=inf", ["strength of ewc", "finite"]),
    ("ewc", "method.strength=-1", ["strength of ewc must be at least 0"]),
    ("ewc", "method.strength=abc", ["strength of ewc must be float"]),
    ("ewc", "method.samples=0", ["did you mean 'fisher_samples'?"]),
    ("a-gem", "method.tolerance=nan", ["tolerance of a-gem", "finite"]),
    ("a-gem", "method.memory_per_task=-1", ["memory_per_task of a-gem must be at least 0"]),
    ("a-gem", "method.memory_per_task=1.5", ["memory_per_task of a-gem must be int"]),
    ("stable-sgd", "method.decay=nan", ["decay of stable-sgd", "finite"]),
    ("stable-sgd", "method.decay=-1", ["decay of stable-sgd must be at least"]),
    ("stable-sgd", "method.dropout=2", ["dropout of stable-sgd must be at most 1"]),
    ("stable-sgd", "method.batch_size=0", ["batch_size of stable-sgd must be at least 1"]),
    ("ogd", "method.memory_per_task=-1", ["memory_per_task of ogd must be at least 0"]),
    ("ogd", "method.variant=gtll", ["did you mean 'gtl'?"]),
    ("ogd", "method.engine=x", ["adapter, auto, project"]),
    ("ogd", "method.storage=x", ["bfloat16, float32, float64"]),
    ("ogd", "method.energy=2", ["energy of ogd must be at most 1"]),
    ("gpm", "method.threshold=2", ["threshold of gpm must be at most 1"]),
    ("gpm", "method.threshold=nan", ["threshold of gpm", "finite"]),
    ("gpm", "method.samples=0", ["memory_per_task, threshold"]),
    ("si", "method.strength=nan", ["strength of si", "finite"]),
    ("si", "method.damping=-1", ["damping of si must be at least"]),
    ("er", "method.memory_per_task=-1", ["memory_per_task of er must be at least 0"]),
]


@pytest.mark.parametrize(
    ("method", "setting", "words"), SETTINGS, ids=[f"{m}-{s[:40]}" for m, s, _ in SETTINGS]
)
def test_settings(refused, method, setting, words):
    """Found when the experiment is read, before anything is trained or written."""
    run = ["run", "--stream", "rotated-mnist-mini", "--method", method, "--store", "store", "--jobs", "0"]
    refused([*run, "--set", setting], words)


RUN = ["run", "--stream", "rotated-mnist-mini", "--method", "sgd"]
PLAN = ["plan", "mlp", "--input-shape", "1,32,32", "--tasks", "3"]
COMMANDS: list[tuple[list[str], list[str]]] = [
    (["run"], ["give an experiment file, or at least one --stream and one --method"]),
    (["run", "--stream", "rotated-mnist-mini"], ["one --method"]),
    (["run", "--method", "sgd"], ["one --stream"]),
    (["run", "--stream", "x", "--method", "sgd"], ["unknown stream 'x'", "rotated-mnist-mini"]),
    (["run", "--stream", "rotated-mnist-mini", "--method", "sgdd"], ["did you mean 'sgd'?"]),
    (["run", "nofile.toml"], ["cannot read experiment", "No such file"]),
    (["run", "."], ["cannot read experiment", "is not a file"]),
    ([*RUN, "--net", "resnet"], ["unknown net 'resnet'"]),
    ([*RUN, "--seed", "1.5"], ["--seed", "expected a whole number, got '1.5'"]),
    ([*RUN, "--seed", "a"], ["--seed", "expected a whole number"]),
    ([*RUN, "--seed", "9" * 5000], ["--seed", "expected a whole number"]),
    ([*RUN, "--jobs", "1.7"], ["--jobs", "expected a whole number, got '1.7'"]),
    ([*RUN, "--jobs", "-1"], ["--jobs must be 0 or more, got -1"]),
    (["demo", "--jobs", "-1"], ["--jobs must be 0 or more"]),
    (["search", "x.toml", "--jobs", "-1"], ["--jobs must be 0 or more"]),
    (["search", "x.toml"], ["cannot read experiment"]),
    ([*RUN, "--metric", "accc"], ["did you mean 'aac'?"]),
    ([*RUN, "--backend", "cloud"], ["unknown backend 'cloud'", "local, ray, slurm"]),
    ([*RUN, "--backend-set", "x"], ["expected KEY=VALUE for --backend-set"]),
    ([*RUN, "--backend-set", "jobs=a"], ["jobs must be int, got 'a'"]),
    ([*RUN, "--only", "zzz"], ["unknown stream or method 'zzz'"]),
    ([*RUN, "--table", "xls"], ["--table", "terminal"]),
    ([*RUN, "--report", "/dev/null/x/r.html"], ["cannot create the folder"]),
    ([*RUN, "--tracker", "x"], ["unknown tracker 'x'", "tensorboard"]),
    ([*RUN, "--store", LONG], ["cannot be a store", "too long"]),
    ([*RUN, "--store", "a\0b"], ["cannot be a store"]),
    ([*RUN, "--zzz"], ["--zzz"]),
    (["runs", "list", "--store", LONG], ["cannot be a store", "too long"]),
    (["runs", "list", "--store", "/dev/null"], ["is a file: a store is a directory"]),
    (["runs", "export", LONG + ".csv"], ["there are no records"]),
    (["runs", "export", "a.xls"], ["unknown export format 'xls'"]),
    (["runs", "export", "a.csv"], ["there are no records"]),
    (["runs", "show", ""], ["say which run"]),
    (["runs", "show", "zz"], ["no run in orthocl-store begins with 'zz'"]),
    (["runs", "compare", "zz"], ["no run in"]),
    (["runs", "rm", ""], ["say which run"]),
    (["runs", "rm"], ["say which runs to remove"]),
    (["runs", "rm", "../.."], ["no run in"]),
    (["runs", "rm", "/"], ["no run in"]),
    (["runs", "rm", "*"], ["no run in"]),
    (["runs", "doctor", "--store", "nowhere"], ["there is no store in nowhere"]),
    (["runs", "nonsense"], ["nonsense"]),
    (["report"], ["none of these runs has finished"]),
    (["report", "--out", LONG], ["cannot create the folder", "too long"]),
    (["report", "--figure", "zzz", "--out", "a.xyz"], ["unknown figure format 'xyz'"]),
    (["report", "--set", "train.epochs=1"], ["--set changes the settings of an experiment file"]),
    (["nonsense"], ["nonsense"]),
    (["plan"], ["expected a network, --input-shape and --tasks"]),
    (["plan", "mlp"], ["expected a network, --input-shape and --tasks"]),
    (["plan", "mpl", "--input-shape", "1", "--tasks", "3"], ["did you mean 'mlp'?"]),
    (["plan", ":", "--input-shape", "1", "--tasks", "3"], ["cannot be imported"]),
    (["plan", "mlp", "--input-shape", "²", "--tasks", "3"], ["expected input shape as positive numbers"]),
    (["plan", "mlp", "--input-shape", "", "--tasks", "3"], ["expected input shape as positive numbers"]),
    (["plan", "mlp", "--input-shape", "0", "--tasks", "3"], ["expected input shape as positive numbers"]),
    (["plan", "mlp", "--input-shape", "99999999999,99999999", "--tasks", "3"], ["is that a slip?"]),
    (
        ["plan", "mlp", "--input-shape", "9" * 50, "--tasks", "3"],
        ["expected input shape as positive numbers"],
    ),
    (["plan", "mlp", "--input-shape", "3", "--tasks", "0"], ["tasks must be at least 1"]),
    (["plan", "mlp", "--input-shape", "3", "--tasks", "-1"], ["tasks must be at least 1"]),
    (["plan", "mlp", "--input-shape", "3", "--tasks", "1.5"], ["expected a whole number"]),
    (
        ["plan", "mlp", "--input-shape", "3", "--tasks", "10000000", "--multi-head"],
        ["10,000,000 tasks", "--yes"],
    ),
    (["plan", "none.py:x", "--input-shape", "3", "--tasks", "3"], ["cannot read", "none.py"]),
    ([*PLAN, "--outputs", "0"], ["--outputs must be at least 1"]),
    ([*PLAN, "--outputs", "-2"], ["--outputs must be at least 1"]),
    ([*PLAN, "--budget", "."], ["expected a size such as 500MB"]),
    ([*PLAN, "--budget", "9" * 400 + "GB"], ["expected a size such as 500MB"]),
    ([*PLAN, "--budget", "1.2.3GB"], ["expected a size such as 500MB"]),
    ([*PLAN, "--budget", "many"], ["expected a size such as 500MB"]),
    ([*PLAN, "--hidden", "9999999999999"], ["at most 1e+07"]),
    ([*PLAN, "--hidden", "a"], ["expected hidden units as positive numbers"]),
    ([*PLAN, "--hidden", "0"], ["expected hidden units as positive numbers"]),
    ([*PLAN, "--memory-per-task", "0"], ["memory_per_task must be at least 1"]),
    ([*PLAN, "--batch-size", "0"], ["batch_size must be at least 1"]),
    ([*PLAN, "--energy", "2"], ["energy is a share between 0 and 1"]),
    ([*PLAN, "--energy", "nan"], ["energy is a share between 0 and 1"]),
    ([*PLAN, "--samples-per-task", "-1"], ["--samples-per-task must be at least 1"]),
    ([*PLAN, "--variant", "zzz"], ["--variant", "gtl"]),
    (["data", "fetch"], ["give the name of a data set"]),
    (["data", "fetch", "nope"], ["unknown data set 'nope'"]),
    (["data", "fetch", "--for", "none.toml"], ["cannot read experiment"]),
    (["data", "prepare", "mnist"], ["unknown data set to prepare"]),
    (["data", "prepare", "cub200", "--batch-size", "0"], ["--batch-size must be at least 1"]),
    (["data", "prepare", "cub200", "--data-root", "some[/x]"], ["some[/x]"]),
    (["check"], ["method"]),
    (["check", "none.py"], ["cannot read"]),
    (["check", "odg"], ["did you mean 'ogd'?"]),
    (["list", "x"], ["x"]),
    (["paper", "x"], ["unknown table or figure 'x'"]),
]


@pytest.mark.parametrize(("arguments", "words"), COMMANDS, ids=[" ".join(a)[:60] for a, _ in COMMANDS])
def test_commands(refused, arguments, words):
    refused(arguments, words)


@pytest.mark.parametrize("command", [["plan"], ["check"]])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('at import')\n", ["cannot be imported: ValueError: at import"]),
        ("def build(:\n", ["cannot be imported: SyntaxError"]),
        ("import nowhere_at_all\n", ["cannot be imported", "nowhere_at_all"]),
        ("\0", ["cannot be imported"]),
    ],
)
def test_files_of_users_that_cannot_be_imported(refused, tmp_path, command, text, words):
    (tmp_path / "mine.py").write_text(text)
    more = ["--input-shape", "3", "--tasks", "3"] if command == ["plan"] else []
    refused([*command, "mine.py:build", *more], words)


def test_an_unlikely_size_goes_ahead_when_it_is_meant(tmp_path, monkeypatch):
    from orthocl.errors import UnlikelyError
    from orthocl.lab import make_experiment

    content = {"streams": ["permuted-mnist-mini"], "methods": ["sgd"], "stream": {"tasks": 20_000}}
    with pytest.raises(UnlikelyError, match="20,000 tasks"):
        make_experiment(content)
    assert make_experiment(content, any_size=True).runs[0].stream.tasks == 20_000


@pytest.mark.parametrize(("answer", "allowed"), [("y\n", True), ("yes\n", True), ("n\n", False), ("", False)])
def test_on_a_terminal_one_is_asked(monkeypatch, capsys, answer, allowed):
    import io
    import sys

    from orthocl.cli.options import agree
    from orthocl.errors import SettingsError

    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    if allowed:
        agree("train for a year", yes=False)
    else:
        with pytest.raises(SettingsError, match="nothing was done"):
            agree("train for a year", yes=False)
    assert "train for a year. Is that meant? [y/N]" in capsys.readouterr().err


def test_markup_in_paths_is_text(tmp_path, monkeypatch, capsys):
    from orthocl.cli.app import call

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    assert call(["data", "status", "--data-root", "some[/x]"]) == 0
    assert "some[/x]" in capsys.readouterr().out
