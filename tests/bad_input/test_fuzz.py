"""Every parser is given nonsense: it answers with an error of ours, or with what was meant, and with nothing else."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orthocl.cli.plan import parse_size
from orthocl.errors import DataError, OrthoclError, SettingsError, StoreError
from orthocl.lab import Record, Result, RunSettings, Store, make_experiment
from orthocl.lab.experiment.file import read_file, toml_value
from orthocl.lab.experiment.settings import MethodSettings, StreamSettings, identity
from orthocl.lab.store.run_lock import alive_claim
from orthocl.storage import read_state, write_state
from orthocl.streams import from_npz
from orthocl.streams.datasets.idx import parse_idx

FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
DAMAGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4)
KEYS = (
    "name",
    "seeds",
    "streams",
    "methods",
    "only",
    "train",
    "net",
    "stream",
    "method",
    "grid",
    "table",
    "search",
)


def damaged(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    """The content with some bytes replaced; beyond its end, cut."""
    broken = bytearray(content)
    for place, value in changes:
        if place % 7 == 0:
            broken = broken[: place % (len(broken) + 1)] or bytearray(b" ")
        else:
            broken[place % len(broken)] = value
    return bytes(broken)


def record() -> Record:
    run = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("sgd")).resolved()
    stream = {"name": "s", "fingerprint": "f", "settings": {}, "tasks": ["one"]}
    result = Result([[0.1], [0.9]], [{1: 1.0}], [], [{}], [[0.5]], 7, [10])
    return Record(identity(run, "f"), run, stream, result=result, provenance={"seconds": {"total": 1.0}})


RECORD = record()


@FUZZ
@given(DAMAGES)
def test_records(changes):
    content = damaged(RECORD.to_json().encode(), changes)
    with suppress(StoreError):
        assert Record.from_json(content, run=RECORD.id) == RECORD


@FUZZ
@given(VALUES)
def test_other_json_is_no_record(value):
    with pytest.raises(StoreError):
        Record.from_json(json.dumps(value))


@FUZZ
@given(DAMAGES)
def test_states(tmp_path, changes):
    path = tmp_path / "state"
    write_state(path, {"a": torch.arange(4.0), "b": [1, {"c": "x"}]}, owner="run")
    path.write_bytes(damaged(path.read_bytes(), changes))
    with suppress(StoreError):
        state = read_state(path, owner="run")
        assert torch.equal(state["a"], torch.arange(4.0))
        assert state["b"] == [1, {"c": "x"}]


@FUZZ
@given(DAMAGES)
def test_indexes(tmp_path, changes):
    store = Store(tmp_path / "store")
    if not store.ids():
        store.write_record(RECORD)
    good = store.index()
    path = store.directory / "index.jsonl"
    path.write_bytes(damaged(path.read_bytes(), changes))
    assert store.index() == good


@FUZZ
@given(st.binary(max_size=60))
def test_small_files_of_a_run(tmp_path, content):
    store = Store(tmp_path / "store")
    folder = store.folder("x")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("claim-1.json", "failure.json", "progress.jsonl", "settings.json"):
        (folder / name).write_bytes(content)
    alive_claim(folder)
    os.utime(folder / "claim-1.json", (time.time() - 1000,) * 2)
    assert store.state("x") == "failed"
    assert isinstance(store.failure("x")["reason"], str)
    assert isinstance(store.progress("x"), list)
    with pytest.raises(StoreError):
        store.settings("x")


@FUZZ
@given(st.sampled_from(KEYS), VALUES)
def test_experiments(key, value):
    content = {"streams": ["rotated-mnist-mini"], "methods": ["sgd"], key: value}
    with suppress(OrthoclError):
        assert make_experiment(content).runs


@FUZZ
@given(
    st.sampled_from(["train.epochs", "net.hidden", "stream.step", "method.strength", "x"]),
    st.text(max_size=30),
)
def test_overrides(key, text):
    content = {"streams": ["rotated-mnist-mini"], "methods": ["ewc"]}
    with suppress(OrthoclError):
        assert make_experiment(content, overrides=[f"{key}={text}"]).runs


@FUZZ
@given(st.binary(max_size=80))
def test_experiment_files(tmp_path, content):
    (tmp_path / "x.toml").write_bytes(content)
    with suppress(SettingsError):
        assert isinstance(read_file(tmp_path / "x.toml"), dict)


@FUZZ
@given(st.text(max_size=40))
def test_values_on_the_command_line(text):
    toml_value(text)
    with suppress(SettingsError):
        assert parse_size(text) >= 0


@FUZZ
@given(st.binary(max_size=200))
def test_files_of_data(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(OrthoclError):
        from_npz(tmp_path / "x.npz")
    for dimensions in (1, 3):
        with suppress(DataError):
            parse_idx(b"\x00\x00\x08" + bytes([dimensions]) + content, "idx", dimensions)
