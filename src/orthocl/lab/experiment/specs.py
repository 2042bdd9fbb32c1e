"""Specs in experiment files: paths of the user's own parts and data, and the labels of runs with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from orthocl.lab.experiment.settings import PATHS
from orthocl.streams.registry import STREAMS, is_data

TomlTable = dict[str, Any]
PLACES = ("streams", "stream", *PATHS)
"""Keys whose values may be the paths of data."""


def anchored(value: Any, folder: Path, key: str = "") -> Any:
    """A value of an experiment file in which paths that exist next to the file are made absolute.

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
    if key in PLACES and value not in STREAMS and is_data(folder / value):
        return str((folder / value).resolve())
    return value


def label_of(spec: str) -> str:
    """What runs with a part are called, unless it was given a label.

    >>> label_of("ogd+"), label_of("/home/me/my_method.py:Leash"), label_of("data/photos/")
    ('ogd+', 'Leash', 'photos')
    """
    location, _, name = spec.rpartition(":")
    if location:
        return name
    path = PurePath(spec)
    return path.stem if path.suffix in (".py", ".npz") else path.name if "/" in spec else spec
