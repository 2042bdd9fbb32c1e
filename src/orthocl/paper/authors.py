"""Results of the authors' own code: the runs they recorded, and one that was repeated with it."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from orthocl.paper.conventions import ewc_strength, mas_strength, si_strength

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

OUTPUTS = 5
"""Classes per task of Split CIFAR-100."""
PROTOCOL = (1e-3, 32, 10.0)
"""Learning rate, batch size and coefficient of EWC, SI and MAS on Split CIFAR-100 in the protocol."""


@dataclass(frozen=True)
class AuthorsValue:
    """A number from the authors' code, with where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class GridRun:
    """One run of the authors' search on Split CIFAR-100 (20 tasks, LeNet with 100 hidden units, 50 epochs).

    Percentages; `afm` has the sign of the print. `coefficient` is in the authors' convention.
    """

    method: str
    aac: float
    bwt: float
    fwt: float
    afm: float
    learning_rate: float
    batch_size: int
    coefficient: float

    @property
    def strength(self) -> float:
        """The coefficient as the strength of the method here."""
        if self.method == "ewc":
            return ewc_strength(self.coefficient, self.batch_size)
        if self.method == "mas":
            return mas_strength(self.coefficient, OUTPUTS)
        return si_strength(self.coefficient)


@cache
def authors_grid() -> tuple[GridRun, ...]:
    """The 216 runs of the authors' search.

    >>> len(authors_grid()), max(authors_grid(), key=lambda run: run.aac).method
    (216, 'mas')
    """
    rows = csv.DictReader(io.StringIO(_text("authors_cifar100.csv")))
    return tuple(
        GridRun(
            row["algo"].lower(),
            float(row["aac"]),
            float(row["bwt"]),
            float(row["fwt"]),
            -float(row["afm"]),
            float(row["lr"]),
            int(row["batch_size"]),
            float(row["reg_coef"]),
        )
        for row in rows
    )


def authors_value(stream: str, method: str, metric: str) -> AuthorsValue | None:
    """What the authors' code gave for this stream, method and metric, with the protocol's settings, if known.

    >>> authors_value("rotated-mnist", "sgd", "aac").value
    68.7
    """
    for run in _reruns():
        if (run["stream"], run["method"]) == (stream, method) and metric in run:
            return AuthorsValue(run[metric], run["source"])
    if stream == "split-cifar100" and metric in ("aac", "bwt", "fwt", "afm"):
        for one in authors_grid():
            if one.method == method and (one.learning_rate, one.batch_size, one.coefficient) == PROTOCOL:
                source = "authors' recorded search, one seed, 100 hidden units"
                return AuthorsValue(getattr(one, metric), source)
    return None


@cache
def _reruns() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = tomllib.loads(_text("authors.toml"))["run"]
    return runs


def _text(name: str) -> str:
    return (resources.files("orthocl.paper") / name).read_text(encoding="utf-8")
