"""AccuracyMatrix: everything measured about a run's accuracy, from which every metric is computed.

Paper: section 7, a_{t,tau}: accuracy on task tau after learning task t; b: accuracy at initialisation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orthocl.errors import DataError


@dataclass(frozen=True)
class AccuracyMatrix:
    """Accuracy on every task at initialisation (row 0) and after each task (rows 1 .. T). Immutable.

    Values that were not measured are NaN; they make the metrics that need them NaN, and no others.

    >>> a = AccuracyMatrix.from_rows([[0.1, 0.1], [0.9, 0.2], [0.7, 0.8]])
    >>> a[2, 1]
    0.7
    >>> AccuracyMatrix.from_json(a.to_json()) == a
    True
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        tasks = len(self.rows) - 1
        if tasks < 1:
            raise DataError(
                "an accuracy matrix needs a row at initialisation and one row per task, at least two rows"
            )
        for number, row in enumerate(self.rows):
            if len(row) != tasks:
                raise DataError(
                    f"row {number} has {len(row)} accuracies, but {tasks + 1} rows make {tasks} tasks: "
                    "each row holds one accuracy per task"
                )
            if any(math.isinf(value) for value in row):
                raise DataError(f"row {number} holds an infinite accuracy")

    @classmethod
    def from_rows(
        cls, rows: Sequence[Sequence[float]], *, initial: Sequence[float] | None = None
    ) -> AccuracyMatrix:
        """From rows 0 .. T; or from rows 1 .. T with `initial` as row 0 (NaN values if it was not measured)."""
        whole = [list(initial), *rows] if initial is not None else list(rows)
        return cls(tuple(tuple(float(value) for value in row) for row in whole))

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return len(self.rows) - 1

    def __getitem__(self, position: tuple[int, int]) -> float:
        """a[t, tau]: accuracy on task tau (from 1) after task t (0 is initialisation)."""
        after, task = position
        if not (0 <= after <= self.tasks and 1 <= task <= self.tasks):
            raise IndexError(
                f"a[{after}, {task}] does not exist: t is 0..{self.tasks}, tau is 1..{self.tasks}"
            )
        return self.rows[after][task - 1]

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccuracyMatrix) and self.to_json() == other.to_json()

    def to_json(self) -> str:
        """JSON text; NaN becomes null."""
        return json.dumps([[None if math.isnan(v) else v for v in row] for row in self.rows])

    @classmethod
    def from_json(cls, text: str | Sequence[Sequence[float | None]]) -> AccuracyMatrix:
        """From JSON text, or from what it parses to."""
        rows: Any = json.loads(text) if isinstance(text, str) else text
        return cls(tuple(tuple(math.nan if v is None else float(v) for v in row) for row in rows))
