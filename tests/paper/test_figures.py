"""Each figure of the paper from records made by hand: the numbers behind it, the verdict, and that it is drawn."""

import pytest

from orthocl.lab import load_experiment
from orthocl.paper.authors import authors_grid
from orthocl.paper.authors_grid import grid_page, ours_at, verdict
from orthocl.paper.evidence import Evidence, memorised
from orthocl.paper.experiments import experiment_folder
from orthocl.paper.figure_4 import by_memory, figure_4
from orthocl.paper.figure_5 import curve, figure_5
from orthocl.paper.figure_6 import figure_6, through_tasks
from orthocl.paper.figures_1_3 import by_width, figure_1, figure_2, figure_3, hidden_size
from orthocl.paper.items import get_item, item_runs


def drawn(page) -> list[list[str]]:
    """Labels of the lines in every panel; the names of the axes must be inside of the figure."""
    figure = page.draw()
    figure.canvas.draw()
    for axis in figure.axes:
        for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
            box = text.get_window_extent()
            assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, text.get_text()
            assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, text.get_text()
    return [[text.get_label() for text in axis.get_lines()] for axis in figure.axes]


def remembered(run, variation):
    """Accuracies on memorised samples that end at 1 + variation for every task."""
    tasks = run.resolved().stream.tasks
    rows = [
        {task: 1.0 if task == after else 0.99 for task in range(1, after + 1)} for after in range(1, tasks)
    ]
    return [*rows, {task: 1.0 if task == tasks else 1.0 + variation for task in range(1, tasks + 1)}]


# ---- Figures 1 to 3 --------------------------------------------------------------------------------------------


@pytest.fixture
def widths(evidence_of, record_for):
    """The wider, the less is lost: 40 points over the hidden size in hundreds."""

    def make(run):
        variation = -0.4 / (hidden_size(run) / 100) - 0.001 * (run.seed % 3)
        return record_for(run, memorised=remembered(run, variation))

    return lambda name: evidence_of(name, make, seeds=[1, 2, 3])


def test_figure_1(widths):
    page = figure_1(widths("figure-1"))
    points = by_width(widths("figure-1"), "permuted-mnist", "ogd", memorised(1))
    assert [width for width, _ in points] == [100, 200, 300, 400]
    assert points[1][1].mean == pytest.approx(-20.1)
    assert page.verdicts[0].status == "holds"
    assert "-40.10 at 100 → -20.10 at 200" in page.verdicts[0].detail
    assert drawn(page) == [["ogd", "ogd+"]] * 3


def test_figure_2_is_of_every_task_and_ogd(widths):
    page = figure_2(widths("figure-2"))
    assert {line.method for line in page.comparisons[0].lines} == {"ogd"}
    assert page.comparisons[0].lines[0].ours.mean == pytest.approx(-40.1)
    assert page.verdicts[0].status == "holds"
    assert drawn(page)[0] == [f"{width} hidden units" for width in (100, 200, 300, 400)]


def test_figure_2_has_a_colour_per_width_in_all_panels(evidence_of, record_for):
    """Also where a panel lacks the narrowest network."""

    def make(run):
        missing = run.stream_label == "split-cifar100" and hidden_size(run) == 100
        return None if missing else record_for(run, memorised=remembered(run, -0.1))

    colours = {}
    for axis in figure_2(evidence_of("figure-2", make, seeds=[1])).draw().axes:
        for line in axis.get_lines():
            colours.setdefault(line.get_label(), set()).add(line.get_color())
    assert len(colours) == 4
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 4


def test_figure_3_is_of_ogd_plus_and_wants_a_uniform_fall(widths, evidence_of, record_for):
    page = figure_3(widths("figure-3"))
    assert {line.method for line in page.comparisons[0].lines} == {"ogd+"}
    assert page.verdicts[0].status == "holds"
    bent = {100: -0.4, 200: -0.1, 300: -0.2, 400: -0.05}
    records = evidence_of(
        "figure-3",
        lambda run: record_for(run, memorised=remembered(run, bent[hidden_size(run)] - 0.001 * run.seed)),
        seeds=[1, 2, 3],
    )
    assert figure_3(records).verdicts[0].status == "undecided"


# ---- Figure 4 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sign", "status"), [(1, "holds"), (-1, "does not hold")])
def test_figure_4(evidence_of, record_for, sign, status):
    def make(run):
        size = run.method.settings["memory_per_task"]
        return record_for(run, memorised=remembered(run, -0.4 + sign * size / 1000 - 0.001 * run.seed))

    evidence = evidence_of("figure-4", make, seeds=[1, 2, 3])
    assert [size for size, _ in by_memory(evidence, "permuted-mnist", "ogd", memorised(1))] == [
        100,
        150,
        200,
        250,
        300,
    ]
    page = figure_4(evidence)
    assert page.comparisons[0].lines[0].ours.mean == pytest.approx(-40.2 + sign * 10)
    assert page.verdicts[0].status == status
    assert drawn(page) == [["ogd"], ["ogd+"]]  # each on a scale of its own


# ---- Figure 5 --------------------------------------------------------------------------------------------------


def test_figure_5(evidence_of, record_for):
    """Two points per task, at steps 250 and 400; A-GEM keeps every task better."""
    level = {"sgd": 0.5, "ogd": 0.6, "ogd+": 0.7, "a-gem": 0.8}

    def make(run):
        curves = [
            {"task": task, "step": step, "accuracies": [level[run.method_label] + 0.001 * run.seed] * 15}
            for task in range(1, 16)
            for step in (250, 400)
        ]
        return record_for(run, curves=curves)

    evidence = evidence_of("figure-5", make, seeds=[1, 2])
    steps, samples = curve(evidence.records("rotated-mnist", "sgd"), task=14)
    assert steps == [13 * 400 + 250, 14 * 400, 14 * 400 + 250, 15 * 400]
    assert samples[0].values == pytest.approx({1: 50.1, 2: 50.2})
    page = figure_5(evidence)
    assert len(page.comparisons[0].lines) == 10 * 4
    assert [verdict.status for verdict in page.verdicts] == ["holds", "holds"]
    assert drawn(page) == [["sgd", "ogd", "ogd+", "a-gem"]] * 10
    assert all(run.train.evaluate_every == 250 for run in evidence.runs)


# ---- Figure 6 --------------------------------------------------------------------------------------------------


def test_figure_6(evidence_of, record_for):
    gain = {"ogd+": 0.1}
    evidence = evidence_of(
        "figure-6",
        lambda run: record_for(run, 0.5 + gain.get(run.method_label, 0.0) + 0.001 * run.seed),
        seeds=[1, 2],
    )
    samples = through_tasks(evidence.records("rotated-mnist", "ogd"), task=7)
    assert [round(sample.mean, 2) for sample in samples] == [95.0] * 8 + [50.15]
    page = figure_6(evidence)
    assert page.verdicts[0].status == "holds"
    panels = drawn(page)
    assert len(panels) == 4 * 2
    assert panels[0] == ["sgd", "ewc", "si", "mas", "stable-sgd", "ogd", "ogd+"]


# ---- the authors' grid -----------------------------------------------------------------------------------------


def test_authors_grid_without_runs_still_shows_theirs():
    page = grid_page(Evidence(item_runs(get_item("authors-grid")).runs))
    rows = page.words[0].rows
    assert rows[0][1:] == ("c = 0.1", "c = 1", "c = 10", "c = 100", "c = 1000", "c = 10000")
    assert max(float(value) for value in rows[3][1:]) == 70.32  # MAS, the best of all
    assert page.verdicts[0].status == "not run"
    assert len(drawn(page)) == 3


def test_authors_grid_with_the_protocols_point(evidence_of, record_for):
    """EWC where they have it, SI twenty points below."""
    theirs = {"ewc": 0.5748, "si": 0.6864, "mas": 0.6509}
    shift = {"si": -0.2}

    def make(run):
        method = run.method.name
        wanted = theirs.get(method, 0.5) + shift.get(method, 0.0)
        return record_for(run, [wanted] * 20)

    page = grid_page(evidence_of("authors-grid", make))
    point = next(
        p
        for p in authors_grid()
        if (p.method, p.learning_rate, p.batch_size, p.coefficient) == ("ewc", 1e-3, 32, 10)
    )
    assert ours_at(evidence_of("authors-grid", make), point).mean == pytest.approx(57.48)
    assert len(page.comparisons[0].lines) == 3
    assert page.verdicts[0].status == "holds with a condition"
    assert "si (1 of 72 points run): no, largest difference -20.00" in page.verdicts[0].detail
    assert page.verdicts[0].condition == "on ewc (1 of 72 points run) and mas (1 of 72 points run) only"
    assert "In 105 of the 216 runs" in page.notes[0]


def test_authors_grid_where_training_diverges():
    """SI diverges where theirs did, MAS where it did not."""
    runs = load_experiment(experiment_folder() / "authors_grid.toml").runs
    chosen = {"si": 1000.0, "mas": 0.2}  # the authors' coefficients 1,000 and 1
    diverged = [
        (run, "the loss became inf")
        for run in runs
        if run.method.settings["strength"] == chosen.get(run.method.name)
        and (run.train.learning_rate, run.train.batch_size) == (1e-3, 32)
    ]
    assert len(diverged) == 2
    found = verdict(Evidence(tuple(runs), (), tuple(diverged)))
    assert found.status == "holds with a condition"
    assert "si (1 of 72 points run): yes, 1 diverged, in theirs 1 of them" in found.detail
    assert "mas (1 of 72 points run): no, 1 diverged, in theirs 0 of them" in found.detail
    assert "ewc: not run" in found.detail
