"""One palette for every figure and page: a colour and a marker for each method, the same wherever it appears.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; markers help in print. The OGD
family is warm, baselines are cool.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

INK = "#262626"
"""Lines and letters."""
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, GREY = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#8c6bb1", "#999999"),
)
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, GREY)
"""For series that are no methods, in this order."""
MARKERS = "osD^vP*X"

METHODS = {
    "sgd": (GREY, "o"),
    "stable-sgd": ("#666666", "X"),
    "stable-sgd-plain": ("#b3b3b3", "X"),
    "joint": (INK, "*"),
    "ewc": (BLUE, "s"),
    "si": (SKY, "^"),
    "mas": ("#2a9d9d", "v"),
    "a-gem": (GREEN, "D"),
    "a-gem-nt": ("#66b891", "D"),
    "er": ("#4c9f38", "P"),
    "der++": ("#1b7837", "P"),
    "ogd": (ORANGE, "o"),
    "ogd+": (VERMILION, "s"),
    "pca-ogd": ("#b8860b", "^"),
    "kron-ogd": (PINK, "v"),
    "gpm": (PURPLE, "D"),
    "sgp": ("#5e3c99", "X"),
    "adam-nscl": ("#9970ab", "P"),
    "sketch-ogd": ("#c2a05a", "*"),
    "orfit": ("#a6611a", "^"),
}

OWN = ("#e6007e", "#1f1fff", "#7a0026", "#00c2d1")
"""For methods of a user's own: strong colours that no method above has."""


def method_style(label: str) -> tuple[str, str]:
    """Colour and marker of a method; those of an unknown one depend on its label alone.

    >>> method_style("ogd+"), method_style("ogd+ memory_per_task=50")
    (('#D55E00', 's'), ('#D55E00', 's'))
    """
    name = label.split(" ")[0]
    if name in METHODS:
        return METHODS[name]
    number = zlib.crc32(name.encode())
    return OWN[number % len(OWN)], MARKERS[number // len(OWN) % len(MARKERS)]


def alike_before(labels: Sequence[str], label: str) -> int:
    """How many labels of the same colour come before one: several settings of a method are told apart by more.

    >>> alike_before(["ogd", "sgd", "ogd energy=0.99"], "ogd energy=0.99")
    1
    """
    before = labels[: labels.index(label)]
    return sum(method_style(other)[0] == method_style(label)[0] for other in before)
