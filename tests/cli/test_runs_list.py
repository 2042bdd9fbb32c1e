"""`runs list`: by date, with what differs, by the names that tables print."""

from __future__ import annotations

import json
from dataclasses import replace

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
        redate(store, record, f"2001-09-0{9 - age}")
    return store.directory, [record.id for record in records]


def redate(store, record, when):
    (store.folder(record.id) / "record.json").unlink()
    finished = {"finished": f"{when}T12:00:00Z"}
    store.write_record(replace(record, provenance={**record.provenance, **finished}))


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


def test_one_setting_has_one_name_the_newest(tmp_path, capsys):
    store = Store(tmp_path)
    for seed, label, when in ((1, "old", "2001-01-02"), (2, "new", "2001-01-03")):
        content = CONTENT | {"seeds": [seed], "methods": {label: {"method": "sgd"}}}
        ((_, record),) = run_experiment(make_experiment(content), store, jobs=0).pairs
        redate(store, record, when)
    assert [row["seed"] for row in listed(capsys, "--store", tmp_path, "--method", "new")] == ["1", "2"]
    assert listed(capsys, "--store", tmp_path, "--method", "old") == []
    page = tmp_path / "page.html"
    assert call(["report", "--store", str(tmp_path), "--only", "new", "--out", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    ids = store.ids()
    assert call(["runs", "compare", *ids, "--store", str(tmp_path), "--table", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # a head and one row
