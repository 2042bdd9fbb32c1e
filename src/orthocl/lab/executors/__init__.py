"""Executors: where runs are made. Ray and Slurm are imported only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from orthocl.errors import SettingsError, unknown_name
from orthocl.lab.executors.interface import Event, Executor, OnEvent, Outcome, gather, pending

__all__ = ["BACKENDS", "Event", "Executor", "OnEvent", "Outcome", "gather", "make_executor", "pending"]

BACKENDS: dict[str, tuple[str, str]] = {
    "local": ("orthocl.lab.executors.local", "LocalExecutor"),
    "ray": ("orthocl.lab.executors.ray", "RayExecutor"),
    "slurm": ("orthocl.lab.executors.slurm", "SlurmExecutor"),
}
"""Backend name -> module and class, a dataclass of the backend's settings with a method `run_all`."""


def make_executor(backend: str, settings: Mapping[str, Any]) -> Executor:
    """An executor by the name of its backend.

    Args:
        backend: one of `BACKENDS`.
        settings: of the executor, such as {"jobs": 2}.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    module, name = BACKENDS[backend]
    kind: Any = getattr(importlib.import_module(module), name)
    known = [key for key, item in kind.__dataclass_fields__.items() if item.init]
    for key in settings:
        if key not in known:
            raise unknown_name(f"setting of backend {backend!r}", key, known)
    try:
        executor: Executor = kind(**settings)
    except TypeError as error:
        raise SettingsError(f"backend {backend!r}: {error}") from error
    return executor
