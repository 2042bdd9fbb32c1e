"""Streams by name: the ones of the paper, and their kin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orthocl.errors import unknown_name
from orthocl.streams.base import Stream
from orthocl.streams.datasets import load
from orthocl.streams.permuted import permuted
from orthocl.streams.rotated import rotated
from orthocl.streams.split import split


@dataclass(frozen=True)
class StreamMaker:
    """How a named stream is made.

    Args:
        summary: one line for lists.
        data: name of the data set.
        build: function of the data set and of settings.
        tasks: default number of tasks.
        options: further settings of `build`, with their defaults.
    """

    summary: str
    data: str
    build: Callable[..., Stream]
    tasks: int
    options: Mapping[str, object] = field(default_factory=dict)


_ROTATED = {"step": 5.0, "angles": None}
_PAIRS = {"classes_per_task": 2, "shuffle_classes": False}

STREAMS: dict[str, StreamMaker] = {
    "permuted-mnist-mini": StreamMaker("permuted pixels, embedded", "mnist-mini", permuted, 15),
    "rotated-mnist-mini": StreamMaker("turned images, embedded", "mnist-mini", rotated, 15, _ROTATED),
    "split-mnist-mini": StreamMaker("two digits per task, embedded", "mnist-mini", split, 5, _PAIRS),
}


def make(
    name: str,
    *,
    tasks: int | None = None,
    seed: int = 0,
    data_root: str | Path | None = None,
    train_size: int | None = None,
    test_size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Stream:
    """The stream of this name.

    Args:
        name: one of `STREAMS`.
        tasks: number of tasks; the protocol's by default.
        seed: seed of the data, apart from the seed of a run.
        data_root: folder of the data sets; by default $ORTHOCL_DATA, else the user's cache folder.
        train_size: training samples per task, balanced over classes; all by default.
        test_size: likewise for test samples.
        options: further settings of this stream, such as {"step": 10} for a rotated one.

    Raises:
        SettingsError: for a name or a setting nobody knows.
        DataError: when the data set is not there, or is damaged.

    >>> len(make("rotated-mnist-mini", tasks=4, train_size=100, options={"step": 10}))
    4
    """
    if name not in STREAMS:
        raise unknown_name("stream", name, STREAMS)
    maker = STREAMS[name]
    given = dict(options or {})
    for key in given:
        if key not in maker.options:
            raise unknown_name(f"setting of stream {name!r}", key, maker.options)
    return maker.build(
        load(maker.data, data_root),
        tasks=maker.tasks if tasks is None else tasks,
        seed=seed,
        train_size=train_size,
        test_size=test_size,
        **{**maker.options, **given},
    )
