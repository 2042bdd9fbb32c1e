"""Plain entries at the top of an experiment: texts, patterns, seeds."""

from __future__ import annotations

from typing import Any

from orthocl.errors import SettingsError
from orthocl.lab.experiment.file import TomlTable


def text_of(content: TomlTable, key: str, default: str) -> str:
    """A text at the top of an experiment."""
    value = content.get(key, default)
    if not isinstance(value, str):
        raise SettingsError(f"`{key}` must be a text, got {value!r}")
    return value


def patterns_of(content: TomlTable) -> list[str]:
    """The patterns of `only`."""
    patterns = content.get("only", [])
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise SettingsError(f'`only` must be a list of patterns such as "ogd*", got {patterns!r}')
    return patterns


def seeds_of(values: Any) -> list[int]:
    """Seeds, each once."""
    if not isinstance(values, list) or not values or any(type(value) is not int for value in values):
        raise SettingsError(f"seeds must be a list of integers, got {values!r}")
    return list(dict.fromkeys(values))
