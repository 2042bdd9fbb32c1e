"""Each table of the paper from records made by hand: every number by hand, every verdict as it must be."""

import json

import pytest

from orthocl.methods import METHODS
from orthocl.paper.evidence import Evidence
from orthocl.paper.items import ITEMS, get_item, item_runs, make_page
from orthocl.paper.table_1 import table_1
from orthocl.paper.table_2 import BASELINES, EWC, table_2
from orthocl.paper.table_3 import ROWS, declared, measure, table_3
from orthocl.paper.table_6 import table_6
from orthocl.paper.tables_7_8 import table_7, table_8
from orthocl.paper.tables_9_12 import table_9, table_10, table_11, table_12

STREAMS = ["permuted-mnist", "rotated-mnist", "split-cifar100", "cub200"]


def line(page, stream, method, what=None):
    found = [
        line
        for comparison in page.comparisons
        for line in comparison.lines
        if (line.stream, line.method) == (stream, method) and what in (None, line.what)
    ]
    assert len(found) == 1
    return found[0]


def status(page, words):
    (verdict,) = [verdict for verdict in page.verdicts if words in verdict.claim]
    return verdict.status


# ---- Table 1 ---------------------------------------------------------------------------------------------------


@pytest.fixture
def forgetting(evidence_of, record_for):
    """OGD forgets 15 points, OGD+ 5, with a little noise; both 10 on the last two streams."""

    def make(run):
        lost = {"ogd": 0.15, "ogd+": 0.05}[run.method_label] if "mnist" in run.stream_label else 0.10
        return record_for(run, 0.95 - lost - 0.001 * (run.seed % 2))

    return evidence_of("table-1", make)


def test_table_1(forgetting):
    page = table_1(forgetting)
    own = line(page, "rotated-mnist", "ogd", "AFM")
    assert own.ours.mean == pytest.approx(
        -15.06
    )  # seeds 1, 3, 5 lose 0.1 more; the sign is that of the print
    assert own.printed.mean == -17.77
    assert line(page, "permuted-mnist", "network").ours.mean == pytest.approx(113_610 / 60_000)
    assert line(page, "cub200", "network").printed.mean == 1166
    assert status(page, "forgets less") == "holds"
    assert status(page, "forget alike") == "holds"


def test_table_1_when_the_claims_fail(evidence_of, record_for):
    lost = {"ogd": 0.05, "ogd+": 0.15}
    noisy = evidence_of(
        "table-1", lambda run: record_for(run, 0.95 - lost[run.method_label] - 0.001 * run.seed)
    )
    page = table_1(noisy)
    assert status(page, "forgets less") == "does not hold"
    assert status(page, "forget alike") == "does not hold"


# ---- Table 2 ---------------------------------------------------------------------------------------------------

FINAL = {
    **{"sgd": 0.50, "ewc": 0.55, "si": 0.60, "mas": 0.65, "stable-sgd": 0.58},
    **{"ogd": 0.62, "ogd+": 0.70, "stable-sgd-plain": 0.59, "a-gem": 0.66},
}


@pytest.fixture
def benchmark_runs(evidence_of, record_for):
    def make(run):
        if run.stream_label == "cub200" and run.method_label == "mas":
            return None
        return record_for(run, FINAL[run.method_label] + 0.002 * run.seed)

    return evidence_of("table-2", make, seeds=[1, 2, 3])


def test_table_2(benchmark_runs):
    page = table_2(benchmark_runs)
    assert [comparison.title for comparison in page.comparisons] == STREAMS
    own = line(page, "rotated-mnist", "sgd")
    assert own.ours.mean == pytest.approx(100 * (14 * 0.504 + 0.95) / 15)
    assert (own.printed.mean, own.authors.value, len(own.ours)) == (71.06, 68.7, 3)
    assert line(page, "rotated-mnist", "a-gem").printed is None
    assert len(line(page, "cub200", "mas").ours) == 0
    assert status(page, "OGD+ is more accurate than OGD") == "holds"
    assert status(page, "OGD is more accurate than plain SGD") == "holds"
    assert status(page, "OGD+ is above the median") == "holds"
    assert status(page, "OGD+ is below the median") == "does not hold"
    assert status(page, "A-GEM is more accurate than OGD+") == "does not hold"
    assert status(page, "A-GEM is more accurate than OGD on") == "holds"
    assert "numbers lie within two standard errors of the print**: 0 of 7 on permuted-mnist" in page.caption
    assert status(page, "equally accurate") == "does not hold"
    assert status(page, "Stable SGD is more accurate") == "does not hold"
    assert any("another pipeline" in note for note in page.notes)


def test_table_2_with_one_stream_holds_only_as_far_as_it_was_run(benchmark_runs):
    part = benchmark_runs.only(["rotated-mnist"])
    page = table_2(part)
    assert status(page, "OGD+ is more accurate than OGD") == "holds with a condition"
    assert status(page, "OGD+ is below the median") == "not run"


def test_table_2_explains_the_divergence_of_ewc():
    runs = item_runs(get_item("table-2"), seeds=[1]).runs
    assert EWC not in table_2(Evidence(tuple(runs))).notes
    lost = [run for run in runs if (run.stream_label, run.method_label) == ("split-cifar100", "ewc")]
    assert EWC in table_2(Evidence(tuple(runs), (), ((lost[0], "inf"),))).notes


def test_table_2_in_all_formats(benchmark_runs):
    page = table_2(benchmark_runs)
    assert "| ogd+ | 72.04 ± 0.19 | 3 | 87.73 ± 0.50 |" in page.render("markdown")
    assert page.render("latex").count(r"\begin{tabular}") == 4
    assert len(page.render("csv").splitlines()) == 1 + 4 * 9
    values = json.loads(page.render("json"))
    assert len(values["tables"]) == 4
    assert values["verdicts"][0]["status"] == "holds"


# ---- Table 3 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_table_3_what_is_declared_is_what_is_measured(name):
    assert measure(name).properties() == declared(name)


def test_table_3_numbers():
    plain, ogd, plus, agem, no_transfer = (measure(name) for name in ROWS)
    assert (plain.rank, plain.agreeing, plain.opposing) == (0, 1.0, 1.0)
    assert ogd.rank == ogd.samples == plus.rank == 10
    assert ogd.within == pytest.approx(0, abs=1e-9)
    assert ogd.lost == pytest.approx(0, abs=1e-9)  # directions are only added
    assert plus.lost > 1e-3  # and here taken anew
    assert ogd.agreeing == pytest.approx(ogd.opposing)  # a projection is linear: no transfer by design
    assert (agem.rank, no_transfer.rank) == (1, 1)
    assert agem.within > 1e-4
    assert (agem.agreeing, agem.opposing) == (1.0, pytest.approx(0, abs=1e-9))
    assert (no_transfer.agreeing, no_transfer.opposing) == (pytest.approx(0, abs=1e-9),) * 2


def test_table_3():
    page = table_3(Evidence())
    rows = page.words[0].rows
    assert len(rows) == 1 + 3 * len(ROWS)
    assert all(name in METHODS for name in ROWS)
    assert [row[2] for row in rows if row[0] == "a-gem-nt"] == ["no row"] * 3
    assert page.verdicts[0].status == "holds"


# ---- Table 6 ---------------------------------------------------------------------------------------------------


def test_table_6_the_protocol_has_the_printed_hyperparameters():
    rows = table_6(Evidence(item_runs(get_item("table-6")).runs)).words[0].rows
    assert len(rows) == 13
    assert [row for row in rows[1:] if row[2] != row[3]] == []


# ---- Tables 7 and 8 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "make_table"), [("table-7", table_7), ("table-8", table_8)])
def test_tables_7_and_8(name, make_table, evidence_of, record_for):
    """A-GEM is above OGD+ on the first ten tasks and below on the others, and above OGD on five."""
    ahead = {"a-gem": 0.0, "ogd+": 10, "ogd": 5}

    def make(run):
        best = ahead[run.method_label]
        final = [
            0.7 + 0.001 * run.seed + (-0.05 if task <= best else 0.05) * bool(best) for task in range(1, 16)
        ]
        return record_for(run, final)

    page = make_table(evidence_of(name, make, seeds=[1, 2]))
    stream = {"table-7": "permuted-mnist", "table-8": "rotated-mnist"}[name]
    first = line(page, stream, "ogd", "task 1")
    assert first.ours.mean == pytest.approx(65.15)
    assert first.printed.mean == {"table-7": 33.1, "table-8": 41.7}[name]
    assert line(page, stream, "a-gem", "task 15").printed.mean == {"table-7": 94.7, "table-8": 96.0}[name]
    assert page.verdicts == ()  # what the paper claims is about average accuracy, and with Table 2
    assert page.notes[0].startswith(
        "A-GEM against OGD+: above on 10 of 15 tasks (mean over 2 seeds), on 10 beyond"
    )
    assert page.notes[1].startswith("A-GEM against OGD: above on 5 of 15 tasks")
    assert page.to_markdown().count("| task ") == 15
    assert len(page.notes) == 4


# ---- Tables 9 to 12 --------------------------------------------------------------------------------------------

TABLES = {"table-9": table_9, "table-10": table_10, "table-11": table_11, "table-12": table_12}


@pytest.mark.parametrize("name", TABLES)
def test_tables_9_to_12(name, evidence_of, record_for):
    page = TABLES[name](
        evidence_of(name, lambda run: record_for(run, FINAL[run.method_label] + 0.002 * run.seed))
    )
    stream = get_item(name).streams[0]
    assert [comparison.title for comparison in page.comparisons] == ["AAC, %", "BWT, %", "FWT, %", "AFM, %"]
    for what, sign in (("BWT", 1), ("AFM", 1)):
        own = line(page, stream, "ogd", what)
        assert own.ours.mean == pytest.approx(sign * 100 * (0.62 + 0.006 - 0.95))
        assert own.printed.mean < 0
    assert line(page, stream, "sgd", "FWT").ours.mean == pytest.approx(0)
    best = {"table-9": "more accurate than every baseline", "table-10": "better than OGD"}
    if name in best:
        assert status(page, best[name]) == "holds"
        assert status(page, "above the median") == "holds"
    else:
        assert status(page, "below the median") == "does not hold"
        assert status(page, "as well as OGD") in ("does not hold", "holds with a condition")


# ---- all -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ITEMS if name != "table-3"])
def test_every_item_can_be_shown_without_any_record(name):
    item = ITEMS[name]
    page = make_page(item, Evidence(item_runs(item).runs))
    assert page.to_markdown().startswith("## ")
    assert page.to_latex()
    json.dumps(page.to_values(), allow_nan=False)
    assert {verdict.status for verdict in page.verdicts} <= {"not run"}
    assert page.rich()


def test_baselines_are_runs_of_table_2():
    assert set(BASELINES) < {run.method_label for run in item_runs(get_item("table-2")).runs}
