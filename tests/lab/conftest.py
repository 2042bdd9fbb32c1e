from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orthocl.lab import Record, Result, RunSettings, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def tiny() -> Callable[..., RunSettings]:
    """Settings of a run that takes a fraction of a second."""

    def make(
        method: str = "sgd", seed: int = 1, stream: str = "rotated-mnist-mini", **changes: Any
    ) -> RunSettings:
        values = {
            "stream": {"name": stream, "tasks": 3, "train_size": 200, "test_size": 100},
            "method": {"name": method, "settings": changes.get("settings", {})},
            "net": {"name": "mlp", "settings": {"hidden": [16]}},
            "train": {"epochs": 2, "batch_size": 10, "learning_rate": 0.05} | changes.get("train", {}),
            "seed": seed,
        }
        return RunSettings.from_dict(values)

    return make


@pytest.fixture
def make_record(tiny: Callable[..., RunSettings]) -> Callable[..., Record]:
    """A record without a run, with two tasks and the given final accuracy on the first."""

    def make(method: str = "sgd", seed: int = 1, final: float = 0.5, **more: Any) -> Record:
        settings = tiny(method, seed).resolved()
        rows = [[0.1, 0.1], [0.9, 0.2], [final, 0.8]]
        result = Result(
            rows,
            [{1: 1.0}, {1: 0.5, 2: 1.0}],
            [],
            [{"memory_bytes": 8.0}, {"memory_bytes": 24.0}],
            [[1.0]],
            7,
            [200] * 2,
        )
        values = {
            "id": f"{method}-{seed}",
            "settings": settings,
            "stream": {
                "name": "rotated-mnist-mini",
                "fingerprint": "f",
                "settings": {},
                "tasks": ["one", "two"],
            },
            "result": result,
            "provenance": {"seconds": {"total": 3.0}, "finished": "2020-01-01T00:00:00Z"},
        }
        return Record(**(values | more))

    return make
