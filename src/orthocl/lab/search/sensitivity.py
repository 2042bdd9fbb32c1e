"""The sensitivity figure of a search: how the score depends on each axis of the grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orthocl.errors import DataError
from orthocl.lab.reporting.table import NOT_PERCENT, TITLES
from orthocl.lab.search.search import SearchGroup, SearchResult, Trial
from orthocl.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CUT, BEST, ALL = COLOURS[1], COLOURS[0], "#999999"


def sensitivity_figure(result: SearchResult) -> Figure:
    """One row per stream and method, one panel per axis: every candidate, and the best for each value of the axis.

    Candidates that were cut are drawn at their score when they were cut, with another mark; failed ones not at all.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = [group for group in result.groups if group.axes]
    if not any(_score(trial) is not None for group in groups for trial in group.trials):
        raise DataError(
            "there is no candidate with a score to draw: the search has no grid, or all runs failed"
        )
    columns = max(len(group.axes) for group in groups)
    figure = Figure(figsize=(3.4 * columns + 0.4, 2.9 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    for row, group in enumerate(groups):
        for column, axis in enumerate(group.axes):
            panel = figure.add_subplot(len(groups), columns, row * columns + column + 1)
            _panel(panel, group, axis, result)
            panel.set_ylabel(
                TITLES.get(result.settings.metric, result.settings.metric) if column == 0 else ""
            )
    return figure


def _panel(panel: Axes, group: SearchGroup, axis: str, result: SearchResult) -> None:
    positions = {repr(value): number for number, value in enumerate(group.axes[axis])}
    scale = 1.0 if result.settings.metric in NOT_PERCENT else 100.0
    for status, colour, mark, label in (("finished", ALL, "o", "finished"), ("cut", CUT, "x", "cut early")):
        points = [
            (positions[repr(trial.point[axis])], scale * score)
            for trial in group.trials
            if trial.status == status and (score := _score(trial)) is not None
        ]
        if points:
            panel.scatter(
                [x for x, _ in points],
                [y for _, y in points],
                s=18,
                color=colour,
                marker=mark,
                alpha=0.7,
                label=label,
            )
    best: dict[int, float] = {}
    for trial in group.trials:
        if trial.status == "finished" and trial.score is not None:
            at = positions[repr(trial.point[axis])]
            if at not in best or result.rank(trial.score) > result.rank(best[at]):
                best[at] = trial.score
    where = sorted(best)
    panel.plot(where, [scale * best[at] for at in where], color=BEST, marker="o", markersize=4, label="best")
    panel.set_xticks(range(len(positions)), [_text(value) for value in group.axes[axis]], fontsize=8)
    panel.set_xlim(-0.5, len(positions) - 0.5)
    panel.set_xlabel(axis, fontsize=9)
    failed = sum(trial.status == "failed" for trial in group.trials)
    panel.set_title(f"{group.stream}, {group.method}" + (f" ({failed} failed)" if failed else ""), fontsize=9)
    panel.grid(True, color="#8884", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.legend(fontsize=7, frameon=False)


def _score(trial: Trial) -> float | None:
    if trial.score is not None:
        return float(trial.score)
    early = None if trial.cut_after is None else trial.early.get(trial.cut_after)
    return None if early is None or early != early else float(early)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
