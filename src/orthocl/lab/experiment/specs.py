"""Specs in experiment files: paths of the user's own parts and data, and the labels of runs with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from orthocl.lab.experiment.settings import PATHS
from orthocl.streams.registry import STREAMS, is_data

TomlTable = dict[str, Any]
PLACES = ("streams", "stream", *PATHS)
"""Keys whose values may be the paths of data."""
TEXTS = ("name", "description", "include", "seeds", "only", "table", "search")
"""Entries at the top of an experiment that never name a part."""


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


def programs_in(content: Mapping[str, Any]) -> list[str]:
    """The parts that an experiment brings along, which are programs, found without importing any of them.

    Everything that could be the spec of such a part counts, wherever it stands.

    >>> programs_in({"streams": ["a"], "methods": {"b.py:B": {}}, "net": {"name": "os:system"}, "name": "x:y"})
    ['b.py:B', 'os:system']
    """
    sections = {key: value for key, value in content.items() if key not in TEXTS}
    return list(dict.fromkeys(text for text in _texts(sections) if ":" in text or text.endswith(".py")))


def _texts(value: Any) -> Iterator[str]:
    """All keys and texts in a nested value, but not the paths of data."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            if key not in PATHS:
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


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
