"""The errors users see: what was expected, what was given, and what to do."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Sequence

LONGEST_NAME = 300


class OrthoclError(Exception):
    """Any error that a user can do something about. The command line prints it without a traceback."""


class DataError(OrthoclError):
    """Data that cannot be used: missing, corrupt, of the wrong shape or type, or out of range."""


class UnsupportedError(OrthoclError):
    """A method, model and optimizer that cannot keep their promise together, with the reason."""


class SettingsError(OrthoclError):
    """A setting with an unknown name or an impossible value."""


class UnlikelyError(SettingsError):
    """Something that is possible, but of a size that can hardly be meant, such as 10^9 tasks: ask first."""


class TrainingError(OrthoclError):
    """Training went wrong: a loss that is not finite, a hook called out of order."""


class DivergenceError(TrainingError):
    """The loss is no longer finite: a result of the settings, which another attempt would find again."""


class StoreError(OrthoclError):
    """A record or checkpoint that cannot be read or written."""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and point at the line of the user's own code that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _passed_through(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _passed_through(module: str) -> bool:
    """Whether a module is this library, or one that calls it back."""
    return module.partition(".")[0] in ("orthocl", "torch", "contextlib")


def shortened(text: str, most: int = 80) -> str:
    """A text of somebody else, such as a mistyped name or a long path, without its middle if a message cannot hold it.

    >>> shortened("a" * 100 + "/b.py", 10)
    'aaaaa.../b.py'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def unknown_name(kind: str, name: object, choices: Iterable[str], also: str = "") -> SettingsError:
    """An error for an unknown name, with the nearest known one first and, if given, an alternative.

    >>> print(unknown_name("method", "odg", ["ogd", "sgd"]))
    unknown method 'odg': did you mean 'ogd'? The choices are: ogd, sgd
    >>> print(unknown_name("method", "OGD", ["ogd", "sgd"]))
    unknown method 'OGD': did you mean 'ogd'? The choices are: ogd, sgd
    """
    known = sorted(choices)
    near = _nearest(name, known) if isinstance(name, str) else ""
    hint = f"did you mean {near!r}? The" if near else "the"
    end = f"; {also}" if also else ""
    given = shortened(repr(name))
    return SettingsError(f"unknown {kind} {given}: {hint} choices are: {', '.join(known) or 'none'}{end}")


def _nearest(name: str, known: Sequence[str]) -> str:
    """The known name that was probably meant, or ""."""
    if len(name) > LONGEST_NAME:  # comparing takes the square of the length
        return ""
    lower = {each.lower(): each for each in known}
    if name.lower() in lower:
        return lower[name.lower()]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    near = near or difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    return lower.get(near[0].lower(), near[0]) if near else ""
