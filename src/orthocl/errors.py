"""The errors users see: what was expected, what was given, and what to do."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable


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


def unknown_name(kind: str, name: object, choices: Iterable[str], also: str = "") -> SettingsError:
    """An error for an unknown name, with the nearest known one first and, if given, an alternative.

    >>> print(unknown_name("method", "odg", ["ogd", "sgd"]))
    unknown method 'odg': did you mean 'ogd'? The choices are: ogd, sgd
    """
    known = sorted(choices)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? The" if near else "the"
    end = f"; {also}" if also else ""
    return SettingsError(f"unknown {kind} {name!r}: {hint} choices are: {', '.join(known) or 'none'}{end}")
