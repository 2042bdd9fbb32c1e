"""What the numbers say, in sentences: who leads on a stream and at what price, and which runs have hardly learnt."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orthocl.formatting import joined, size_text
from orthocl.lab.reporting.groups import RunGroup, family
from orthocl.lab.reporting.paired import LEAST_SEEDS, standing
from orthocl.lab.reporting.price import comparable, plain_sgd, price
from orthocl.lab.store.record import Record

NEAR_CHANCE = 0.05
"""Accuracy above the untrained network's below which a result is said to be near chance."""
BARELY = "barely trained"
"""How the warning about runs that have not even learnt begins."""
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


def hardly_learnt(records: Sequence[Record]) -> str:
    """A warning if finished runs have hardly learnt, or kept, anything on average; empty if all is well."""
    found = [_learning(record) for record in records if record.result.accuracies[1:]]
    if not found or not all(math.isfinite(number) for numbers in found for number in numbers):
        return ""
    start, learnt, final = (statistics.fmean(column) for column in zip(*found, strict=True))
    if learnt < start + NEAR_CHANCE:
        return (
            f"{BARELY}: {100 * learnt:.1f} % on a task just learnt, {100 * start:.1f} % before training; "
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
    sound = [group for group in rivals if not hardly_learnt(group.finished)]
    if not sound:
        best = _best(rivals)
        words = hardly_learnt(best.finished)
        return Finding(stream, f"On {stream} nothing has been learnt: the best, {best.label}, is {words}.")
    plain = plain_sgd(rivals)
    contest = _contest(sound, plain)
    best = _best(contest)
    tiles = tuple(_tiles(best, plain, contest))
    if best is plain:
        beaten = "nothing beats plain SGD, which keeps" if len(contest) > 1 else "plain SGD keeps"
        text = f"On {stream}, {beaten} {_kept(best)}{_higher(best, sound)}."
        return Finding(stream, text, tiles)
    headline = f"On {stream}, {best.label} keeps {_kept(best)}{_above(best, plain)}"
    return Finding(stream, f"{headline}{_lead(best, contest)}{_higher(best, sound)}.", tiles)


def _contest(groups: Sequence[RunGroup], plain: RunGroup | None) -> list[RunGroup]:
    """The groups that differ in their method alone; all if there is no plain SGD that others can be compared with.

    Of several settings of one method only the one that its name alone stands for takes part, if there is one: the best
    of many settings is better than it deserves.
    """
    alike = [group for group in groups if plain is None or comparable(group, plain)]
    if all(group is plain for group in alike):
        alike = list(groups)
    names = [family(group.label) for group in alike]
    bare = {group.label for group in alike}
    return [
        group
        for group, name in zip(alike, names, strict=True)
        if names.count(name) == 1 or name not in bare or group.label == name
    ]


def _best(groups: Sequence[RunGroup]) -> RunGroup:
    """The highest average accuracy; one seed may be luck, so several go before one."""
    several = [group for group in groups if len(group.finished) > 1]
    return max(several or groups, key=lambda group: mean(group, "aac"))


def _kept(group: RunGroup) -> str:
    """Its average accuracy, with the seeds where they are too few for a test."""
    seeds = len(group.finished)
    few = "" if seeds >= LEAST_SEEDS else " with one seed" if seeds == 1 else f" with {seeds} seeds"
    return f"{100 * mean(group, 'aac'):.1f} %{few}"


def _above(best: RunGroup, plain: RunGroup | None) -> str:
    """The margin above plain SGD over the seeds of both, and the price; why there is none, if there is none."""
    if plain is None:
        return ""
    broken = hardly_learnt(plain.finished)
    if broken:
        return f"; plain SGD is {broken.partition(':')[0]}, so there is no margin to speak of"
    if not comparable(best, plain):
        return "; plain SGD was run with another network or training, so no margin is given"
    margin = _margin(best, plain)
    if not math.isfinite(margin):
        return "; plain SGD was run with other seeds, so no margin is given"
    cost = price(best, plain)
    text = (
        f", {margin:.1f} points above plain SGD" if margin > 0 else f", {-margin:.1f} points below plain SGD"
    )
    return text + (f", for {cost} the processor time of a step" if str(cost) else "")


def _margin(one: RunGroup, other: RunGroup) -> float:
    """Points of average accuracy between two groups over the seeds that both have; NaN if there are none."""
    first, second = _by_seed(one), _by_seed(other)
    common = [100 * (value - second[seed]) for seed, value in first.items() if seed in second]
    return statistics.fmean(common) if common else math.nan


def _by_seed(group: RunGroup) -> dict[int, float]:
    return {record.settings.seed: record.metric("aac") for record in group.finished}


def _higher(best: RunGroup, sound: Sequence[RunGroup]) -> str:
    """The best of those that took no part because their settings are others, if it is higher."""
    top = _best(sound)
    if mean(top, "aac") <= mean(best, "aac"):
        return ""
    return f"; higher with other settings: {top.label} with {_kept(top)}"


def _lead(best: RunGroup, rivals: Sequence[RunGroup]) -> str:
    """Whom the seeds cannot tell from the best."""
    tied = ties(best, rivals)
    if not tied:
        return ""
    names = joined(tied) if len(tied) <= 3 else f"{len(tied)} others"
    return f"; {len(best.finished)} seeds cannot tell it from {names}"


def ties(best: RunGroup, rivals: Sequence[RunGroup]) -> list[str]:
    """Labels of those that a paired test over seeds cannot tell from the best in average accuracy."""
    found = standing([_by_seed(group) for group in rivals])
    return [
        group.label for group, mark in zip(rivals, found, strict=True) if mark == "tie" and group is not best
    ]


def _tiles(best: RunGroup, plain: RunGroup | None, rivals: Sequence[RunGroup]) -> list[tuple[str, str, str]]:
    others = [group for group in rivals if group is not best]
    second = max(others, key=lambda group: mean(group, "aac"), default=None)
    spread = _spread(best, "aac")
    shown = f"{100 * mean(best, 'aac'):.1f} %" + (
        " (one seed)" if spread is None else f" ± {100 * spread:.1f}"
    )
    remark = "the only method here"
    if second is not None:
        remark = _against(best, second, second.label in ties(best, rivals))
    tiles = [(f"average accuracy of {best.label}", shown, remark)]
    lost = mean(best, "forgetting")
    if math.isfinite(lost):
        against = "of accuracy lost by a task after its best"
        if plain is not None and plain is not best and comparable(best, plain):
            against = f"plain SGD forgets {100 * mean(plain, 'forgetting'):.1f}"
        tiles.append(("forgetting", f"{100 * lost:.1f} points", against))
    cost, memory = price(best, plain), mean(best, "memory")
    kept = f"{size_text(memory)} of memory, caches included" if memory else "no memory of its own"
    if str(cost) and plain is not best:
        notes = f" ({cost.notes})" if cost.notes else ""
        tiles.append(("price", str(cost), f"the processor time of a step of SGD{notes}; {kept}"))
    elif math.isfinite(memory):
        why = "it is what times are compared with" if plain is best else f"time not compared: {cost.remark}"
        tiles.append(("price", size_text(memory), f"of memory, caches included; {why}"))
    return tiles


def _against(best: RunGroup, second: RunGroup, tied: bool) -> str:
    """The margin of the best over the second, with what is to be thought of it."""
    margin = _margin(best, second)
    if not math.isfinite(margin):
        return f"{second.label} was run with other seeds"
    seeds = min(len(best.finished), len(second.finished))
    doubt = ", within the noise of the seeds" if tied else ""
    if seeds < LEAST_SEEDS:
        doubt = f", with {'one seed' if seeds == 1 else f'{seeds} seeds'}: no test"
    side = "above" if margin >= 0 else "below"
    return f"{abs(margin):.1f} points {side} {second.label}{doubt}"


def mean(group: RunGroup, metric: str) -> float:
    """A metric's mean over the finished runs of a group; NaN without any."""
    values = [record.metric(metric) for record in group.finished]
    return statistics.fmean(values) if values else math.nan


def _spread(group: RunGroup, metric: str) -> float | None:
    values = [record.metric(metric) for record in group.finished]
    return statistics.stdev(values) if len(values) > 1 else None
