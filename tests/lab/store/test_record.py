from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from orthocl.errors import StoreError
from orthocl.lab import Record, Store
from orthocl.lab.store.doctor import examine
from orthocl.lab.store.record import circumstances, readable_json

ROOT = Path(__file__).parents[3]


def test_round_trip_keeps_every_bit(make_record):
    record = make_record(final=0.1 + 0.2)
    again = Record.from_json(record.to_json())
    assert again == record
    assert again.result.accuracies[2][0] == 0.1 + 0.2
    assert again.result.memorised[1] == {1: 0.5, 2: 1.0}


def test_not_a_number_survives(make_record):
    record = make_record(final=math.nan)
    assert math.isnan(Record.from_json(record.to_json()).result.accuracies[2][0])
    json.loads(record.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_hash_covers_the_result_and_not_the_circumstances(make_record):
    record = make_record()
    elsewhere = replace(record, provenance={"machine": {"cpus": 64}})
    assert elsewhere.result_hash == record.result_hash
    assert make_record(final=0.6).result_hash != record.result_hash
    assert replace(record, reason="x").result_hash != record.result_hash


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"status": "finished"', '"status": "unsupported"', "does not match its own hash"),
        ("0.9", "0.91", "does not match its own hash"),
        ('"format": 1', '"format": 2', "has format 2"),
        ('"result_hash"', '"hash"', "is not a record"),
        ("{", "", "is not JSON"),
    ],
)
def test_damage_is_noticed(make_record, old, new, words):
    text = make_record().to_json()
    assert old in text
    with pytest.raises(StoreError, match=words):
        Record.from_json(text.replace(old, new, 1))


def test_edited_circumstances_are_not_believed_without_a_checksum(make_record):
    values = json.loads(make_record().to_json())
    values["provenance"] = {"seconds": {"total": 0.001}}
    with pytest.raises(StoreError, match="its own checksum"):
        Record.from_json(json.dumps(values))
    del values["checksum"]
    with pytest.raises(StoreError, match="has no checksum"):
        Record.from_json(json.dumps(values))


@pytest.mark.parametrize("folder", sorted(ROOT.glob("results*")), ids=lambda path: path.name)
def test_every_committed_record_and_settings_file_is_good(folder):
    assert examine(Store(folder)) == []


def test_metrics_by_name(make_record):
    record = make_record(final=0.5)
    assert record.metric("aac") == pytest.approx(0.65)
    assert record.metric("bwt") == pytest.approx(-0.4)
    assert record.metric("memorised") == pytest.approx(-0.5)
    assert (record.metric("seconds"), record.metric("memory")) == (3.0, 24.0)


def test_an_unsupported_run_has_no_metrics(make_record):
    record = make_record(status="unsupported", reason="because")
    assert math.isnan(record.metric("aac"))


def test_circumstances_name_versions_but_no_paths():
    text = json.dumps(circumstances())
    assert all(name in text for name in ("orthocl", "python", "torch", "numpy", "cpus"))
    assert "/home" not in text
    assert "/root" not in text


def test_readable_json_is_json():
    value = {"a": [[1, 2], [3, 4.5]], "b": {"c": [], "d": {"e": None}}, "f": [{"g": 1}], "h": {}}
    assert json.loads(readable_json(value)) == value
    assert "\n    [1, 2],\n" in readable_json(value)
