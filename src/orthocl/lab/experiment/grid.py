"""Settings by dotted names, such as `train.epochs`: what `--set` changes and what grids run through."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from orthocl.errors import SettingsError, UnlikelyError, shortened, unknown_name
from orthocl.formatting import counted
from orthocl.lab.experiment.file import TomlTable, toml_value
from orthocl.methods import METHODS
from orthocl.nets.registry import NETS, net_defaults
from orthocl.streams import STREAMS
from orthocl.training import TrainSettings

LEVELS = ("train", "net", "stream", "method")


def parse_overrides(overrides: Mapping[str, Any] | Sequence[str]) -> TomlTable:
    """{"train.epochs": 1} or ["train.epochs=1"] as nested tables. Values are TOML; anything else is text.

    >>> parse_overrides(["train.epochs=1", "method.variant=all"])
    {'train': {'epochs': 1}, 'method': {'variant': 'all'}}
    """
    values: TomlTable = {}
    if isinstance(overrides, Mapping):
        values = dict(overrides)
    else:
        for text in overrides:
            key, equals, value = text.partition("=")
            if not equals:
                raise SettingsError(f"expected KEY=VALUE such as train.epochs=1, got {text!r}")
            values[key.strip()] = toml_value(value.strip())
    for key in values:
        _check_level("setting", key)
    return nested(values)


def grid_points(axes: Mapping[str, Any], most: int | None = None) -> list[TomlTable]:
    """All combinations of {dotted name: list of values}; one empty combination if there are no axes.

    Args:
        axes: the values of each setting.
        most: more combinations than this are an `UnlikelyError`.

    >>> grid_points({"train.epochs": [1, 2]})
    [{'train.epochs': 1}, {'train.epochs': 2}]
    """
    for key, values in axes.items():
        _check_level("grid setting", key)
        if not isinstance(values, list) or not values:
            raise SettingsError(f"grid setting {key} needs a list of values, got {values!r}")
    points = math.prod(len(values) for values in axes.values())
    if most is not None and points > most:
        raise UnlikelyError(f"this grid has {counted(points, 'point')}, each of them a run for every seed")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def point_label(label: str, point: Mapping[str, Any]) -> str:
    """A label with a grid point's values.

    >>> point_label("ewc", {"method.strength": 10.0, "net.hidden": [100, 100]})
    'ewc strength=10 hidden=100x100'
    """
    return " ".join([label, *(f"{key.partition('.')[2]}={_short(value)}" for key, value in point.items())])


def flat(table: Mapping[str, Any], prefix: str = "") -> TomlTable:
    """Nested tables as {dotted name: value}."""
    leaves: TomlTable = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        leaves |= flat(value, name + ".") if isinstance(value, Mapping) else {name: value}
    return leaves


def nested(values: Mapping[str, Any]) -> TomlTable:
    """{"level.name": value} as {"level": {"name": value}}."""
    tables: TomlTable = {}
    for key, value in values.items():
        level, _, name = key.partition(".")
        tables.setdefault(level, {})[name] = value
    return tables


def _check_level(what: str, key: str) -> None:
    level, _, name = key.partition(".")
    if level not in LEVELS and not name and (places := _places(level)):
        raise SettingsError(f"{what} {key!r} does not say of what: did you mean {' or '.join(places)}?")
    if level not in LEVELS:
        raise unknown_name(f"first part of {what} {shortened(repr(key))}:", level, LEVELS)
    if not name:
        raise SettingsError(
            f"{what} {shortened(repr(key))} needs a name after the first part, such as train.epochs"
        )


def _places(name: str) -> list[str]:
    """The dotted names under which a setting is known, given its last part."""
    known = {
        "train": {item.name for item in fields(TrainSettings)},
        "net": {"name", *(key for net in NETS for key in net_defaults(net))},
        "stream": {
            "tasks",
            "seed",
            "train_size",
            "test_size",
            *(k for made in STREAMS.values() for k in made.options),
        },
        "method": {item.name for kind in METHODS.values() for item in fields(kind) if item.init},
    }
    return [f"{level}.{name}" for level in LEVELS if name in known[level]]


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
