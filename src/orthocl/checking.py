"""One checker for all settings: methods, networks, streams, training, backends.

A setting is checked by its name, by the type that its dataclass field or function argument declares, and by a
smallest value where one is given. Errors say which setting, what was expected and what was given.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache, wraps
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from orthocl.errors import SettingsError, shortened, unknown_name

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])
NUMBERS = (int, float)


def check_value(
    what: str, value: object, hint: Any, minimum: float | None = None, maximum: float | None = None
) -> None:
    """Reject a value that does not have the declared type, is not finite, or is not between the sensible ones.

    >>> check_value("epochs", 3, int)
    >>> check_value("hidden", [100, "a"], Sequence[int])
    Traceback (most recent call last):
    orthocl.errors.SettingsError: hidden must be a list of int, got [100, 'a']
    >>> check_value("variant", "gtll", Literal["gtl", "all"])
    Traceback (most recent call last):
    orthocl.errors.SettingsError: unknown variant 'gtll': did you mean 'gtl'? The choices are: all, gtl
    """
    if not _fits(value, hint):
        choices = [choice for option in _options(hint) for choice in _literals(option)]
        if isinstance(value, str) and choices and all(isinstance(choice, str) for choice in choices):
            raise unknown_name(what, value, choices)
        raise SettingsError(f"{what} must be {_describe(hint)}, got {shortened(repr(value), 300)}")
    if isinstance(value, NUMBERS) and not isinstance(value, bool):
        if not _finite(value):
            raise SettingsError(f"{what} must be a finite number, got {str(value)[:40]}")
        if minimum is not None and not value >= minimum:
            raise SettingsError(f"{what} must be at least {minimum:g}, got {shortened(str(value), 300)}")
        if maximum is not None and not value <= maximum:
            raise SettingsError(f"{what} must be at most {maximum:g}, got {shortened(str(value), 300)}")


def whole_number(what: str, value: object, minimum: int | None = None) -> int:
    """A whole number, which may be one of NumPy or of a tensor, as Python's own.

    >>> whole_number("seed", 3)
    3
    >>> whole_number("seed", 1.5)
    Traceback (most recent call last):
    orthocl.errors.SettingsError: seed must be int, got 1.5
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    check_value(what, value if number is None else number, int, minimum)
    return int(number)  # type: ignore[arg-type]  # it has been checked


def check_function(what: str, value: object, example: str) -> None:
    """Reject what cannot be called, and classes, of which an instance was meant.

    >>> check_function("loss", 5, "(outputs, targets) -> mean loss")
    Traceback (most recent call last):
    orthocl.errors.SettingsError: loss must be a function, (outputs, targets) -> mean loss, got 5
    """
    if isinstance(value, type):
        raise SettingsError(
            f"{what} must be a function, {example}, got the class {value.__name__}: call it first"
        )
    if not callable(value):
        raise SettingsError(f"{what} must be a function, {example}, got {shortened(repr(value))}")


def check_names(what: str, values: Mapping[str, object], known: Collection[str]) -> None:
    """Reject an unknown setting, and name the nearest known one."""
    for key in values:
        if key not in known:
            raise unknown_name(what, key, known)


def make_checked(kind: type[Made], values: Mapping[str, Any], what: str) -> Made:
    """A dataclass from a mapping, with names and types checked.

    Args:
        kind: the dataclass.
        values: its arguments.
        what: what one of them is called, such as "train setting".

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Pace:
    ...     epochs: int = 1
    >>> make_checked(Pace, {"epochs": "3"}, "train setting")
    Traceback (most recent call last):
    orthocl.errors.SettingsError: train setting epochs must be int, got '3'
    """
    if not isinstance(values, Mapping):
        raise SettingsError(f"expected a table of {what}s, got {values!r}")
    hints = field_types(kind)
    check_names(what, values, hints)
    for key, value in values.items():
        check_value(f"{what} {key}", value, hints[key])
    required = [
        item.name
        for item in fields(kind)  # type: ignore[arg-type]  # every `kind` is a dataclass
        if item.init and item.default is MISSING and item.default_factory is MISSING
    ]
    missing = [name for name in required if name not in values]
    if missing:
        raise SettingsError(f"missing {what} {missing[0]}: give it a value")
    return kind(**values)


def check_arguments(
    function: Callable[..., object], values: Mapping[str, Any], what: str, *, besides: Collection[str] = ()
) -> None:
    """Check settings against the keyword arguments of a function.

    Args:
        function: a function or a class.
        values: the settings.
        what: what one of them is called, such as "setting of net 'mlp'".
        besides: arguments that are not settings.
    """
    known = argument_types(function, besides=besides)
    check_names(what, values, known)
    for key, value in values.items():
        check_value(f"{what}: {key}", value, known[key])


def checked(*, besides: Collection[str] = ()) -> Callable[[Function], Function]:
    """For a public function: its arguments are checked where they enter, as far as their types are simple.

    Checked are numbers, switches, text, choices, and objects of this library. Arguments that may be more than that,
    such as tensors and functions, are checked by whoever reads them, and those named in `besides` by the function
    itself. A number of numpy counts as a number.

    >>> @checked()
    ... def half(value: float, times: int | None = None) -> float: ...
    >>> half("2")
    Traceback (most recent call last):
    orthocl.errors.SettingsError: value must be float, got '2'
    """

    def decorate(function: Function) -> Function:
        shape = signature(function)

        @wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            given = shape.bind(*values, **named).arguments
            hints = _strict_hints(function)
            for name in given.keys() - {*besides}:
                if name in hints and _is_simple(hints[name]):
                    value = given[name]
                    check_value(name, value.item() if isinstance(value, np.generic) else value, hints[name])
            return function(*values, **named)

        return cast(Function, call)

    return decorate


def check_fields(made: object, *, besides: Collection[str] = ()) -> None:
    """The same for the fields of a dataclass, from its `__post_init__`."""
    for name, hint in field_types(type(made)).items():
        if name not in besides and _is_simple(hint):
            check_value(name, getattr(made, name), hint)


def _is_simple(hint: Any) -> bool:
    return all(_is_simple_one(option) for option in _options(hint))


def _is_simple_one(option: Any) -> bool:
    own = isinstance(option, type) and option.__module__.partition(".")[0] == "orthocl"
    if own and not getattr(option, "_is_protocol", False):
        return True
    return option in (int, float, bool, str, NoneType, None) or get_origin(option) is Literal


@lru_cache(maxsize=256)
def _strict_hints(function: Any) -> dict[str, Any]:
    """The declared types; one that cannot be resolved is an error, or nothing would be checked."""
    return get_type_hints(function)


def argument_types(function: Callable[..., object], *, besides: Collection[str] = ()) -> dict[str, Any]:
    """Arguments that can be given by name, with their declared types."""
    target: Any = vars(function).get("__init__", function) if isinstance(function, type) else function
    try:
        hints = get_type_hints(target)
    except (NameError, TypeError):  # types that only a type checker sees
        hints = {}
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return {
        name: hints.get(name, Any)
        for name, parameter in parameters_of(function).items()
        if parameter.kind in named and name not in besides
    }


def parameters_of(function: Callable[..., object]) -> Mapping[str, Parameter]:
    """The arguments that a function takes.

    Raises:
        SettingsError: it does not say, as some functions that are not written in Python.
    """
    try:
        return signature(function).parameters
    except (TypeError, ValueError) as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise SettingsError(
            f"{name} does not say which arguments it takes: wrap it in a function of your own"
        ) from error


def required_arguments(function: Callable[..., object]) -> list[str]:
    """Arguments without which a function cannot be called.

    >>> def build(width, depth=2, **others): ...
    >>> required_arguments(build)
    ['width']
    """
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in parameters_of(function).items()
        if parameter.default is Parameter.empty and parameter.kind not in variable
    ]


def defaults(function: Callable[..., object], *, besides: Collection[str] = ()) -> dict[str, Any]:
    """Arguments that have a default, with it.

    >>> def build(width, depth=2): ...
    >>> defaults(build)
    {'depth': 2}
    """
    return {
        name: parameter.default
        for name, parameter in parameters_of(function).items()
        if parameter.default is not Parameter.empty and name not in besides
    }


def field_types(kind: type) -> dict[str, Any]:
    """Fields of a dataclass that its constructor takes, with their declared types."""
    if not is_dataclass(kind):
        raise SettingsError(f"{kind.__name__} is not a dataclass: decorate it with @dataclass")
    hints = _hints(kind)
    return {item.name: hints.get(item.name, Any) for item in fields(kind) if item.init}


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    """Cached: resolving hints from text takes a while when it is done for every run of a large grid."""
    try:
        return get_type_hints(kind)
    except NameError:  # types that only a type checker sees
        return {}


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a declared type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _literals(option: Any) -> tuple[Any, ...]:
    return get_args(option) if get_origin(option) is Literal else ()


def _fits(value: object, hint: Any) -> bool:
    return any(_fits_one(value, option) for option in _options(hint))


def _fits_one(value: object, option: Any) -> bool:
    origin = get_origin(option)
    if origin is Literal:
        return any(isinstance(value, type(choice)) and value == choice for choice in get_args(option))
    if option is Any or isinstance(option, TypeVar):
        return True
    if option is NoneType or option is None:
        return value is None
    if option is float:
        return isinstance(value, NUMBERS) and not isinstance(value, bool)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = origin or option
    if not isinstance(kind, type):
        return True
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if kind is not str and issubclass(kind, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        inner = [each for each in get_args(option) if each is not Ellipsis]
        return all(_fits(item, inner[0]) and _all_finite(item) for item in value) if inner else True
    return isinstance(value, kind)


def _all_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer with hundreds of digits
        return False


def _describe(hint: Any) -> str:
    return " or ".join(_describe_one(option) for option in _options(hint))


def _describe_one(option: Any) -> str:
    origin = get_origin(option)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(option))
    if option in (NoneType, None):
        return "None"
    kind = origin or option
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a table"
    if isinstance(kind, type) and kind is not str and issubclass(kind, Sequence):
        inner = [each for each in get_args(option) if each is not Ellipsis]
        return f"a list of {_describe(inner[0])}" if inner else "a list"
    return getattr(kind, "__name__", str(kind))
