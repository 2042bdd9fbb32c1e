"""One checker of settings for all parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from orthocl.checking import argument_types, check_arguments, check_value, defaults, make_checked
from orthocl.errors import SettingsError


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, int),
        (1, float),
        (1.5, float | None),
        (None, float | None),
        ("a", Literal["a", "b"] | None),
        ([1, 2], Sequence[int]),
        ((1, 2), tuple[int, int]),
        ([1.5, None], Sequence[float | None]),
        ({"a": 1}, Mapping[str, Any]),
        (object(), Any),
        (True, bool),
    ],
)
def test_values_that_fit(value, hint):
    check_value("it", value, hint)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (1.5, int, "it must be int, got 1.5"),
        (True, int, "it must be int, got True"),
        (True, float, "it must be float"),
        ("1", float | None, "it must be float or None, got '1'"),
        (math.nan, float, "it must be a finite number, got nan"),
        (math.inf, float | None, "finite"),
        (10**400, float, "finite"),
        ("c", Literal["aa", "bb"], "unknown it 'c'"),
        (5, Sequence[int], "a list of int, got 5"),
        ("abc", Sequence[int], "a list of int, got 'abc'"),
        ([True], Sequence[int], "a list of int"),
        ([math.nan], Sequence[float], "a list of float"),
        ([[1]], Sequence[int], "a list of int"),
        (3, Mapping[str, int], "it must be a table, got 3"),
        (0, str, "it must be str"),
        (1, bool, "it must be bool, got 1"),
    ],
)
def test_values_that_do_not(value, hint, words):
    with pytest.raises(SettingsError, match=words):
        check_value("it", value, hint)


def test_smallest_values():
    check_value("it", 0, int, minimum=0)
    with pytest.raises(SettingsError, match="it must be at least 1, got 0"):
        check_value("it", 0, int, minimum=1)


@dataclass
class Settings:
    width: int
    name: str = "x"
    made: list[int] = field(default_factory=list, init=False)


def test_dataclasses_are_made_from_tables():
    assert make_checked(Settings, {"width": 3}, "setting").width == 3
    with pytest.raises(SettingsError, match="did you mean 'width'"):
        make_checked(Settings, {"widht": 3}, "setting")
    with pytest.raises(SettingsError, match="missing setting width"):
        make_checked(Settings, {}, "setting")
    with pytest.raises(SettingsError, match="expected a table"):
        make_checked(Settings, 3, "setting")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="unknown setting 'made'"):
        make_checked(Settings, {"width": 1, "made": []}, "setting")


def test_arguments_of_functions():
    def build(shape: tuple[int, ...], width: int = 3, *, deep: bool = False) -> None: ...

    assert defaults(build) == {"width": 3, "deep": False}
    assert set(argument_types(build, besides=("shape",))) == {"width", "deep"}
    check_arguments(build, {"width": 4}, "setting", besides=("shape",))
    with pytest.raises(SettingsError, match="width must be int"):
        check_arguments(build, {"width": "4"}, "setting", besides=("shape",))
    with pytest.raises(SettingsError, match="unknown setting 'shape'"):
        check_arguments(build, {"shape": 4}, "setting", besides=("shape",))
