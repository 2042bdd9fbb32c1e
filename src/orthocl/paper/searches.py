"""The paper's hyperparameter searches (appendix): what was found, with the protocol's settings beside.

Shown are the points of its grids that were run. `orthocl search experiments/search_mnist.toml` makes
the runs, all of a grid or `--samples` of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from orthocl.lab import RunSettings
from orthocl.paper.evidence import Evidence, aac
from orthocl.paper.experiments import experiment_folder, load_runs
from orthocl.paper.page import Page, WordTable
from orthocl.paper.samples import number_text

NAME = "searches"
SEARCHES = ("search_mnist", "search_cifar100", "search_cub200")
PROTOCOL = {"stable-sgd": "stable-sgd-plain"}
"""Methods whose row of the protocol that has the pipeline of the search goes by another name."""
LEAST_POINTS = 2
"""One point of a grid is no search: on some streams it is the protocol's own."""


@dataclass(frozen=True)
class Searched:
    """The points of one grid that were run.

    Args:
        size: points of the grid.
        scores: (values of the axes, such as {"decay": "0.7"}, average accuracy in %) of those with a result.
        diverged: how many others diverged.
    """

    stream: str
    method: str
    size: int
    scores: tuple[tuple[dict[str, str], float], ...]
    diverged: int

    @property
    def tried(self) -> str:
        """How much of the grid was run."""
        lost = f" ({self.diverged} diverged)" if self.diverged else ""
        return f"{len(self.scores) + self.diverged} of {self.size}{lost}"

    def best_by_value(self) -> dict[str, dict[str, float]]:
        """The best score at each value of each axis that took more than one, in the order of the values."""
        found: dict[str, dict[str, float]] = {}
        for point, score in self.scores:
            for axis, value in point.items():
                line = found.setdefault(axis, {})
                line[value] = max(score, line.get(value, score))
        return {
            axis: dict(sorted(line.items(), key=lambda pair: float(pair[0])))
            for axis, line in found.items()
            if len(line) > 1
        }


def searches(evidence: Evidence, comparable: bool = True) -> Page:
    """What the searches found, where any point was run."""
    found = find_searched(evidence)
    best = [("stream", "method", "points run", "best AAC, %", "with", "AAC, % at the protocol's settings")]
    axes = [("stream", "method", "setting", "best AAC, % at each value")]
    for one in found:
        point, score = max(one.scores, key=lambda pair: pair[1])
        settings = ", ".join(f"{name} {value}" for name, value in point.items())
        protocol = evidence.sample(one.stream, PROTOCOL.get(one.method, one.method), aac)
        seeds = f" ({len(protocol)})" if len(protocol) else ""
        best.append(
            (one.stream, one.method, one.tried, number_text(score), settings, f"{protocol.text()}{seeds}")
        )
        for axis, line in one.best_by_value().items():
            values = "; ".join(f"{value}: {number_text(score)}" for value, score in line.items())
            axes.append((one.stream, one.method, axis, values))
    return Page(
        NAME,
        "The appendix's hyperparameter searches",
        "Points of the paper's grids, one seed each; where not all were run, some of a sample that `orthocl search "
        "--samples` draws. The best is the one with the highest average accuracy on the test data, which flatters it; "
        "beside it the protocol's settings, over their seeds.",
        words=(WordTable("Best", tuple(best)), WordTable("By setting", tuple(axes))) if found else (),
    )


def find_searched(evidence: Evidence) -> list[Searched]:
    """The grids of which several points have a result."""
    runs = [run for name in SEARCHES for run in load_runs(experiment_folder() / f"{name}.toml")]
    sizes = Counter(grid for run in runs if (grid := _grid(run)) is not None)
    found = [
        Searched(
            *grid,
            size,
            tuple(
                (_point(run), aac(record))
                for run, record in evidence.pairs
                if _grid(run) == grid and record.status == "finished"
            ),
            sum(_grid(run) == grid for run, _ in evidence.diverged),
        )
        for grid, size in sizes.items()
    ]
    return [one for one in found if len(one.scores) >= LEAST_POINTS]


def _grid(run: RunSettings) -> tuple[str, str] | None:
    """Stream and method of a point of a grid; None for a run without axes, which is none."""
    method, _, axes = run.method_label.partition(" ")
    return (run.stream_label, method) if axes else None


def _point(run: RunSettings) -> dict[str, str]:
    """The values of the axes, from the label that they are part of."""
    return dict(word.split("=", 1) for word in run.method_label.split(" ")[1:])
