"""Files of parts on their way to machines that do not have them.

A run that names `my_method.py:Leash` may be executed on a node without that file. The text of every such file travels
with the job, together with the neighbouring files that it imports, and is written to a temporary folder where it is
missing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orthocl.lab.experiment.settings import RunSettings
from orthocl.methods import METHODS
from orthocl.nets import NETS
from orthocl.registry import Part
from orthocl.streams import DATASETS, STREAMS
from orthocl.training.losses import LOSSES

Files = dict[str, dict[str, str]]


def files_of(run: RunSettings) -> Files:
    """Path of each Python file that a run names -> name and text of it and of the neighbouring files it imports."""
    parts: list[Part[Any]] = [METHODS.find(run.method.name), NETS.find(run.net.name)]
    parts += [STREAMS.find(run.stream.name), LOSSES.find(run.train.loss)]
    data = run.stream.options.get("data")
    if isinstance(data, str):
        parts.append(DATASETS.find(data))
    found: Files = {}
    for part in parts:
        path, _, _ = part.spec.rpartition(":")
        if path.endswith(".py"):
            found[path] = dict(part.sources)
    return found


def put_down(values: Any, files: Mapping[str, Mapping[str, str]]) -> Any:
    """A job's values, with the files that this machine lacks written to disk and their new paths filled in."""
    moved = {path: _written(path, sources) for path, sources in files.items() if not Path(path).is_file()}
    return _renamed(values, moved) if moved else values


def _written(path: str, sources: Mapping[str, str]) -> str:
    folder = Path(tempfile.mkdtemp(prefix="orthocl-parts-"))
    for name, text in sources.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return str(folder / Path(path).name)


def _renamed(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _renamed(item, moved) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, moved) for item in value]
    if isinstance(value, str):
        path, colon, name = value.rpartition(":")
        return f"{moved[path]}{colon}{name}" if path in moved else value
    return value
