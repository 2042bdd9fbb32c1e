"""REPRODUCTION.md is made from the records in results/ and is up to date; records are kept without weights."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from orthocl.cli.app import make_app
from orthocl.errors import SettingsError, StoreError
from orthocl.lab import Store, load_experiment
from orthocl.lab.experiment.settings import recorded_identity
from orthocl.paper.evidence import RecordIndex
from orthocl.paper.items import ITEMS, get_item, item_runs
from orthocl.paper.keep import keep_records
from orthocl.paper.reproduction import MARKS, Reproduction, update_readme, write_reproduction

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture
def filled(tmp_path, record_for) -> Store:
    """Two seeds of SGD, OGD and OGD+ on Rotated MNIST."""
    store = Store(tmp_path / "working")
    final = {"sgd": 0.5, "ogd": 0.6, "ogd+": 0.7}
    for run in item_runs(get_item("table-2"), streams=["rotated-mnist"], seeds=[1, 2]).runs:
        if run.method_label in final:
            record = record_for(run, final[run.method_label] + 0.003 * run.seed, seconds=60.0 * run.seed)
            store.write_record(record)
            folder = store.folder(record.id)
            (folder / "settings.json").write_text("{}\n")
            (folder / "weights.safetensors").write_bytes(b"heavy")
            (folder / "progress.jsonl").write_text("long\n")
    return store


def test_it_is_up_to_date_to_the_byte():
    """Make it again with `orthocl paper reproduction` if this fails."""
    text = Reproduction(Store(RESULTS)).text()
    assert (ROOT / "REPRODUCTION.md").read_text(encoding="utf-8") == text
    linked = re.findall(r"\]\((docs/figures/reproduction/[^)]+)\)", text)
    for path in linked:
        assert (ROOT / path).stat().st_size > 1000, path
    kept = {
        f"docs/figures/reproduction/{path.name}" for path in (ROOT / "docs/figures/reproduction").glob("*")
    }
    assert kept == set(linked)


def test_kept_records_are_small_and_whole():
    for folder in (RESULTS / "runs").glob("*"):
        assert {path.name for path in folder.iterdir()} <= {"record.json", "settings.json"}
        record = Store(RESULTS).record(folder.name)  # checks its hash
        assert record is not None
        assert record.id == folder.name


def test_two_makings_are_equal(filled, tmp_path):
    first, second = tmp_path / "a" / "R.md", tmp_path / "b" / "R.md"
    write_reproduction(filled, first, tmp_path / "a" / "figures")
    write_reproduction(filled, second, tmp_path / "b" / "figures")
    assert first.read_bytes() == second.read_bytes()
    figures = sorted((tmp_path / "a" / "figures").iterdir())
    assert "figure-6.svg" in [path.name for path in figures]
    for path in figures:
        assert path.read_bytes() == (tmp_path / "b" / "figures" / path.name).read_bytes()
    assert "](figures/figure-6.svg)" in first.read_text()


def test_what_it_says(filled):
    made = Reproduction(filled)
    text = made.text()
    assert "6 finished runs (9 min 0 s of computing in all)" in text
    assert "OGD is more accurate than plain SGD | numbers of Table 2 | **holds with a condition** |" in text
    assert "| rotated-mnist | ogd | 2 | 1 min 30 s | 1.0 | 1.02 kB |" in text
    assert "nearer to the re-run" in text
    for item in ITEMS:
        assert made.pages[item].title in text
    assert f"[{71.06:.2f}]" in made.glance()


def test_without_any_record(tmp_path):
    text = Reproduction(Store(tmp_path / "nothing")).text()
    assert "There are no records yet" in text
    assert "85.00" in text
    assert "No run has been made yet." in text


def test_the_commands_of_what_is_missing_make_just_that(filled):
    text = Reproduction(filled).text()
    commands = re.findall(r"`(orthocl run experiments/[^`]+--seed[^`]*)`", text)
    assert len(commands) > 10
    app, labels = make_app(["run"]), []
    for command in commands:
        words = shlex.split(command)[1:]
        app.parse_args(words, exit_on_error=False, print_error=False)
        only = [words[n + 1] for n, word in enumerate(words) if word == "--only"]
        seeds = [int(words[n + 1]) for n, word in enumerate(words) if word == "--seed"]
        labels += [run.label for run in load_experiment(ROOT / words[1], only=only, seeds=seeds).runs]
    assert "rotated-mnist / ogd / seed 3" in labels
    assert labels.count("rotated-mnist / ogd / seed 1") == 1  # of Figure 5, with its curves: another run
    said = int(re.search(r"(\d+) runs of the tables and figures", text)[1])
    assert len(labels) == said


def test_keep(filled, tmp_path, record_for):
    into = Store(tmp_path / "results")
    kept = keep_records(filled, into)
    assert (len(kept.new), len(kept.known)) == (6, 0)
    for folder in into.runs.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["record.json", "settings.json"]
    assert len(RecordIndex(into)) == 6
    assert len(keep_records(filled, into).known) == 6
    only = keep_records(filled, Store(tmp_path / "some"), item_runs(get_item("table-1")).runs)
    assert len(only.new) == 4


def test_keep_refuses_another_result_of_the_same_run(filled, tmp_path, record_for):
    into = Store(tmp_path / "results")
    run = item_runs(get_item("table-2"), streams=["rotated-mnist"], seeds=[1]).runs[0]
    into.write_record(record_for(run, 0.123))
    with pytest.raises(StoreError, match="another in"):
        keep_records(filled, into)
    with pytest.raises(StoreError, match="nothing to keep"):
        keep_records(Store(tmp_path / "nowhere"), into)


def test_the_table_of_the_readme(filled, tmp_path):
    table = Reproduction(filled).glance()
    path = tmp_path / "README.md"
    path.write_text(f"# Us\n\n{MARKS[0]}\nold\n{MARKS[1]}\n\nMore.\n")
    assert update_readme(path, table)
    assert path.read_text() == f"# Us\n\n{MARKS[0]}\n{table}\n{MARKS[1]}\n\nMore.\n"
    assert not update_readme(path, table)
    path.write_text("no marks")
    with pytest.raises(SettingsError, match="no place for the results"):
        update_readme(path, table)


def test_the_readme_of_this_repository_is_up_to_date():
    """Make it again with `orthocl paper reproduction --readme README.md` if this fails."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if MARKS[0] in text:
        found = text.partition(MARKS[0])[2].partition(MARKS[1])[0].strip()
        assert found == Reproduction(Store(RESULTS)).glance()
    else:
        assert "REPRODUCTION.md" in text


def test_records_of_other_code_do_not_count(tmp_path, record_for):
    store = Store(tmp_path / "old")
    run = item_runs(get_item("table-2"), streams=["rotated-mnist"], seeds=[1]).runs[0]
    record = record_for(run)
    old = recorded_identity(record.settings.recorded(), "f", 1)
    store.write_record(replace(record, code=1, id=old))
    assert store.record(old) is not None  # whole, but of another version
    assert len(RecordIndex(store)) == 0
