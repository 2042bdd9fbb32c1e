"""Every committed record still reads, resolves to the run that it is of, and counts as evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orthocl.lab import Store
from orthocl.lab.experiment.settings import ACCEPTED_VERSIONS, CODE_VERSION, identity
from orthocl.paper.evidence import RecordIndex, settings_key

ROOT = Path(__file__).parents[2]
STORES = sorted(path.parent.name for path in ROOT.glob("results*/runs"))


def test_there_are_records():
    assert {"results", "results-gpm", "results-text", "results-trade-off"} <= set(STORES)


@pytest.mark.parametrize("store", STORES)
def test_every_record_is_read_and_keeps_its_identity(store):
    files = sorted((ROOT / store / "runs").glob("*/record.json"))
    records = {record.id: record for record in Store(ROOT / store).records()}
    assert sorted(records) == [file.parent.name for file in files]
    for file in files:
        record, kept = records[file.parent.name], json.loads(file.read_text())
        assert record.settings.recorded() == kept["settings"]
        if record.code == CODE_VERSION:
            assert identity(record.settings, record.stream["fingerprint"]) == record.id


@pytest.mark.parametrize("store", STORES)
def test_every_record_counts_as_evidence(store):
    index, records = RecordIndex(Store(ROOT / store)), list(Store(ROOT / store).records())
    assert len(index) == len({settings_key(record.settings) for record in records})
    for record in records:
        assert record.code in ACCEPTED_VERSIONS
        (pair,) = index.find([record.settings]).pairs
        assert settings_key(pair[1].settings) == settings_key(record.settings)
