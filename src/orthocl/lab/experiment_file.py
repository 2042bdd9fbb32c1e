"""Experiment files on disk: TOML with includes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orthocl.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Table = dict[str, Any]


def read_file(path: Path, including: tuple[Path, ...] = ()) -> Table:
    """The content of an experiment file with its includes merged in."""
    path = path.resolve()
    if path in including:
        raise SettingsError(f"{path.name} includes itself by way of {including[-1].name}")
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read experiment {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    included = own.pop("include", [])
    whole: Table = {}
    for name in [included] if isinstance(included, str) else included:
        whole = merge(whole, read_file(path.parent / name, (*including, path)))
    return merge(whole, own)


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Table:
    """Tables merged key by key, the upper one winning. A list of streams or methods selects among lower tables.

    >>> merge({"methods": {"sgd": {}, "ewc": {"strength": 2.0}}}, {"methods": ["ewc"]})
    {'methods': {'ewc': {'strength': 2.0}}}
    """
    merged: Table = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if key in ("streams", "methods") and isinstance(value, list):
            tables = below if isinstance(below, Mapping) else {}
            merged[key] = {name: tables.get(name, {}) for name in value}
        elif key in ("streams", "methods") and isinstance(below, list) and isinstance(value, Mapping):
            merged[key] = {**{name: {} for name in below}, **value}
        elif isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def toml_value(text: str) -> Any:
    """A TOML value, or the text itself if it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
