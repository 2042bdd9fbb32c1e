"""What the numbers say, in sentences: who leads on a stream and at what price, and which runs have hardly learnt."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orthocl.formatting import size_text
from orthocl.lab.reporting.groups import RunGroup
from orthocl.lab.reporting.paired import marks
from orthocl.lab.reporting.price import plain_sgd, price
from orthocl.lab.store.record import Record

NEAR_CHANCE = 0.05
"""Accuracy above the untrained network's below which a result is said to be near chance."""
BOUNDS_ABOVE = ("joint",)
"""Methods that see all data at once: a bound, not a competitor."""


@dataclass(frozen=True)
class Finding:
    """What happened on one stream.

    Args:
        stream: label of the stream.
        headline: one sentence.
        tiles: (what, value, remark) of the few numbers that matter most.
    """

    stream: str
    headline: str
    tiles: tuple[tuple[str, str, str], ...] = ()


def find(groups: Sequence[RunGroup]) -> list[Finding]:
    """A finding for every stream, in the order of the groups."""
    streams = dict.fromkeys(group.stream for group in groups)
    return [_finding(stream, [group for group in groups if group.stream == stream]) for stream in streams]


def near_chance(group: RunGroup) -> str:
    """A warning if the runs of a group have hardly learnt, or kept, anything; empty if all is well."""
    found = [_learning(record) for record in group.finished if record.result.accuracies[1:]]
    if not found or not all(math.isfinite(number) for numbers in found for number in numbers):
        return ""
    start, learnt, final = (statistics.fmean(column) for column in zip(*found, strict=True))
    if learnt < start + NEAR_CHANCE:
        return (
            f"barely trained: {100 * learnt:.1f} % on a task just learnt, {100 * start:.1f} % before training; "
            "raise train.learning_rate or train.epochs"
        )
    if final < start + NEAR_CHANCE:
        return f"near chance in the end: {100 * final:.1f} %, {100 * start:.1f} % before training"
    return ""


def _learning(record: Record) -> tuple[float, float, float]:
    """Mean accuracy before training, on each task just after learning it, and on all tasks in the end."""
    rows = record.result.accuracies
    own = [row[task] for task, row in enumerate(rows[1:]) if task < len(row)]
    return statistics.fmean(rows[0]), statistics.fmean(own), statistics.fmean(rows[-1])


def _finding(stream: str, groups: Sequence[RunGroup]) -> Finding:
    rivals = [group for group in groups if group.finished and group.method not in BOUNDS_ABOVE]
    if not rivals:
        above = next((group for group in groups if group.finished), None)
        if above is None:
            return Finding(stream, f"On {stream} there is no finished run yet.")
        text = f"On {stream}, {above.label}, the reference above, reaches {100 * mean(above, 'aac'):.1f} %."
        return Finding(stream, text)
    several = [group for group in rivals if len(group.finished) > 1]  # one seed may be luck
    best = max(several or rivals, key=lambda group: mean(group, "aac"))
    plain = plain_sgd(rivals)
    if near_chance(best):
        return Finding(
            stream, f"On {stream} nothing has been learnt: the best, {best.label}, is {near_chance(best)}."
        )
    headline = f"On {stream}, {best.label} keeps {100 * mean(best, 'aac'):.1f} %"
    if plain is None:
        return Finding(stream, headline + _lead(best, rivals) + ".", tuple(_tiles(best, None, rivals)))
    if best is plain:
        text = f"On {stream}, nothing beats plain SGD, which keeps {100 * mean(best, 'aac'):.1f} %."
        return Finding(stream, text, tuple(_tiles(best, plain, rivals)))
    margin = 100 * (mean(best, "aac") - mean(plain, "aac"))
    headline += f", {margin:.1f} points above plain SGD"
    cost = price(best, plain)
    if str(cost):
        headline += f", for {cost} the training time" + (f" ({cost.work})" if cost.work else "")
    return Finding(stream, headline + _lead(best, rivals) + ".", tuple(_tiles(best, plain, rivals)))


def _lead(best: RunGroup, rivals: Sequence[RunGroup]) -> str:
    """Whom the seeds cannot tell from the best."""
    tied = ties(best, rivals)
    if not tied:
        return ""
    names = " and ".join([", ".join(tied[:-1]), tied[-1]]) if len(tied) > 1 else tied[0]
    seeds = len(best.finished)
    return f"; {seeds} seeds cannot tell it from {names if len(tied) <= 3 else f'{len(tied)} others'}"


def ties(best: RunGroup, rivals: Sequence[RunGroup]) -> list[str]:
    """Labels of those that a paired test over seeds cannot tell from the best in average accuracy."""
    values = [{record.settings.seed: record.metric("aac") for record in group.finished} for group in rivals]
    found = marks(values)
    return [
        group.label for group, mark in zip(rivals, found, strict=True) if mark == "tie" and group is not best
    ]


def _tiles(best: RunGroup, plain: RunGroup | None, rivals: Sequence[RunGroup]) -> list[tuple[str, str, str]]:
    others = [group for group in rivals if group is not best]
    second = max(others, key=lambda group: mean(group, "aac"), default=None)
    spread = _spread(best, "aac")
    shown = f"{100 * mean(best, 'aac'):.1f} %" + ("" if spread is None else f" ± {100 * spread:.1f}")
    remark = "the only method here"
    if second is not None:
        tied = second.label in ties(best, rivals)
        margin = 100 * (mean(best, "aac") - mean(second, "aac"))
        remark = f"{margin:.1f} points above {second.label}" + (
            ", within the noise of the seeds" if tied else ""
        )
    tiles = [(f"average accuracy of {best.label}", shown, remark)]
    lost = mean(best, "forgetting")
    if math.isfinite(lost):
        against = "of accuracy lost by a task after its best"
        if plain is not None and plain is not best:
            against = f"plain SGD forgets {100 * mean(plain, 'forgetting'):.1f}"
        tiles.append(("forgetting", f"{100 * lost:.1f} points", against))
    cost, memory = price(best, plain), mean(best, "memory")
    kept = f"{size_text(memory)} of memory" if memory else "no memory of its own"
    if str(cost) and plain is not best:
        remark = f"the training time of SGD{f' ({cost.notes})' if cost.notes else ''}; {kept}"
        tiles.append(("price", str(cost), remark))
    elif math.isfinite(memory):
        why = "it is what times are compared with" if plain is best else f"time not compared: {cost.remark}"
        tiles.append(("price", size_text(memory), f"of memory; {why}"))
    return tiles


def mean(group: RunGroup, metric: str) -> float:
    """A metric's mean over the finished runs of a group; NaN without any."""
    values = [record.metric(metric) for record in group.finished]
    return statistics.fmean(values) if values else math.nan


def _spread(group: RunGroup, metric: str) -> float | None:
    values = [record.metric(metric) for record in group.finished]
    return statistics.stdev(values) if len(values) > 1 else None
