"""Executors: where runs are executed. Ray and Slurm are imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from orthocl.checking import make_checked
from orthocl.errors import SettingsError
from orthocl.lab.executors.interface import Event, Executor, OnEvent, Outcome, gather, pending
from orthocl.registry import Registry

__all__ = ["BACKENDS", "Event", "Executor", "OnEvent", "Outcome", "gather", "make_executor", "pending"]


def _backend(value: Any, spec: str) -> type[Executor]:
    kind: Any = value
    if not isinstance(value, type) or not is_dataclass(value) or not hasattr(value, "run_all"):
        raise SettingsError(f"{spec} is not a dataclass with a method `run_all`, as an Executor is")
    return kind  # type: ignore[no-any-return]


BACKENDS: Registry[type[Executor]] = Registry(
    "backend",
    {
        "local": "orthocl.lab.executors.local:LocalExecutor",
        "ray": "orthocl.lab.executors.ray:RayExecutor",
        "slurm": "orthocl.lab.executors.slurm:SlurmExecutor",
    },
    _backend,
)
"""Backend name, module or file -> a dataclass of the backend's settings with a method `run_all`."""


def make_executor(backend: str, settings: Mapping[str, Any]) -> Executor:
    """An executor by the name of its backend, with its settings checked.

    Args:
        backend: one of `BACKENDS`, "package.module:Class" or "file.py:Class".
        settings: of the executor, such as {"jobs": 2}.
    """
    return make_checked(BACKENDS[backend], settings, f"setting of backend {backend!r}:")
