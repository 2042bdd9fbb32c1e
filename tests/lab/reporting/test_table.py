from __future__ import annotations

import csv
import io
import json
import math
import statistics
from dataclasses import replace

import pytest
from rich.console import Console

from orthocl.errors import DataError, SettingsError
from orthocl.lab.reporting.figure import FIGURES, figure_svg, heatmap_figure, make_figure, save_figure
from orthocl.lab.reporting.report import render_report, write_report
from orthocl.lab.reporting.table import Cell, make_table
from orthocl.lab.store.record import Result


@pytest.fixture
def pairs(make_record):
    finals = {("sgd", 1): 0.5, ("sgd", 2): 0.6, ("ogd", 1): 0.7, ("ogd", 2): 0.9}
    records = [make_record(method, seed, final) for (method, seed), final in finals.items()]
    records.append(make_record("ewc", 1, status="unsupported", reason="no <such> thing", result=Result()))
    return [
        (replace(record.settings, method_label=record.settings.method.name), record) for record in records
    ]


def test_mean_and_sample_deviation_over_seeds(pairs):
    row = make_table(pairs, ["aac"]).rows[0]
    values = [(0.5 + 0.8) / 2, (0.6 + 0.8) / 2]
    assert row.cells[0].values == pytest.approx(values)
    assert row.cells[0].mean == pytest.approx(statistics.mean(values))
    assert row.cells[0].spread == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    assert row.seeds == (1, 2)


def test_one_seed_has_no_spread():
    assert math.isnan(Cell("aac", (0.5,)).spread)
    assert Cell("aac", (0.5,)).text() == "50.00"


def test_the_best_of_a_stream_is_marked_by_the_direction_of_the_metric(pairs):
    table = make_table(pairs, ["aac", "forgetting", "seconds"])
    best = {row.method: row.best for row in table.rows}
    assert best == {"sgd": (False, False, False), "ogd": (True, True, False), "ewc": (False, False, False)}


def test_runs_with_other_settings_are_another_row(pairs, make_record, tiny):
    other = tiny("sgd", 1, train={"epochs": 7}).resolved()
    rows = make_table([*pairs, (other, make_record(settings=other))]).rows
    assert [row.method for row in rows] == ["sgd", "ogd", "ewc", "sgd"]
    assert [len(row.seeds) for row in rows] == [2, 2, 1, 1]


def test_markdown_latex_csv_json(pairs):
    table = make_table(pairs, ["aac", "memory"])
    markdown = table.render("markdown")
    assert "| rotated-mnist-mini | ogd | 2 | **80.00 ± 7.07** | 24 B |" in markdown
    assert "ewc: unsupported, no <such> thing" in markdown
    latex = table.render("latex")
    assert r"\textbf{80.00 $\pm$ 7.07} & 24 B \\" in latex
    assert latex.count("\\\\") == 4
    rows = list(csv.DictReader(io.StringIO(table.render("csv"))))
    assert float(rows[1]["aac"]) == pytest.approx(0.8)
    assert rows[2]["aac"] == ""
    values = json.loads(table.render("json"))
    assert values[1]["metrics"]["aac"]["values"] == pytest.approx([0.75, 0.85])
    assert values[2]["metrics"]["aac"]["mean"] is None


def test_terminal(pairs):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(make_table(pairs).rich())
    text = console.export_text()
    assert "80.0±7.1" in text
    assert "unsupported" in text
    assert max(map(len, text.splitlines())) <= 80


def test_unknown_metric(pairs):
    with pytest.raises(SettingsError, match="did you mean 'bwt'"):
        make_table(pairs, ["btw"])


# ---- figures --------------------------------------------------------------------------------------------------


@pytest.fixture
def with_curves(make_record):
    curves = [
        {"task": task, "step": step, "accuracies": [0.1 * task, 0.01 * step]}
        for task in (1, 2)
        for step in (5, 10)
    ]
    records = [
        make_record(seed=seed, result=replace(make_record(seed=seed).result, curves=curves))
        for seed in (1, 2)
    ]
    return [(record.settings, record) for record in records]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_every_figure_in_every_format(with_curves, tmp_path, name, suffix):
    path = save_figure(make_figure(name, with_curves), tmp_path / "deep" / f"{name}.{suffix}")
    start = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[suffix]
    assert path.read_bytes().startswith(start)
    again = save_figure(make_figure(name, with_curves), tmp_path / f"again.{suffix}")
    assert again.read_bytes() == path.read_bytes(), "equal figures are equal files"


def test_the_accuracy_figure_shows_the_mean_over_seeds(pairs):
    figure = make_figure("accuracy", pairs)
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert lines["sgd"] == pytest.approx([90.0, 100 * (0.55 + 0.8) / 2])
    assert set(lines) == {"sgd", "ogd"}


def test_curves_go_on_where_the_last_task_ended(with_curves):
    figure = make_figure("curves", with_curves)
    curve = next(line for line in figure.axes[0].get_lines() if line.get_label() == "1")
    assert list(curve.get_xdata()) == [5, 10, 15, 20]


def test_heatmap_shows_the_matrix(pairs):
    (image,) = heatmap_figure(*pairs[0]).axes[0].get_images()
    assert image.get_array()[2][0] == 50


def test_figures_that_cannot_be(pairs, tmp_path):
    with pytest.raises(DataError, match="evaluate_every"):
        make_figure("curves", pairs)
    with pytest.raises(DataError, match="no finished run"):
        make_figure("accuracy", pairs[-1:])
    with pytest.raises(SettingsError, match="did you mean 'accuracy'"):
        make_figure("acuracy", pairs)
    with pytest.raises(SettingsError, match="figure format"):
        save_figure(make_figure("accuracy", pairs), tmp_path / "x.gif")


def test_inline_figures_take_the_colour_of_the_page(pairs):
    svg = figure_svg(make_figure("accuracy", pairs))
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "#262626" not in svg


# ---- report ---------------------------------------------------------------------------------------------------


def test_the_report_is_one_page_that_loads_nothing(pairs, tmp_path):
    path = write_report(
        tmp_path / "out" / "report.html", pairs, title="A <b>title</b>", description="What & why"
    )
    page = path.read_text()
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    assert "What &amp; why" in page
    assert "80.00 ± 7.07" in page
    assert "unsupported: no &lt;such&gt; thing" in page
    assert page.count("<svg") == 3
    assert page.count('<table class="heat">') == 2
    assert pairs[0][1].result_hash[:16] in page
    for word in ("src=", "@import", "url(http", 'href="http', "<link"):
        assert word not in page


def test_an_empty_report_is_refused():
    with pytest.raises(DataError, match="run the experiment first"):
        render_report([], title="x")
