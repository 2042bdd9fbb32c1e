"""Every printed number is there, in its place, and the print agrees with itself."""

import csv
import io
from collections import Counter
from importlib import resources

import pytest

from orthocl.errors import SettingsError
from orthocl.lab import load_experiment
from orthocl.paper.authors import authors_grid, authors_value
from orthocl.paper.conventions import ewc_strength, mas_strength
from orthocl.paper.experiments import experiment_folder
from orthocl.paper.published import find_printed, published, published_item
from orthocl.paper.tables_7_8 import contradictions

COUNTS = {  # rows x columns of the print
    "table-1": 3 * 4,
    "table-2": 7 * 4,
    "table-3": 4 * 3,
    "table-6": 3 * 3 + 3,
    "table-7": 3 * 15,
    "table-8": 3 * 15,
    **{f"table-{number}": 7 * 4 for number in range(9, 13)},
    **{f"figure-{number}": 0 for number in range(1, 7)},
}
STREAM_TABLES = {
    "permuted-mnist": "table-9",
    "rotated-mnist": "table-10",
    "split-cifar100": "table-11",
    "cub200": "table-12",
}
NUMBERS = [(name, cell) for name, item in published().items() for cell in item.cells if cell.mean is not None]


def test_counts_are_those_of_the_paper():
    assert {name: len(item.cells) for name, item in published().items()} == COUNTS


@pytest.mark.parametrize("name", COUNTS)
def test_items_are_well_formed(name):
    item = published_item(name)
    assert item.label.startswith("tab:" if name.startswith("table") else "fig:")
    assert item.caption.endswith(".")
    places = Counter((cell.row, cell.column, cell.stream, cell.task) for cell in item.cells)
    assert max(places.values(), default=1) == 1
    assert bool(item.claim) == name.startswith("figure")
    for cell in item.cells:
        assert cell.row
        assert cell.column
        assert (cell.mean is None) == bool(cell.text)


def test_numbers_name_runs_of_the_protocol():
    protocol = load_experiment(experiment_folder() / "protocol.toml", seeds=[1]).runs
    pairs = {(run.stream_label, run.method_label) for run in protocol}
    for _, cell in NUMBERS:
        assert (cell.stream, cell.method or "sgd") in pairs
        assert cell.spread is None or 0 <= cell.spread < 10
        assert cell.metric in ("aac", "bwt", "fwt", "afm", "accuracy", "over-parameterisation")
        if cell.metric in ("aac", "accuracy"):
            assert 30 < cell.mean < 100
        if cell.metric == "afm":
            assert -40 < cell.mean < 0


@pytest.mark.parametrize("stream", STREAM_TABLES)
def test_tables_of_the_print_agree_with_each_other(stream):
    table = STREAM_TABLES[stream]
    for method in ("sgd", "ewc", "si", "mas", "stable-sgd", "ogd", "ogd+"):
        short, long = (
            find_printed("table-2", stream, method, "aac"),
            find_printed(table, stream, method, "aac"),
        )
        assert (short.mean, short.spread, short.best) == (long.mean, long.spread, long.best)
    for method in ("ogd", "ogd+"):
        short, long = (
            find_printed("table-1", stream, method, "afm"),
            find_printed(table, stream, method, "afm"),
        )
        assert (short.mean, short.spread) == (long.mean, long.spread)


@pytest.mark.parametrize("stream", STREAM_TABLES)
def test_bold_numbers_are_the_best_of_their_columns(stream):
    for metric in ("aac", "bwt", "fwt", "afm"):
        cells = [c for c in published_item(STREAM_TABLES[stream]).cells if c.metric == metric]
        assert [c.method for c in cells if c.best] == [max(cells, key=lambda c: c.mean).method]


def test_where_the_print_contradicts_itself():
    """The rows of OGD and OGD+ in Tables 7 and 8 have other means than Table 2 has: they come from other runs."""
    assert [len(contradictions(name)) for name in ("table-7", "table-8")] == [2, 2]
    assert "85.90, where Table 2 prints an average accuracy of 88.65 ± 0.38" in contradictions("table-7")[0]


def test_unknown_item():
    with pytest.raises(SettingsError, match="table-2"):
        published_item("table-22")


def test_authors_grid_is_complete():
    rows = list(
        csv.DictReader(io.StringIO((resources.files("orthocl.paper") / "authors_cifar100.csv").read_text()))
    )
    assert len(rows) == len(authors_grid()) == 216
    points = Counter(
        (run.method, run.learning_rate, run.batch_size, run.coefficient) for run in authors_grid()
    )
    assert len(points) == 216 == 3 * 4 * 3 * 6
    assert {run.method for run in authors_grid()} == {"ewc", "si", "mas"}
    assert all(run.afm < 0 < run.aac < 100 for run in authors_grid())
    assert sum(run.aac for run in authors_grid()) == pytest.approx(sum(float(row["aac"]) for row in rows))


def test_experiment_of_the_grid_has_the_authors_points_converted():
    runs = load_experiment(experiment_folder() / "authors_grid.toml").runs
    ours = {
        (
            run.method.name,
            run.train.learning_rate,
            run.train.batch_size,
            round(run.method.settings["strength"], 6),
        )
        for run in runs
    }
    theirs = {(p.method, p.learning_rate, p.batch_size, round(p.strength, 6)) for p in authors_grid()}
    assert ours == theirs
    point = next(p for p in authors_grid() if p.method == "ewc" and p.batch_size == 256)
    assert point.strength == ewc_strength(point.coefficient, 256)
    for run in runs:
        resolved = run.resolved()
        assert resolved.net.settings["hidden"] == 100
        if run.method.name == "ewc":
            assert resolved.method.settings["fisher_batch"] == run.train.batch_size
        if run.method.name == "mas":
            assert resolved.method.settings["importance_batch"] == run.train.batch_size
            assert run.method.settings["strength"] in [
                pytest.approx(mas_strength(c, 5)) for c in (0.1, 1, 10, 100, 1e3, 1e4)
            ]


def test_what_the_authors_code_gave():
    assert authors_value("rotated-mnist", "sgd", "aac").value == 68.7
    assert authors_value("rotated-mnist", "sgd", "afm").value == -28.6
    assert authors_value("split-cifar100", "si", "aac").value == 68.64
    assert authors_value("cub200", "sgd", "aac").value == 70.38
    assert authors_value("cub200", "sgd", "bwt") is None
    assert authors_value("rotated-mnist", "sgd", "fwt") is None
