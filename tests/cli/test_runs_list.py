"""`runs list`: by date, with what differs, by the names that tables print."""

from __future__ import annotations

import json
import os

import pytest

from orthocl.cli.app import call
from orthocl.lab import Store, make_experiment, run_experiment

CONTENT = {
    "name": "two",
    "seeds": [1],
    "stream": {"tasks": 1, "train_size": 10, "test_size": 10},
    "streams": {"turned": {"stream": "rotated-mnist-mini"}},
    "methods": ["sgd", "ewc"],
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    longer = make_experiment(CONTENT, only=["ewc"], overrides=["train.epochs=2"])
    made = [run_experiment(each, store, jobs=0) for each in (make_experiment(CONTENT), longer)]
    records = [record for results in made for _, record in results.pairs]
    for age, record in enumerate(records):
        for path in [*store.folder(record.id).iterdir(), store.folder(record.id)]:
            os.utime(path, (1e9 - 1000 * age, 1e9 - 1000 * age))
    return store.directory, [record.id for record in records]


def listed(capsys, *arguments):
    assert call(["runs", "list", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_newest_last_with_the_settings_that_differ(filled, capsys):
    store, ids = filled
    rows = listed(capsys, "--store", store)
    assert [row["id"] for row in rows] == ids[::-1]
    assert [(row["method"], row["differs"]) for row in rows] == [
        ("ewc", "train.epochs=2"),
        ("ewc", "train.epochs=5"),
        ("sgd", ""),
    ]
    assert rows[0]["when"].startswith("2001-09-0")


def test_filters_take_the_names_of_tables(filled, capsys):
    store, ids = filled
    assert len(listed(capsys, "--store", store, "--stream", "turned")) == 3
    assert listed(capsys, "--store", store, "--stream", "rotated-mnist-mini") == []
    assert [row["id"] for row in listed(capsys, "--store", store, "--last", 1)] == ids[:1]
    assert call(["runs", "list", "--store", str(store), "--last", "0"]) == 2


def test_text_is_in_columns(filled, capsys):
    assert call(["runs", "list", "--store", str(filled[0])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["id", "when", "stream"]
    assert len(lines) == 4
    assert "2001-09-0" in lines[1]
