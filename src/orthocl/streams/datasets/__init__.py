"""Data sets: fetch, verify, read."""

from __future__ import annotations

from pathlib import Path

from orthocl.errors import unknown_name
from orthocl.streams.datasets.mini import mnist_mini
from orthocl.streams.images import ImageData

__all__ = ["load", "mnist_mini"]


def load(name: str, data_root: str | Path | None = None) -> ImageData:
    """The data set of this name."""
    if name == "mnist-mini":
        return mnist_mini()
    raise unknown_name("data set", name, ["mnist-mini"])
