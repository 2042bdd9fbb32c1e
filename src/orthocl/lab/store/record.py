"""Record: the result of one run and, kept apart, the circumstances in which it was obtained.

The *result* part (settings, data, accuracies, curves, monitors, memory) is bit-identical whenever the same run is
repeated on the same machine, interrupted or not; `result_hash` covers it. The *provenance* part (versions,
machine, timings) is not part of that hash, but of the checksum of the file.

A record is verified when it is read: its checksum, the hash of its result, and its id, which follows from its settings,
its data and the version of the code. A record of another run, or one that was edited, is never taken for good.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from orthocl.errors import OrthoclError, SettingsError, StoreError
from orthocl.lab.experiment.settings import (
    CODE_VERSION,
    ID_LENGTH,
    RunSettings,
    canonical,
    recorded_identity,
)
from orthocl.metrics import AccuracyMatrix, compute, memorised_variation
from orthocl.storage import check_seal, parse_json, sealed
from orthocl.training import Progress

FORMAT = 1
HASHED = ("id", "code", "settings", "stream", "status", "reason", "result")

RecordStatus = Literal["finished", "unsupported"]


@dataclass(frozen=True)
class Result:
    """What a run measured.

    Args:
        accuracies: test accuracy of every task, at initialisation and then after each task.
        memorised: after each task, training accuracy on the remembered samples of each finished task.
        curves: {"task", "step", "accuracies"} every `evaluate_every` steps.
        monitors: what the method reported after each task; "memory_bytes" is the most it took.
        losses: mean training loss of each epoch, per task.
        parameters: number of trainable parameters.
        samples: training samples of each task.
    """

    accuracies: list[list[float]] = field(default_factory=list)
    memorised: list[dict[int, float]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    monitors: list[dict[str, float]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    parameters: int = 0
    samples: list[int] = field(default_factory=list)

    @classmethod
    def from_progress(cls, progress: Progress, parameters: int, samples: list[int]) -> Result:
        """The measured part of a finished run's progress."""
        return cls(
            progress.accuracies,
            progress.memorised,
            progress.curves,
            progress.monitors,
            progress.losses,
            parameters,
            samples,
        )


@dataclass(frozen=True)
class Record:
    """One run's result, or the reason why there cannot be one.

    Args:
        id: identity of the run.
        settings: resolved settings.
        stream: the stream as it was: name, fingerprint, settings, names of the tasks.
        status: "finished", or "unsupported": the method cannot work in this setting, with the reason.
        reason: why it is unsupported.
        result: what was measured.
        provenance: versions, machine, timings, labels: what may differ between two runs with the same result.
        code: `CODE_VERSION` of the code that made it.
    """

    id: str
    settings: RunSettings
    stream: Mapping[str, Any]
    status: RecordStatus = "finished"
    reason: str = ""
    result: Result = field(default_factory=Result)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    code: int = CODE_VERSION

    @property
    def accuracy(self) -> AccuracyMatrix:
        """The accuracy matrix."""
        return AccuracyMatrix.from_rows(self.result.accuracies)

    def metric(self, name: str) -> float:
        """A metric by name: those of `orthocl.metrics`, "seconds", "memory" (bytes, peak), "memorised" (variation)."""
        if name == "seconds":
            return float(self.provenance.get("seconds", {}).get("total", math.nan))
        if name == "memory":
            return float(self.memory)
        if name == "memorised":
            return memorised_variation(self.result.memorised)
        return compute(name, self.accuracy) if self.status == "finished" else math.nan

    @property
    def memory(self) -> int:
        """The most bytes that the method took during any task, caches included."""
        return int(max((row.get("memory_bytes", 0.0) for row in self.result.monitors), default=0.0))

    def result_part(self) -> dict[str, Any]:
        """The part that is the same whenever the run is repeated, as JSON values."""
        return {
            "id": self.id,
            "code": self.code,
            "settings": self.settings.recorded(),
            "stream": dict(self.stream),
            "status": self.status,
            "reason": self.reason,
            "result": _to_json(vars(self.result)),
        }

    @property
    def result_hash(self) -> str:
        """SHA-256 of `result_part`."""
        return _hash(self.result_part())

    def to_json(self) -> str:
        """Readable JSON text, one accuracy row per line."""
        whole = {
            "format": FORMAT,
            **self.result_part(),
            "result_hash": self.result_hash,
            "provenance": dict(self.provenance),
        }
        return readable_json(sealed(whole))

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "record", run: str = "") -> Record:
        """Parse `to_json`'s text and verify it.

        Args:
            text: the content of a record's file.
            where: what errors call it.
            run: id of the run that it must be the record of; any by default.
        """
        values = verified(text.encode() if isinstance(text, str) else text, where, run)
        try:
            return cls(
                values["id"],
                RunSettings.from_dict(values["settings"] | _labels(values["provenance"])),
                values["stream"],
                values["status"],
                values["reason"],
                _result(values["result"]),
                values["provenance"],
                values["code"],
            )
        except (LookupError, TypeError, ValueError, AttributeError, OrthoclError) as error:
            raise StoreError(
                f"{where} is not a record of orthocl ({error!r}): restore or remove it"
            ) from error


def verified(content: bytes, where: str, run: str = "") -> dict[str, Any]:
    """The values of a record's file, once its checksum, its hash and its identity have been verified.

    Args:
        content: the content of the file.
        where: what errors call it.
        run: id of the run that it must be the record of; any by default.
    """
    try:
        values = parse_json(content, Path(where))
        if values["format"] != FORMAT:
            raise StoreError(
                f"{where} has format {values['format']}, this version reads {FORMAT}: use the version that wrote it"
            )
        hashed = {key: values[key] for key in HASHED}
        if _hash(hashed) != values["result_hash"]:
            raise StoreError(f"{where} does not match its own hash: it was edited or damaged. {_REMEDY}")
        if run and values["id"] != run:
            raise StoreError(f"{where} is the record of run {values['id']}, not of {run}. {_REMEDY}")
        own = str(values["id"])
        if re.fullmatch(f"[0-9a-f]{{{ID_LENGTH}}}", own):  # other ids are not ours, and follow from nothing
            made_by = recorded_identity(values["settings"], values["stream"]["fingerprint"], values["code"])
            if made_by != own:
                raise StoreError(
                    f"{where} calls itself run {own}, but its settings, data and code are those of run {made_by}. "
                    f"{_REMEDY}"
                )
        check_seal(values, Path(where))
        return values
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, SettingsError) as error:
        raise StoreError(f"{where} is not a record of orthocl ({error!r}): restore or remove it") from error


_REMEDY = "Restore it, or move it away (orthocl runs doctor --quarantine) and run it again"


def _labels(provenance: Mapping[str, Any]) -> dict[str, str]:
    """What the run was called when it was made: tables, lists and figures keep that name."""
    labels = provenance.get("labels", {})
    return {f"{part}_label": str(labels.get(part, "")) for part in ("stream", "method")}


def circumstances() -> dict[str, Any]:
    """Versions and machine, without names or paths that identify its owner."""
    return {
        "versions": {
            "orthocl": package_version("orthocl"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        },
    }


def package_version(name: str) -> str:
    """Version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def readable_json(value: Any, depth: int = 0) -> str:
    """JSON with one entry per line for tables, and rows of numbers on one line."""
    pad = "  " * (depth + 1)
    if isinstance(value, Mapping) and any(isinstance(item, Mapping | list) for item in value.values()):
        body = ",\n".join(
            f"{pad}{json.dumps(str(k))}: {readable_json(v, depth + 1)}" for k, v in value.items()
        )
        return "{\n" + body + "\n" + "  " * depth + "}"
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        body = ",\n".join(pad + readable_json(item, depth + 1) for item in value)
        return "[\n" + body + "\n" + "  " * depth + "]"
    return json.dumps(value, allow_nan=False)


def _hash(part: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(part).encode()).hexdigest()


def _to_json(value: Any) -> Any:
    """JSON values: integer keys as text, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _result(values: Mapping[str, Any]) -> Result:
    rows = {
        key: [[_number(value) for value in row] for row in values[key]] for key in ("accuracies", "losses")
    }
    return Result(
        rows["accuracies"],
        [{int(task): _number(value) for task, value in row.items()} for row in values["memorised"]],
        [
            point | {"accuracies": [_number(value) for value in point["accuracies"]]}
            for point in values["curves"]
        ],
        [{key: _number(value) for key, value in row.items()} for row in values["monitors"]],
        rows["losses"],
        values["parameters"],
        values["samples"],
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
