from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orthocl.lab import Record, Result, RunSettings, Store
from orthocl.lab.experiment.settings import identity

Pairs = list[tuple[RunSettings, Record]]


@pytest.fixture(scope="session")
def make_runs() -> Callable[..., Pairs]:
    """Records without runs: methods on streams over seeds, with accuracies that forgetting eats."""

    def make(
        methods: Sequence[str] = ("sgd", "ewc", "ogd", "ogd+"),
        streams: Sequence[str] = ("rotated", "permuted"),
        seeds: Sequence[int] = (1, 2, 3),
        tasks: int = 4,
        changes: Sequence[dict[str, Any]] = ({},),
    ) -> Pairs:
        numbers = np.random.RandomState(0)
        return [
            pair
            for stream in streams
            for place, method in enumerate(methods)
            for change in changes
            for seed in seeds
            for pair in [_pair(stream, method, place, seed, tasks, change, numbers)]
        ]

    return make


def _pair(
    stream: str,
    method: str,
    place: int,
    seed: int,
    tasks: int,
    change: dict[str, Any],
    numbers: np.random.RandomState,
) -> tuple[RunSettings, Record]:
    known = method if method in ("sgd", "ewc", "ogd", "ogd+", "gpm", "er") else "sgd"
    train = {"epochs": 2, "learning_rate": 0.05, **change}
    values = {
        "stream": {
            "name": f"{stream}-mnist-mini" if stream in ("rotated", "permuted") else "split-mnist-mini"
        },
        "method": {"name": known},
        "net": {"name": "mlp", "settings": {"hidden": [16]}},
        "train": train,
        "seed": seed,
    }
    if stream in ("rotated", "permuted"):
        values["stream"]["tasks"] = tasks
    settings = replace(RunSettings.from_dict(values).resolved(), stream_label=stream, method_label=method)
    rows = [[0.1] * tasks]
    for after in range(1, tasks + 1):
        lost = (0.10 - 0.02 * place) * np.maximum(0, after - 1 - np.arange(tasks))
        learnt = np.where(np.arange(tasks) < after, 0.9 - lost, 0.12)
        rows.append((learnt + 0.01 * numbers.rand(tasks)).round(4).tolist())
    monitors = [
        {"memory_bytes": 1000.0 * task * (method != "sgd")}
        | ({"tangents": 50.0 * task, "rank": 50.0 * task, "leak": 2e-8} if "ogd" in method else {})
        for task in range(1, tasks + 1)
    ]
    result = Result(rows, [{1: 1.0}] * tasks, [], monitors, [[1.0]] * tasks, 13_000, [200] * tasks)
    record = Record(
        identity(settings, stream * 4),
        settings,
        {
            "name": stream,
            "fingerprint": stream * 4,
            "settings": {},
            "tasks": [f"{stream} {t}" for t in range(tasks)],
        },
        result=result,
        provenance={
            "seconds": {
                "train": 1.0 + 0.5 * place,
                "remember": 0.5 * place,
                "evaluate": 0.5,
                "processor": 1.0 + place,
                "total": 2.0 + 3.0 * place,
            },
            "finished": "2020-01-01T00:00:00Z",
            "versions": {"orthocl": "0.1.0"},
            "machine": {"system": "Linux", "cpus": 2},
        },
    )
    return settings, record


@pytest.fixture(scope="session")
def fill() -> Callable[[Store, Pairs], Store]:
    """Write records into a store, with a forecast, a certificate and theory beside them."""

    def write(store: Store, pairs: Pairs) -> Store:
        for _, record in pairs:
            store.write_record(record)
        for _, record in pairs:
            rows = [
                {
                    "task": 2,
                    "earlier": 1,
                    "change": 0.1 * n,
                    "drop": 0.01,
                    "measured_change": 0.2 * n,
                    "measured_drop": 0.02,
                }
                for n in range(1, 6)
            ]
            path = store.folder(record.id) / "forecasts.json"
            path.write_text(json.dumps({"note": "", "forecasts": rows}))
        first = pairs[0][1]
        certificate = {
            "sentence": "Task 1 keeps 90 % of its answers.",
            "bound": 0.1,
            "tasks": [{"task": 1, "kept": 0.9}],
        }
        (store.folder(first.id) / "certificate.json").write_text(json.dumps(certificate))
        theory = {
            "fingerprint": first.stream["fingerprint"],
            "dissimilarity": {"sgd": [0.1, 0.2], "ogd": [0.1, 0.1]},
        }
        (store.directory / "theory.json").write_text(json.dumps({"streams": [theory]}))
        return store

    return write
