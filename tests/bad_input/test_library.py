"""The library. Every row: a call, the kind of error, and words that it must contain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import TensorDataset

import orthocl
from orthocl import attach
from orthocl.errors import OrthoclError, SettingsError, StoreError
from orthocl.lab import Store, make_experiment, make_table
from orthocl.lab.executors import make_executor
from orthocl.lab.reporting.table import Cell, Row, Table
from orthocl.lab.reporting.table_text import TerminalTable
from orthocl.methods import METHODS, make_method
from orthocl.nets import make_net
from orthocl.storage import read_state, write_state
from orthocl.tangents.planner import plan
from orthocl.training import TrainSettings

MODEL = nn.Linear(4, 2)


DATA = TensorDataset(torch.ones(4, 4), torch.zeros(4).long())


def sgd(model=MODEL):
    return torch.optim.SGD(model.parameters(), lr=0.1)


CALLS = {
    "attach: no model": (lambda: attach(orthocl.OGD(), None, sgd()), SettingsError, "expected a model"),
    "attach: no optimizer": (
        lambda: attach(orthocl.OGD(), MODEL, None),
        SettingsError,
        "expected an optimizer",
    ),
    "attach: a name": (lambda: attach("ogd+", MODEL, sgd()), SettingsError, r"make_method\('ogd\+'\)"),
    "attach: a class": (lambda: attach(orthocl.OGD, MODEL, sgd()), SettingsError, r"OGD\(\)"),
    "attach: another model": (
        lambda: attach(orthocl.OGD(), nn.Linear(4, 2), sgd()),
        SettingsError,
        "not in the optimizer",
    ),
    "attach: batch_norm": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), batch_norm="x"),
        SettingsError,
        "batch_norm policy",
    ),
    "attach: loss": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), loss=5),
        SettingsError,
        "loss must be a function",
    ),
    "attach: a class of losses": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), loss=nn.MSELoss),
        SettingsError,
        "got the class MSELoss: call it first",
    ),
    "attach: batch": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), batch=5),
        SettingsError,
        "batch must be a function",
    ),
    "attach: seed": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), seed=float("nan")),
        SettingsError,
        "seed must be int, got nan",
    ),
    "attach: seed, a truth": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), seed=True),
        SettingsError,
        "seed must be int",
    ),
    "attach: tasks": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), tasks=float("nan")),
        SettingsError,
        "tasks must be int, got nan",
    ),
    "attach: no tasks": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), tasks=0),
        SettingsError,
        "tasks must be at least 1",
    ),
    "attach: protect a number": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), protect=5),
        SettingsError,
        "protect must be names of parameters",
    ),
    "attach: protect numbers": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), protect=["weight", 5]),
        SettingsError,
        "got a int",
    ),
    "attach: batch_norm of another type": (
        lambda: attach(orthocl.OGD(), MODEL, sgd(), batch_norm=[]),
        SettingsError,
        "batch_norm policy",
    ),
    "learning: a head where there are none": (
        lambda: attach(orthocl.OGD(), MODEL, sgd()).learning(DATA, head="nope").__enter__(),
        SettingsError,
        "this model has no heads",
    ),
    "learning: sparse inputs": (
        lambda: (
            attach(orthocl.OGD(), MODEL, sgd())
            .learning(TensorDataset(torch.eye(4).to_sparse(), torch.zeros(4).long()))
            .__enter__()
        ),
        OrthoclError,
        "must be dense",
    ),
    "attach: protect": (lambda: attach(orthocl.OGD(), MODEL, sgd(), protect=["zzz"]), OrthoclError, "zzz"),
    "method: unknown": (lambda: make_method("odg"), SettingsError, "did you mean 'ogd'"),
    "method: unknown setting": (
        lambda: make_method("ogd", {"memory": 5}),
        SettingsError,
        "unknown setting of ogd",
    ),
    "method: wrong type": (
        lambda: make_method("ogd", {"memory_per_task": "5"}),
        SettingsError,
        "must be int",
    ),
    "method: below": (lambda: make_method("ogd", {"memory_per_task": -5}), SettingsError, "at least 0"),
    "method: above": (lambda: make_method("gpm", {"threshold": 1.5}), SettingsError, "at most 1"),
    "method: not a method": (lambda: METHODS["os:path"], SettingsError, "not a class derived from"),
    "net: unknown": (lambda: make_net("mpl", (4,), {"main": 2}), SettingsError, "did you mean 'mlp'"),
    "net: setting": (
        lambda: make_net("mlp", (4,), {"main": 2}, {"hidden": [0]}),
        SettingsError,
        "at least 1",
    ),
    "net: channels": (
        lambda: make_net("lenet", (3, 32, 32), {"main": 2}, {"channels": [0, 5]}),
        SettingsError,
        "channels",
    ),
    "net: shape": (lambda: make_net("lenet", (4,), {"main": 2}), SettingsError, "LeNet needs images"),
    "train: epochs": (lambda: TrainSettings(epochs=0), SettingsError, "epochs must be at least 1"),
    "train: rate": (lambda: TrainSettings(learning_rate=float("nan")), SettingsError, "positive number"),
    "train: huge rate": (lambda: TrainSettings(learning_rate=1e300), SettingsError, "below 1e38"),
    "train: momentum": (lambda: TrainSettings(momentum=float("inf")), SettingsError, "finite"),
    "train: adam": (lambda: TrainSettings(optimizer="adam", momentum=0.9), SettingsError, "adam has none"),
    "plan: tasks": (
        lambda: plan(MODEL, torch.zeros(1, 4), tasks=0, memory_per_task=1),
        SettingsError,
        "tasks must be at least 1",
    ),
    "plan: a shape": (
        lambda: plan(MODEL, (3, 32, 32), tasks=1, memory_per_task=1),
        SettingsError,
        "a batch of inputs, such as torch.zeros",
    ),
    "plan: memory": (
        lambda: plan(MODEL, torch.zeros(1, 4), tasks=1, memory_per_task=0),
        SettingsError,
        "memory_per_task must be at least 1",
    ),
    "store: a file": (lambda: Store("/dev/null"), StoreError, "is a file"),
    "store: impossible": (lambda: Store("x" * 300), StoreError, "cannot be a store"),
    "executor": (lambda: make_executor("cloud", {}), SettingsError, "unknown backend"),
    "executor: jobs": (lambda: make_executor("local", {"jobs": -1}), SettingsError, "0 or more"),
    "table: metric": (lambda: make_table([], ["accc"]), SettingsError, "did you mean 'aac'"),
    "table: a number": (lambda: make_table([], [5]), SettingsError, "a metric is given by its name"),
    "experiment: empty": (lambda: make_experiment({}), SettingsError, "at least one name in `streams`"),
    "experiment: override": (
        lambda: make_experiment(
            {"streams": ["rotated-mnist-mini"], "methods": ["sgd"]}, overrides={"zzz.x": 1}
        ),
        SettingsError,
        "unknown first part",
    ),
    "state: a function": (
        lambda: write_state("unused", {"a": print}),
        StoreError,
        "only tensors and JSON values",
    ),
    "state: nowhere": (lambda: read_state("nowhere"), StoreError, "no such file"),
}


@pytest.mark.parametrize(("make", "kind", "words"), CALLS.values(), ids=CALLS)
def test_calls(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def test_whole_numbers_of_other_libraries_are_welcome():
    one, other = (attach(orthocl.OGD(), MODEL, sgd(), seed=seed, tasks=seed) for seed in (np.int64(3), 3))
    assert torch.equal(one.generator.get_state(), other.generator.get_state())
    assert one.tasks_expected == 3


# ---- memory files -----------------------------------------------------------------------------------------------


def learnt(variant="gtl", tasks=1):
    torch.manual_seed(0)
    model = nn.Linear(4, 5)
    optimizer = sgd(model)
    learner = attach(make_method("ogd", {"variant": variant, "memory_per_task": 5}), model, optimizer)
    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 5)
    for _ in range(tasks):
        with learner.learning(data):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.tensors[0]), data.tensors[1]).backward()
            optimizer.step()
    return learner


SKELETONS = {
    "another method": (lambda s: {**s, "method": "ewc"}, "state of method 'ewc'"),
    "another model": (lambda s: {**s, "parameters": {"weight": [1, 2]}}, "belongs to another model"),
    "other settings": (lambda s: {**s, "settings": {**s["settings"], "variant": "all"}}, "variant='all'"),
    "no state": (lambda s: {k: v for k, v in s.items() if k != "state"}, "'state' is missing"),
    "state: a text": (lambda s: {**s, "state": "x"}, "'state' is missing or damaged"),
    "state: empty": (lambda s: {**s, "state": {}}, "nothing was loaded"),
    "random: a text": (lambda s: {**s, "random": "x"}, "'random' is missing or damaged"),
    "random: wrong size": (lambda s: {**s, "random": torch.zeros(3)}, "nothing was loaded"),
    "parameters: none": (lambda s: {**s, "parameters": None}, "'parameters' is missing"),
    "tasks_done: a text": (lambda s: {**s, "tasks_done": "x"}, "'tasks_done' is missing"),
    "something else": (lambda s: {"a": 1}, "not the saved state of a learner"),
}


@pytest.mark.parametrize(("change", "words"), SKELETONS.values(), ids=SKELETONS)
def test_memory_files_that_do_not_fit_change_nothing(tmp_path, change, words):
    write_state(tmp_path / "memory", change(learnt().state_dict()))
    learner = learnt(tasks=2)
    before = learner.state_dict()
    with pytest.raises(StoreError, match=words):
        learner.load(tmp_path / "memory")
    after = learner.state_dict()
    assert after["tasks_done"] == before["tasks_done"] == 2
    write_state(tmp_path / "before", before)
    write_state(tmp_path / "after", after)
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_memory_of_other_settings_is_refused_at_once(tmp_path):
    learnt("gtl").save(tmp_path / "memory")
    with pytest.raises(StoreError, match="variant='gtl', the method here has 'all'"):
        learnt("all").load(tmp_path / "memory")
    again = learnt("gtl")
    again.load(tmp_path / "memory")
    assert again.tasks_done == 1


# ---- what labels may contain ------------------------------------------------------------------------------------


def test_labels_cannot_leave_their_cells():
    row = Row("a|b\n", "=cmd|'x'~^\\ \x1b[31m", (1,), (Cell("aac", (0.5,)),), ("",), warning="\x1b[31m")
    table = Table(("aac",), (row,))
    texts = {kind: table.render(kind) for kind in ("csv", "markdown", "latex")}
    assert "'=cmd" in texts["csv"]
    assert r"a\|b" in texts["markdown"]
    for text in (r"\textasciitilde{}", r"\textasciicircum{}", r"\textbackslash{}"):
        assert text in texts["latex"]
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(TerminalTable(table))
    for text in (*texts.values(), captured.get()):
        assert "\x1b" not in text
