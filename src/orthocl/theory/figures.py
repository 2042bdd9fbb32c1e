"""Figures of the theory, saved by suffix: .svg, .pdf or .png."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter, NullLocator
from torch import Tensor

from orthocl.palette import BLUE, GREEN, GREY, INK, ORANGE, VERMILION, method_style
from orthocl.plotting import (
    PAGE,
    SMALL,
    check_suffix,
    describe,
    legend_beside,
    legend_inside,
    panels,
    save_figure,
)
from orthocl.theory.bridge import BridgeReport
from orthocl.theory.certificate import Certificate
from orthocl.theory.curriculum import Order
from orthocl.theory.generalisation import Bound
from orthocl.theory.judgement import Judgement, Pair
from orthocl.theory.overlap import TangentDrift
from orthocl.theory.overlay import Overlay


def check_path(path: Path) -> None:
    """Reject a path of an unknown format before hours of work."""
    check_suffix(path)


def save(figure: Figure, path: Path) -> None:
    """Save a figure in the format of the path's suffix; its folder is created if needed."""
    save_figure(figure, path)


def _heat(axis: Axes, table: Tensor, title: str, digits: int = 2) -> None:
    image = axis.imshow(table.numpy(), cmap="Blues", aspect="auto")
    axis.grid(False)
    count = table.shape[1]
    axis.set_xticks(range(count), [str(task + 1) for task in range(count)])
    describe(axis, title)
    if count <= 8:
        middle = float(table.max() + table.min()) / 2
        for row in range(table.shape[0]):
            for column in range(count):
                value = float(table[row, column])
                colour = "white" if value > middle else "black"
                axis.text(
                    column,
                    row,
                    f"{value:.{digits}f}",
                    ha="center",
                    va="center",
                    fontsize=SMALL - 1,
                    color=colour,
                )
    figure = axis.figure
    figure.colorbar(image, ax=axis, shrink=0.85).ax.tick_params(labelsize=SMALL)


def solution_figure(
    accuracies: Tensor, dissimilarities: Sequence[float], distances: Sequence[float]
) -> Figure:
    """Test accuracy of every task after every task, S per task, and the distance from initialisation."""
    figure, (left, middle, right) = panels(3)
    _heat(left, accuracies, "test accuracy in closed form")
    left.set_yticks(range(len(accuracies)), [str(task) for task in range(len(accuracies))])
    left.set_xlabel("task")
    left.set_ylabel("after task")
    numbers = range(1, len(dissimilarities) + 1)
    middle.bar(numbers, dissimilarities, color=BLUE)
    describe(middle, "dissimilarity $S_t$ to what came before")
    right.plot(numbers, distances, marker="o", color=ORANGE)
    right.set_ylim(0, 1.15 * max(*distances, 1e-12))
    describe(right, r"distance $\|w_t - w_0\|$")
    for axis in (middle, right):
        axis.set_xticks(list(numbers))
        axis.set_xlabel("task")
    return figure


def bound_figure(bounds: Sequence[Bound], risks: Sequence[float], errors: Sequence[float]) -> Figure:
    """The terms of the bound of every task, stacked, with the measured risk."""
    figure, (axis,) = panels(1, width=0.75 * PAGE, height=2.8)
    numbers = [bound.task for bound in bounds]
    base = [0.0] * len(bounds)
    names = list(dict.fromkeys(name for bound in bounds for name in bound.terms))
    for name, colour in zip(names, (BLUE, ORANGE, GREY, GREEN), strict=False):
        heights = [bound.terms.get(name, 0.0) for bound in bounds]
        axis.bar(numbers, heights, bottom=base, label=name, color=colour, width=0.6)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    axis.plot(numbers, risks, "_", color=INK, markersize=22, markeredgewidth=2, label="measured risk")
    axis.plot(numbers, errors, "x", color=VERMILION, label="measured 0-1 error")
    axis.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    axis.set_xticks(numbers)
    axis.set_xlabel("task")
    of = " of a draw around f" if bounds[0].form == "pac-bayes" else ""
    describe(axis, f"{bounds[0].form} bound{of} after task {bounds[0].after} (above 1: says nothing)")
    legend_beside(axis)
    return figure


def certificate_figure(certificates: Sequence[Certificate], errors: Sequence[float]) -> Figure:
    """Every valid bound for every task, and the error measured on test data."""
    figure, (axis,) = panels(1, width=0.75 * PAGE, height=2.8)
    forms = list(dict.fromkeys(bound.form for found in certificates for bound in found.bounds))
    width = 0.8 / max(1, len(forms))
    for place, (form, colour) in enumerate(zip(forms, (GREY, BLUE, ORANGE, GREEN), strict=False)):
        bounds = [bound for found in certificates for bound in found.bounds if bound.form == form]
        name = "pac-bayes, of f: twice that of a draw" if form == "pac-bayes" else form
        where = [bound.task + (place - (len(forms) - 1) / 2) * width for bound in bounds]
        axis.bar(
            where,
            [min(1.0, bound.deterministic) for bound in bounds],
            width=0.9 * width,
            color=colour,
            label=name,
        )
    numbers = [found.task for found in certificates]
    axis.plot(numbers, errors, "_", color=INK, markersize=22, markeredgewidth=2, label="error on test data")
    axis.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    axis.set_xticks(numbers)
    axis.set_xlabel("task")
    describe(axis, f"bounds of the error after task {certificates[0].after} (cut at 1)")
    legend_beside(axis)
    return figure


def order_figure(table: Tensor, orders: Sequence[Order]) -> Figure:
    """Dissimilarities between tasks, and what each order costs."""
    figure, (left, right) = panels(2, height=2.8)
    _heat(left, table, "dissimilarity $S$ of a task after another", digits=1)
    left.set_yticks(range(len(table)), ["start", *(str(task) for task in range(1, len(table)))])
    left.set_xlabel("task")
    left.set_ylabel("after")
    names = [f"{order.search}{' (exact)' if order.exact else ''}" for order in orders]
    colours = [GREEN if order.exact else BLUE for order in orders]
    best = min(order.complexity for order in orders)
    bars = right.barh(names, [order.complexity for order in orders], color=colours)
    above = [100 * (order.complexity / best - 1) if best > 0 else 0.0 for order in orders]
    right.bar_label(
        bars, [f"+{each:.2g} %" if each else "smallest" for each in above], padding=3, fontsize=SMALL
    )
    right.margins(x=0.2)
    right.invert_yaxis()
    describe(right, "complexity proxy $R_T$ of an order")
    return figure


def overlay_figure(overlays: Sequence[Overlay]) -> Figure:
    """Distance to the closed form against width, and outputs of the widest network against it."""
    figure, (left, right) = panels(2, height=2.8)
    widths = [one.width for one in overlays]
    left.loglog(widths, [one.error for one in overlays], "o-", color=BLUE, label="own kernel at the start")
    left.loglog(
        widths, [one.infinite_error for one in overlays], "s-", color=ORANGE, label="infinitely wide kernel"
    )
    left.loglog(widths, [one.kernel_error for one in overlays], "^:", color=GREY, label="kernel (relative)")
    first = overlays[0].error
    left.loglog(
        widths,
        [first * (widths[0] / width) ** 0.5 for width in widths],
        "--",
        color=INK,
        linewidth=0.8,
        label="width$^{-1/2}$",
    )
    left.set_xticks(widths, [str(width) for width in widths])
    left.xaxis.set_minor_locator(NullLocator())
    left.set_xlabel("width")
    describe(left, "trained network - closed form (rms)")
    legend_inside(left)
    last = overlays[-1]
    for task in range(len(last.trained)):
        right.scatter(
            last.predicted[task].numpy(), last.trained[task].numpy(), s=9, label=f"after task {task + 1}"
        )
    low, high = float(last.predicted.min()), float(last.predicted.max())
    right.plot([low, high], [low, high], "-", color=INK, linewidth=0.8)
    right.set_xlabel("closed form")
    right.set_ylabel("trained network")
    describe(right, f"outputs at width {last.width}")
    legend_inside(right)
    return figure


def forecast_figure(
    seeds: Sequence[Sequence[Pair]], judged: Mapping[str, Judgement], rows: Sequence[Mapping[str, float]]
) -> Figure:
    """Forecast against measured change, what beats the trivial predictors, and the expected loss per task."""
    figure, (left, middle, right) = panels(3)
    _scatter_of_pairs(left, [pair for each in seeds for pair in each])
    describe(left, f"mean squared change of outputs, {len(seeds)} seeds")
    _correlations(middle, judged)
    numbers = [int(row["task"]) for row in rows]
    for rule in (name for name in ("sgd", "ogd", "ogd+", "gpm") if name in rows[0]):
        colour, marker = method_style(rule)
        right.plot(numbers, [row[rule] for row in rows], f"{marker}-", color=colour, markersize=4, label=rule)
    measured = [row["measured"] for row in rows]
    right.plot(numbers, measured, "_", color=INK, markersize=14, markeredgewidth=2, label="measured")
    right.set_xticks(numbers)
    right.set_xlabel("task learnt")
    describe(right, "accuracy lost by earlier tasks")
    legend_inside(right)
    return figure


def _scatter_of_pairs(axis: Axes, pairs: Sequence[Pair]) -> None:
    """Forecast against measured change of every pair of tasks; the longer ago, the lighter."""
    shown = [pair for pair in pairs if min(pair.expected_change, pair.measured_change) > 0]
    furthest = max((pair.lag for pair in shown), default=1)
    for lag in range(1, furthest + 1):
        some = [pair for pair in shown if pair.lag == lag]
        axis.loglog(
            [pair.expected_change for pair in some],
            [pair.measured_change for pair in some],
            "o",
            color=str(0.75 * (lag - 1) / max(1, furthest - 1)),
            markersize=4,
            markeredgewidth=0,
            label=f"{lag} ago" if lag in (1, furthest) else None,
        )
    values = [v for pair in shown for v in (pair.expected_change, pair.measured_change)]
    if values:
        axis.loglog([min(values), max(values)], [min(values), max(values)], "-", color=ORANGE, linewidth=0.8)
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        scale.set_major_formatter(FormatStrFormatter("%g"))
        scale.set_minor_formatter(NullFormatter())
    axis.set_xlabel("forecast")
    axis.set_ylabel("measured")
    legend_inside(axis)


def _correlations(axis: Axes, judged: Mapping[str, Judgement]) -> None:
    """Rank correlations with their intervals over seeds."""
    names = ("forecast", "lag", "later", "partial")
    labels = ("forecast", "lag\nalone", "later\ntasks\nalone", "forecast\ngiven lag")
    for place, (quantity, colour) in enumerate(zip(judged, (BLUE, ORANGE), strict=False)):
        found = [getattr(judged[quantity], name) for name in names]
        where = [number + 0.25 * (place - 0.5) for number in range(len(names))]
        low = [max(0.0, each.mean - each.low) for each in found]
        high = [max(0.0, each.high - each.mean) for each in found]
        means = [each.mean for each in found]
        axis.errorbar(where, means, yerr=[low, high], fmt="o", color=colour, capsize=3, label=quantity)
    axis.axhline(0, color=INK, linewidth=0.6)
    axis.set_xticks(range(len(names)), labels, fontsize=SMALL)
    axis.set_ylim(-1.05, 1.05)
    describe(axis, "rank correlation with what happened")
    legend_inside(axis, loc="lower left")


def overlap_figure(table: Tensor, drift: TangentDrift | None = None) -> Figure:
    """The overlap of the tasks' tangent spaces, and how the tangents of each task turned as others were learnt."""
    figure, axes = panels(1 if drift is None else 2, height=2.8)
    _heat(axes[0], table, "overlap: mean squared cosine of principal angles")
    axes[0].set_yticks(range(len(table)), [str(task + 1) for task in range(len(table))])
    axes[0].set_xlabel("task")
    axes[0].set_ylabel("task")
    if drift is not None:
        _heat(axes[1], drift.cosine.nan_to_num(1.0), "cosine of tangents, own end to the end of another")
        axes[1].set_yticks(range(len(table)), [str(task + 1) for task in range(len(table))])
        axes[1].set_xlabel("after task")
        axes[1].set_ylabel("tangents of task")
    return figure


def bridge_figure(report: BridgeReport) -> Figure:
    """Predicted against measured change of old outputs, forgetting, and how far the tangents turned."""
    figure, (left, middle, right) = panels(3)
    predicted = [pair.predicted_change for pair in report.pairs]
    measured = [pair.measured_change for pair in report.pairs]
    left.loglog(predicted, measured, "o", color=BLUE, markersize=4)
    if report.pairs:
        span = [min(predicted + measured), max(predicted + measured)]
        left.loglog(span, span, "-", color=INK, linewidth=0.8)
    left.set_xlabel("predicted mean squared change (H / n)")
    left.set_ylabel("measured")
    describe(left, f"old outputs, correlation of logs {report.correlation():.2f}")
    numbers = [task.task for task in report.tasks]
    middle.plot(numbers, [task.forgetting for task in report.tasks], "o-", color=ORANGE, label="measured")
    forecast = [task.predicted_forgetting for task in report.tasks]
    middle.plot(numbers, forecast, "o--", color=ORANGE, markerfacecolor="white", label="predicted")
    describe(middle, "accuracy lost on training samples")
    legend_inside(middle)
    right.plot(numbers, [task.tangent_cosine for task in report.tasks], "s-", color=BLUE)
    right.set_ylim(0, 1.05)
    describe(right, "cosine of tangents, own end to last end")
    for axis in (middle, right):
        axis.set_xticks(numbers)
        axis.set_xlabel("task")
    return figure
