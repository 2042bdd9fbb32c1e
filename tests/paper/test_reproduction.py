"""REPRODUCTION.md is made from the records in results/ and is up to date; records are kept without weights."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from orthocl.cli.app import make_app
from orthocl.errors import SettingsError, StoreError
from orthocl.lab import Store, load_experiment
from orthocl.lab.experiment.settings import CODE_VERSION, recorded_identity
from orthocl.paper.authors_grid import grid_page
from orthocl.paper.costs import cost_table
from orthocl.paper.discussion import discuss
from orthocl.paper.evidence import Evidence, RecordIndex, diverged_runs
from orthocl.paper.items import ITEMS, get_item, item_runs
from orthocl.paper.keep import keep_records
from orthocl.paper.published import find_printed
from orthocl.paper.reproduction import (
    MARKS,
    Reproduction,
    _glance_cell,
    update_readme,
    write_reproduction,
)
from orthocl.paper.table_2 import table_2

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
    diverged = {run for run, _, _ in diverged_runs(Store(RESULTS))}
    for folder in (RESULTS / "runs").glob("*"):
        what = "failure.json" if folder.name in diverged else "record.json"
        assert {path.name for path in folder.iterdir()} == {what, "settings.json"}
        record = Store(RESULTS).record(folder.name)  # checks its hash
        assert (record is None) == (folder.name in diverged)
        assert record is None or record.id == folder.name


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
    assert (
        "OGD is more accurate than plain SGD | numbers of Table 2 | **holds with a condition**: on rotated-mnist only |"
        in text
    )
    assert "| rotated-mnist | ogd | 2 | 1 min 30 s | 1.02 kB |" in text  # no processor time, so no price
    assert "is not said: these runs did not measure" in text
    assert "nearer to the re-run" in text
    for item in ITEMS:
        assert made.pages[item].title in text
    assert f"[{71.06:.2f}]" in made.glance()


def test_costs_are_processor_time_of_a_step(record_for):
    """OGD works two and a half times as long, on a machine ten times as busy; runs with curves are no other group."""
    tables = item_runs(get_item("table-2"), streams=["rotated-mnist"], seeds=[1, 2]).runs
    curves = item_runs(get_item("figure-5"), seeds=[1]).runs
    seconds = {"sgd": (10.0, 12.0), "ogd": (25.0, 270.0)}
    pairs = []
    for run in (*tables, *curves):
        if run.method_label in seconds:
            worked, total = seconds[run.method_label]
            clock = {"total": total, "processor": worked}
            pairs.append((run, replace(record_for(run), provenance={"seconds": clock})))
    rows = {row[:3]: row[3:] for row in cost_table(pairs).rows}
    assert rows["rotated-mnist", "sgd", "2"] == ("12.0 s", "1.0x", "1.02 kB", "")
    assert rows["rotated-mnist", "ogd", "2"] == ("4 min 30 s", "2.5x", "1.02 kB", "")


def printed_record(record_for, run, item, stream, shift):
    """A record by hand that has the four printed metrics of a method, or so many points less."""
    method = run.method_label.split(" ")[0]
    cells = (find_printed(item, stream, method, name) for name in ("aac", "bwt", "fwt", "afm"))
    aac, bwt, fwt, afm = (cell.mean / 100 for cell in cells)
    end = aac - shift + bwt / 15 + 0.001 * (run.seed - 2)
    learnt, best = end - bwt, end - afm
    rows = [[0.1] * 15]
    for after in range(1, 15):
        rows.append([best] * (after - 1) + [learnt] + [0.1 + fwt] * (15 - after))
    return record_for(run, accuracies=[*rows, [end] * 14 + [learnt]])


def test_the_discussion_says_with_which_width_our_numbers_are_the_printed_ones(evidence_of, record_for):
    """Three points below the print with 100 units, at the print with 300."""
    streams = {"permuted-mnist": "table-9", "rotated-mnist": "table-10"}

    def make(shifts):
        def record(run):
            shift = shifts.get(run.net.settings["hidden"][0] if run.stream_label in streams else 0)
            if run.stream_label not in streams or shift is None:
                return None
            return printed_record(record_for, run, streams[run.stream_label], run.stream_label, shift)

        return evidence_of("figure-2", record, seeds=[1, 2, 3])

    none = Evidence()
    wide = "\n".join(discuss([], none, make({100: 0.03, 300: 0.0}), none))
    assert "With 300 units all 16 numbers lie within" in wide
    assert "1024-256-256-10" in wide
    assert "| permuted-mnist | ogd |" in wide
    for shifts in ({100: 0.0, 300: 0.0}, {100: 0.03, 300: 0.02}, {100: 0.0, 300: 0.03}, {300: 0.0}):
        assert "wider networks" not in "\n".join(discuss([], none, make(shifts), none))


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


def test_the_discussion_compares_both_widths(evidence_of, record_for):
    """By hand: five points above the print with 200 hidden units, one point above it with 100; OGD not with both."""

    def above(points):
        def make(run):
            printed = find_printed("table-2", run.stream_label, run.method_label, "aac")
            if run.stream_label != "split-cifar100" or run.method_label not in ("sgd", "mas", "stable-sgd"):
                return None
            return record_for(run, [printed.mean / 100 + points] * 20)

        return make

    wide, narrow = evidence_of("table-2", above(0.05), seeds=[1]), evidence_of("authors-grid", above(0.01))
    text = "\n".join(discuss([table_2(wide), grid_page(narrow)], wide, Evidence(), narrow))
    assert (
        "Over the 2 methods run with both, average accuracies are +5.00 from the print with 200 and +1.00 with 100"
        in text
    )
    assert "both" not in "\n".join(discuss([table_2(wide)], wide, Evidence(), narrow))


def test_what_diverged_is_kept_and_said_and_not_asked_for_again(tmp_path, record_for):
    """Five runs of a divergent rate, of which the fifth is killed instead; then one of them gets a result."""
    store, into = Store(tmp_path / "working"), Store(tmp_path / "results")
    runs = [run for run in item_runs(get_item("split-mnist")).runs if run.method_label == "ewc"]
    for run in runs:
        record = record_for(run)
        store.folder(record.id).mkdir(parents=True)
        store.begin(record.id, record.settings, {"threads": 1})
        reason = f"the loss became inf with seed {run.seed}"
        failure = {
            "reason": reason,
            "expected": True,
            "diverged": run.seed < 5,
            "code": CODE_VERSION,
            "traceback": ["/home/me"],
        }
        store.write_failure(record.id, failure)
    assert len(keep_records(store, into).diverged) == 4
    assert (
        len(keep_records(store, Store(tmp_path / "others"), item_runs(get_item("table-1")).runs).diverged)
        == 0
    )
    for folder in into.runs.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["failure.json", "settings.json"]
        assert "/home/me" not in (folder / "failure.json").read_text()

    older = into.folder(record_for(runs[1]).id) / "failure.json"
    now = older.read_text()
    older.write_text(now.replace(f'"code": {CODE_VERSION}', '"code": 1'))
    assert len(Reproduction(into).evidence["split-mnist"].diverged) == 3
    older.write_text(now)
    damaged = older.with_name("settings.json")
    settings = damaged.read_text()
    damaged.write_text("{")
    with pytest.warns(UserWarning, match="left out"):
        assert len(diverged_runs(into)) == 3
    damaged.write_text(settings)

    made = Reproduction(into)
    assert len(made.evidence["split-mnist"].diverged) == 4
    text = made.text()
    assert "ewc on split-mnist has no result with seed 4: the loss became inf with seed 4." in text
    assert "seed 5: the loss" not in text
    assert "--only split-mnist/ewc --seed 5`" in text

    sgd = item_runs(get_item("table-2"), streams=["rotated-mnist"], seeds=[1]).runs[0]
    lost = Evidence((sgd,), (), ((sgd, "the loss became inf"),))
    assert _glance_cell(lost, "rotated-mnist", "sgd") == "diverged (1) [71.06]"

    store.write_record(record_for(runs[0]))
    kept = keep_records(store, into)
    assert (len(kept.new), len(kept.diverged)) == (1, 3)
    assert not (into.folder(record_for(runs[0]).id) / "failure.json").exists()
    assert "no result with seed 1" not in Reproduction(into).text()


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
