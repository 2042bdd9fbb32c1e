"""Specs in experiment files: paths of parts and data of one's own, and the labels that runs with them get."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from orthocl.lab.experiment.settings import PATHS
from orthocl.streams import STREAMS

TomlTable = dict[str, Any]
PLACES = ("streams", "stream", *PATHS)
"""Keys whose values may be the paths of data."""


def anchored(value: Any, folder: Path, key: str = "") -> Any:
    """A value of an experiment file in which paths that exist beside the file are spelled out.

    Paths are those of Python files (my_method.py:Leash) anywhere, and of data where a stream is named.
    """
    if isinstance(value, Mapping):
        return {name: anchored(item, folder, name) for name, item in value.items()}
    if isinstance(value, list):
        return [anchored(item, folder, key) for item in value]
    if not isinstance(value, str):
        return value
    location, colon, name = value.rpartition(":")
    if value.endswith(".py"):
        location, colon, name = value, "", ""
    if location.endswith(".py") and (folder / location).is_file():
        return f"{(folder / location).resolve()}{colon}{name}"
    if key in PLACES and value not in STREAMS and _is_data(folder / value):
        return str((folder / value).resolve())
    return value


def _is_data(path: Path) -> bool:
    try:
        return path.is_dir() or (path.suffix == ".npz" and path.is_file())
    except OSError:  # a name that no file can have
        return False


def data_of_path(spec: str) -> TomlTable:
    """The options of a stream that is given as a folder or an .npz file; nothing for any other.

    >>> data_of_path("tasks.npz"), data_of_path("rotated-mnist")
    ({'arrays': 'tasks.npz'}, {})
    """
    if spec in STREAMS or ":" in PurePath(spec).name:
        return {}
    if spec.endswith(".npz"):
        return {"arrays": spec}
    return {"folder": spec} if _is_data(Path(spec)) else {}


def label_of(spec: str) -> str:
    """What runs with a part are called, where nobody gave it another label.

    >>> label_of("ogd+"), label_of("/home/me/my_method.py:Leash"), label_of("data/photos/")
    ('ogd+', 'Leash', 'photos')
    """
    location, _, name = spec.rpartition(":")
    if location:
        return name
    path = PurePath(spec)
    return path.stem if path.suffix in (".py", ".npz") else path.name if "/" in spec else spec
