"""Counts, sizes and times as people write them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

STEERING = ("Cc", "Cf", "Cs")


def counted(number: int, thing: str) -> str:
    """A number with its noun.

    >>> counted(1, "run"), counted(1200, "task"), counted(0, "seed")
    ('1 run', '1,200 tasks', '0 seeds')
    """
    return f"{number} {thing}" if number == 1 else f"{number:,} {thing}s"


def joined(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> joined(["a"]), joined(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def size_text(count: float) -> str:
    """Bytes, in powers of 1000, with three digits.

    >>> size_text(682_000_000), size_text(24), size_text(1.5e9)
    ('682 MB', '24 B', '1.5 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def time_text(seconds: float) -> str:
    """Seconds, as people say them; a moment is "< 0.1 s", not 0.

    >>> time_text(0.003), time_text(4.21), time_text(75), time_text(59.97), time_text(7300)
    ('< 0.1 s', '4.2 s', '1 min 15 s', '1 min 0 s', '2 h 1 min')
    """
    if 0 < seconds < 0.05:
        return "< 0.1 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def without_control(text: str) -> str:
    r"""A text without characters that steer a terminal or turn the direction of writing; its lines stay.

    >>> without_control("red\x1b[31m\nline")
    'red�[31m\nline'
    """
    return text if text.isprintable() else "".join(map(_steering_nothing, text))


def plain_text(text: object) -> str:
    r"""A label on one line and without characters that steer a terminal or turn the direction of writing.

    >>> plain_text("red\x1b[31m\nline"), plain_text("ogd+ $x$")
    ('red�[31m line', 'ogd+ $x$')
    """
    return "".join(" " if letter in "\n\r\t" else _steering_nothing(letter) for letter in str(text))


def _steering_nothing(letter: str) -> str:
    return "\ufffd" if letter not in "\n\t" and unicodedata.category(letter) in STEERING else letter
