from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import statistics
from dataclasses import replace
from html import escape

import pytest
from rich.console import Console

from orthocl.errors import DataError, SettingsError
from orthocl.formatting import plain_text
from orthocl.lab.reporting.figure import FIGURES, figure_svg, heatmap_figure, make_figure, save_figure
from orthocl.lab.reporting.groups import natural
from orthocl.lab.reporting.report import render_report, write_report
from orthocl.lab.reporting.table import DEFAULT_METRICS, Cell, make_table
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


def test_nothing_is_marked_with_fewer_than_three_seeds(pairs):
    assert {mark for row in make_table(pairs).rows for mark in row.marks} == {""}


def test_the_best_and_its_ties_are_marked_by_the_direction_of_the_metric(make_record):
    finals = {"sgd": (0.50, 0.52, 0.51), "ogd": (0.80, 0.83, 0.82), "ewc": (0.81, 0.81, 0.81)}
    records = [
        make_record(name, seed, value) for name, all_ in finals.items() for seed, value in enumerate(all_)
    ]
    table = make_table([(record.settings, record) for record in records], ["aac", "forgetting", "seconds"])
    marks = {row.method: row.marks for row in table.rows}
    assert marks == {"sgd": ("", "", ""), "ogd": ("best", "best", ""), "ewc": ("tie", "tie", "")}
    markdown = table.render("markdown")
    assert markdown.count("**") == 4, "the best alone is bold, in both columns"
    assert markdown.count(" † |") == 2, "its ties have a dagger"
    assert "paired t test" in markdown
    latex = table.render("latex")
    assert (latex.count(r"\textbf"), latex.count(r"$^\dagger$")) == (2, 2)


def test_rows_are_in_reading_order_whatever_the_order_of_the_runs(make_record, tiny):
    runs = [
        tiny(name, seed, train={"epochs": n}).resolved()
        for name in ("ogd+", "sgd", "ewc")
        for n in (10, 9, 2)
        for seed in (1, 2)
    ]
    pairs = [(run, make_record(id=str(number), settings=run)) for number, run in enumerate(runs)]
    random.Random(1).shuffle(pairs)
    rows = make_table(pairs).rows
    expected = [f"{name} epochs={n}" for name in ("sgd", "ewc", "ogd+") for n in (2, 9, 10)]
    assert [row.method for row in rows] == expected
    assert all(row.seeds == (1, 2) for row in rows)


def test_a_failed_and_a_barely_trained_run_are_said_aloud(make_record):
    record = make_record(
        result=replace(make_record().result, accuracies=[[0.1, 0.1], [0.12, 0.1], [0.1, 0.13]])
    )
    row = make_table([(record.settings, record)]).rows[0]
    assert row.warning.startswith("barely trained: 12.5 % on a task just learnt, 10.0 % before training")
    lost = make_record(result=replace(make_record().result, accuracies=[[0.1, 0.1], [0.9, 0.1], [0.0, 0.25]]))
    assert make_table([(lost.settings, lost)]).rows[0].warning.startswith("near chance in the end")
    fine = make_record()
    assert make_table([(fine.settings, fine)]).rows[0].warning == ""


def test_runs_with_other_settings_are_another_row(pairs, make_record, tiny):
    other = tiny("sgd", 1, train={"epochs": 7}).resolved()
    rows = make_table([*pairs, (other, make_record(settings=other))]).rows
    assert [row.method for row in rows] == ["sgd epochs=2", "sgd epochs=7", "ewc", "ogd"]
    assert [len(row.seeds) for row in rows] == [2, 1, 1, 2]


def test_a_network_that_only_one_method_has_is_said(pairs, make_record, tiny):
    other = tiny("mas", 1).resolved()
    other = replace(other, net=replace(other.net, settings={**other.net.settings, "hidden": [32]}))
    rows = make_table([*pairs, (other, make_record(settings=other))]).rows
    assert [row.method for row in rows] == ["sgd", "ewc", "mas hidden=32", "ogd"]
    named = replace(other, method_label="mas hidden=32")
    rows = make_table([*pairs, (named, make_record(settings=named))]).rows
    assert [row.method for row in rows] == ["sgd", "ewc", "mas hidden=32", "ogd"], "not said twice"


def test_markdown_latex_csv_json(pairs):
    table = make_table(pairs, ["aac", "memory"])
    markdown = table.render("markdown")
    assert "| rotated-mnist-mini | ogd | 2 | 80.00 ± 7.07 | 24 B |" in markdown
    assert "ewc: unsupported, no &lt;such> thing" in markdown
    latex = table.render("latex")
    assert r"ogd & 80.00 $\pm$ 7.07 & 24 B \\" in latex
    assert latex.count("\\\\") == 4
    rows = list(csv.DictReader(io.StringIO(table.render("csv"))))
    assert float(rows[2]["aac"]) == pytest.approx(0.8)
    assert rows[1]["aac"] == ""
    values = json.loads(table.render("json"))
    assert values[2]["metrics"]["aac"]["values"] == pytest.approx([0.75, 0.85])
    assert values[1]["metrics"]["aac"]["mean"] is None


def test_terminal(pairs):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(make_table(pairs).rich())
    text = console.export_text()
    assert "80.0±7.1" in text
    assert "unsupported" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_gets_fewer_columns_but_never_fewer_digits(pairs, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(make_table(pairs).rich())
    text = console.export_text()
    assert "80.0±7.1" in text
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert ("left out for want of width" in text) == (width < 80)


HOSTILE = [
    "a|b",
    "=cmd|' /C calc'!A0",
    "$\\frac{$",
    "50% & _x_ ~^ \\",
    "red\x1b[31m",
    "line\nbreak",
    "<img src=x>",
]


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_are_text_in_every_format(make_record, tmp_path, label):
    record = make_record()
    pairs = [(replace(record.settings, method_label=label, stream_label=label), record)]
    table = make_table(pairs)
    shown = plain_text(label)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table.rich())
    assert "\x1b" not in console.export_text()
    cells = next(csv.reader(io.StringIO(table.render("csv").splitlines()[1])))
    assert cells[1].lstrip("'") == shown
    assert not cells[1].startswith(("=", "+", "-", "@"))
    line = table.render("markdown").splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", line)) == 3 + len(DEFAULT_METRICS) + 1
    latex = table.render("latex").splitlines()[4]
    assert len(re.findall(r"(?<!\\)&", latex)) == 1 + len(DEFAULT_METRICS)
    assert re.findall(r"(?<!\\)[%#_~^]", latex) == []
    path = save_figure(make_figure("accuracy", pairs), tmp_path / "f.svg")
    assert escape(shown.strip(), quote=False) in path.read_text(), "the legend shows the label as it is"


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


def test_two_settings_with_one_label_are_two_lines_that_say_what_differs(make_record, tiny):
    runs = [tiny("ewc", 1, train={"epochs": n}).resolved() for n in (2, 7)]
    pairs = [
        (replace(run, method_label="ewc"), make_record(settings=run, id=str(n), final=0.1 * n))
        for n, run in enumerate(runs)
    ]
    figure = make_figure("first-task", pairs)
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert lines == {"ewc epochs=2": pytest.approx([90, 0]), "ewc epochs=7": pytest.approx([90, 10])}
    styles = [line.get_linestyle() for line in figure.axes[0].get_lines()]
    assert len(set(styles)) == 2


@pytest.mark.parametrize("count", [1, 10, 16])
def test_the_legend_fits_the_figure(make_record, count):
    record = make_record()
    labels = [f"a-method-with-a-name-{number}" for number in range(count)]
    pairs = [
        (
            replace(record.settings, method_label=label),
            replace(record, settings=replace(record.settings, method_label=label)),
        )
        for label in labels
    ]
    figure = make_figure("accuracy", pairs)
    figure.canvas.draw()
    extent, page = figure.legends[0].get_window_extent(), figure.bbox
    assert extent.x0 >= page.x0 - 1
    assert extent.x1 <= page.x1 + 1
    assert extent.y0 >= page.y0 - 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == sorted(labels, key=natural)
    assert figure.axes[0].get_window_extent().height > 72, "the legend takes no room from the panel"
    assert figure.get_size_inches()[0] == pytest.approx(3.4), "one panel fills a column"


def test_bands_end_at_0_and_100(make_record):
    rows = [[[0.5, 0.5], [value, 0.5], [value, 0.5]] for value in (0.5, 1.0)]
    records = [
        make_record(seed=seed, result=replace(make_record().result, accuracies=some))
        for seed, some in enumerate(rows)
    ]
    figure = make_figure("first-task", [(record.settings, record) for record in records])
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == 100
    assert band.min() == pytest.approx(75 - 50 / math.sqrt(2))


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
    assert page.count("<svg") == 1, "the figure for readers without scripts"
    assert "default-src 'none'" in page
    assert pairs[0][1].result_hash[:16] in page
    for word in (" src=", "@import", "url(http", 'href="http', "<link"):
        assert word not in page


def test_an_empty_report_is_refused():
    with pytest.raises(DataError, match="run the experiment first"):
        render_report([], title="x")
