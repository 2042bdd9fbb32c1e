"""What `--only` chooses: streams, methods and pairs of them by name or pattern."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase


def fits(stream: str, method: str, pattern: str) -> bool:
    """Whether a pattern chooses the runs with these labels.

    A label fits with the axes of its grid and without: a bare name chooses all points.

    >>> fits("rotated", "ewc strength=10", "ewc"), fits("rotated", "ewc strength=10", "r*/ewc")
    (True, True)
    >>> fits("rotated", "ewc strength=10", "rotated/ewc strength=1"), fits("rotated", "ewc strength=10", "si")
    (False, False)
    """
    streams, methods = (stream, without_axes(stream)), (method, without_axes(method))
    first, slash, second = pattern.partition("/")
    if slash:
        return _any(streams, first) and _any(methods, second)
    return _any(streams + methods, pattern)


def without_axes(label: str) -> str:
    """A label without what a grid added to it.

    >>> without_axes("stable-sgd decay=0.7 dropout=0")
    'stable-sgd'
    """
    return re.sub(r"( \S+=\S+)+$", "", label)


def _any(names: tuple[str, ...], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)
