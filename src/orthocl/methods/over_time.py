"""OverTime: how well each task was known after each fit, tasks x time."""

from __future__ import annotations

from dataclasses import dataclass

from orthocl.formatting import counted


@dataclass(frozen=True)
class Remaining:
    """What became of the samples of one probe, fit after fit.

    Args:
        name: of the probe.
        samples: their number.
        values: accuracy after each fit since the task was learnt; where the targets are no classes, change of the
            outputs since then, relative to their size. None before, and where the model was another one.
        classes: whether the targets are classes.
        lost: samples that were classified correctly when the task had been learnt and are not now.
        lost_at_most: upper limit on the share of such samples among all; None for samples that the method remembers.
    """

    name: str
    samples: int
    values: tuple[float | None, ...]
    classes: bool
    lost: int | None = None
    lost_at_most: float | None = None


@dataclass(frozen=True)
class OverTime:
    """A row for each probe, a column for each fit.

    Args:
        tasks: numbers of the tasks after whose fits the weights were kept.
        rows: of the probes.
    """

    tasks: tuple[int, ...]
    rows: tuple[Remaining, ...]

    def lines(self, confidence: float) -> list[str]:
        """As text."""
        corner = "after the fit of:"
        width = max([len(corner), *(len(_name(row)) for row in self.rows)])
        found = [corner.ljust(width) + "".join(f"{f'task {number}':>9}" for number in self.tasks)]
        for row in self.rows:
            cells = "".join(f"{'' if value is None else f'{value:.1%}':>9}" for value in row.values)
            found.append(_name(row).ljust(width) + cells)
        for row in self.rows:
            if row.lost is not None:
                counts = f"{row.lost:,} of {counted(row.samples, 'sample')} lost since it was learnt"
                limit = "" if row.lost_at_most is None else f", at most {row.lost_at_most:.1%} of all"
                found.append(
                    f"{row.name}: {counts}{limit}{f' ({confidence:.0%} confidence)' if limit else ''}"
                )
        return found


def _name(row: Remaining) -> str:
    return f"{row.name} ({'accuracy' if row.classes else 'change'})"
