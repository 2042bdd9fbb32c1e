"""`orthocl.compare`: from Python, with parts of one's own, through the laboratory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import orthocl
from orthocl import streams
from orthocl.errors import SettingsError
from orthocl.lab import MethodSettings, RunSettings, Store, StreamSettings, execute


@dataclass
class Plain(orthocl.Method):
    name: ClassVar[str] = "plain"


def arrays(tasks: int = 2):
    random = np.random.RandomState(0)
    y, z = np.arange(30) % 3, np.arange(15) % 3
    return [(random.rand(30, 6) + y[:, None], y, random.rand(15, 6) + z[:, None], z) for _ in range(tasks)]


def silent(event) -> None:
    pass


def test_a_stream_in_memory_with_objects_of_all_kinds(tmp_path):
    def build(input_shape, outputs):
        return nn.Sequential(nn.Linear(input_shape[0], 5), nn.ReLU(), nn.Linear(5, outputs))

    found = orthocl.compare(
        streams.from_arrays(arrays(), name="points"),
        {"memory": orthocl.OGD(memory_per_task=3), "plain": Plain, "ewc": "ewc"},
        net=build,
        seeds=2,
        train={"epochs": 2, "learning_rate": 0.05},
        store=tmp_path,
        on_event=silent,
    )
    assert len(found.records) == 6
    record = found.records[0]
    assert record.settings.stream_label == "points"
    assert record.settings.stream.tasks == 2
    assert record.stream["name"] == "points"
    assert record.settings.method.settings["memory_per_task"] == 3
    assert record.settings.net.name == "build"
    assert len(record.settings.net.source) == 16
    assert "points" in found.table("latex")
    assert found.table("csv").startswith("stream,method")
    assert str(found).count("points") >= 3
    assert found.figure(tmp_path / "accuracy.svg").read_text().startswith("<?xml")
    assert "memory" in found.report(tmp_path / "page.html").read_text()
    again = orthocl.compare(
        streams.from_arrays(arrays(), name="points"),
        {"memory": orthocl.OGD(memory_per_task=3)},
        net=build,
        seeds=[2],
        train={"epochs": 2, "learning_rate": 0.05},
        store=tmp_path,
        on_event=silent,
    )
    assert again.records[0].id == found.records[1].id


def test_parts_that_other_processes_cannot_find_need_this_one(tmp_path):
    with pytest.raises(SettingsError, match="exists only in this process"):
        orthocl.compare(
            streams.from_arrays(arrays()), ["sgd"], seeds=1, store=tmp_path, jobs=2, on_event=silent
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, ["sgd"]), "expected a stream or its name, got a int"),
        (("rotated-mnist-mini", []), "at least one method"),
        (("rotated-mnist-mini", ["ogd", orthocl.OGD()]), "two methods are called 'ogd'"),
        (("rotated-mnist-min", ["ogd"]), "did you mean 'rotated-mnist-mini'"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, arguments, words):
    with pytest.raises(SettingsError, match=words):
        orthocl.compare(*arguments, store=tmp_path, jobs=0, on_event=silent)


def test_execute_with_a_stream_of_ones_own_records_the_truth(tmp_path):
    stream = streams.from_arrays(arrays(3), name="mine")
    settings = RunSettings(StreamSettings("rotated-mnist-mini", tasks=15), MethodSettings("sgd"), seed=1)
    record = execute(settings, Store(tmp_path), stream=stream)
    assert record.settings.stream == StreamSettings("mine", tasks=3)
    assert record.stream["name"] == "mine"
    assert len(record.result.accuracies) == 4


def test_seeds_that_change_nothing_are_noticed(tmp_path):
    def build(input_shape, outputs):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(input_shape[0], outputs))

    one = (np.ones((1, 6), dtype="float32"), np.zeros(1, dtype=int))  # no order to be drawn
    stream = streams.from_arrays([(*one, *one)], outputs=2)
    with pytest.warns(UserWarning, match="seeds 1 and 2 gave the same result to the bit"):
        orthocl.compare(stream, ["sgd"], net=build, seeds=2, store=tmp_path, on_event=silent)


def test_a_notebook_shows_a_table(tmp_path):
    x, y = np.random.RandomState(0).rand(12, 4), np.arange(12) % 2
    stream = streams.from_arrays([(x, y, x, y)])
    comparison = orthocl.compare(stream, {"<b>": "sgd"}, seeds=[1], store=tmp_path)
    assert repr(comparison) == str(comparison)
    found = comparison._repr_html_()
    assert found.startswith("<table><tr><th>stream</th><th>method</th>")
    assert found.count("<tr>") == 2
    assert "&lt;b&gt;" in found


SCRIPT = """
import numpy as np
import torch
import orthocl
from orthocl import streams

print("read")
x, y = np.random.rand(30, 4), np.arange(30) % 3


def network(input_shape, outputs):
    return torch.nn.Linear(4, outputs)


found = orthocl.compare({stream}, ["sgd"], net=network, seeds=[1], jobs={jobs}, train={{"epochs": 1}})
print(len(found.records), [one.reason for one in found.results.failures])
"""


def run_script(folder, stream, jobs):
    (folder / "script.py").write_text(SCRIPT.format(stream=stream, jobs=jobs))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_with_its_own_network_is_executed_once(tmp_path):
    assert run_script(tmp_path, "streams.from_arrays([(x, y, x, y)])", 0) == "read\n1 []\n"
    assert len(Store(tmp_path / "orthocl-store").ids()) == 1


def test_a_script_that_workers_read_must_not_start_the_experiment_again(tmp_path):
    stream = 'orthocl.lab.StreamSettings("rotated-mnist-mini", tasks=1, train_size=10)'
    assert 'under `if __name__ == "__main__":`' in run_script(tmp_path, stream, 1)
