"""Experiment files on disk: TOML with includes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orthocl.errors import SettingsError, StoreError
from orthocl.lab.experiment.specs import anchored
from orthocl.storage import read_file as read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

TomlTable = dict[str, Any]
SECTIONS = ("streams", "methods")


def read_file(path: Path, including: tuple[Path, ...] = ()) -> TomlTable:
    """The content of an experiment file with its includes merged in."""
    own = _parsed(path)
    path = path.resolve()
    if path in including:
        raise SettingsError(f"{path.name} includes itself through {including[-1].name}")
    if "selected" in own:
        raise SettingsError(f"{path}: unknown key of an experiment 'selected': use `only`")
    own = anchored(own, path.parent)
    included = own.pop("include", [])
    included = [included] if isinstance(included, str) else included
    if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
        raise SettingsError(f"{path}: `include` must be a list of files, got {included!r}")
    whole: TomlTable = {}
    for name in included:
        whole = merge(whole, read_file(path.parent / name, (*including, path)))
    return merge(whole, own)


def _parsed(path: Path) -> TomlTable:
    try:
        text = read_bytes(path).decode("utf-8-sig")  # editors of Windows put a mark at the beginning
        table: TomlTable = tomllib.loads(text)
        return table
    except FileNotFoundError as error:
        raise SettingsError(f"cannot read experiment {path}: No such file or directory") from error
    except StoreError as error:
        raise SettingsError(f"cannot read experiment {path}: {error}") from error
    except (ValueError, RecursionError) as error:  # TOML, UTF-8, numbers of thousands of digits
        raise SettingsError(f"{path} is not TOML: {error}") from error


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> TomlTable:
    """Tables merged key by key, the upper one winning.

    A list of streams or methods selects: it goes to `selected`, and the tables below it stay as they are.

    >>> merge({"methods": {"sgd": {}, "ewc": {"strength": 2.0}}}, {"methods": ["ewc"]})
    {'methods': {'sgd': {}, 'ewc': {'strength': 2.0}}, 'selected': {'methods': ['ewc']}}
    """
    merged: TomlTable = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if key in SECTIONS and isinstance(value, list):
            merged.setdefault(key, {})
            merged["selected"] = {**merged.get("selected", {}), key: value}
        elif isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
            if key in SECTIONS and key in merged.get("selected", {}):
                chosen = merged["selected"][key]
                added = [name for name in value if name not in chosen]
                merged["selected"] = {**merged["selected"], key: [*chosen, *added]}
        else:
            merged[key] = value
    return merged


def toml_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not one."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError, KeyError):
        return text
