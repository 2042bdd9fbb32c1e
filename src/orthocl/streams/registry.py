"""Streams by name: the ones of the paper, and their kin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orthocl.errors import unknown_name
from orthocl.streams.base import Stream
from orthocl.streams.datasets import load, load_cub200
from orthocl.streams.permuted import permuted
from orthocl.streams.rotated import rotated
from orthocl.streams.split import split
from orthocl.streams.views import LabelledData


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


_ROTATED = {"step": 5.0, "angles": None, "resample": "nearest"}


def _classes(number: int) -> dict[str, object]:
    return {"classes_per_task": number, "shuffle_classes": False}


_BIRDS = {**_classes(20), "layer": None}

STREAMS: dict[str, StreamMaker] = {
    "permuted-mnist": StreamMaker("MNIST, pixels in another order in each task", "mnist", permuted, 15),
    "rotated-mnist": StreamMaker(
        "MNIST, turned by 5 degrees more in each task", "mnist", rotated, 15, _ROTATED
    ),
    "split-mnist": StreamMaker("MNIST, two digits per task", "mnist", split, 5, _classes(2)),
    "permuted-fashion": StreamMaker("Fashion-MNIST, permuted", "fashion-mnist", permuted, 15),
    "rotated-fashion": StreamMaker("Fashion-MNIST, turned", "fashion-mnist", rotated, 15, _ROTATED),
    "split-cifar10": StreamMaker("CIFAR-10, two classes per task", "cifar10", split, 5, _classes(2)),
    "split-cifar100": StreamMaker("CIFAR-100, five classes per task", "cifar100", split, 20, _classes(5)),
    "cub200": StreamMaker(
        "CUB-200 birds, AlexNet features, 20 classes per task", "cub200", split, 10, _BIRDS
    ),
    "permuted-mnist-mini": StreamMaker("permuted, embedded subset of MNIST", "mnist-mini", permuted, 15),
    "rotated-mnist-mini": StreamMaker(
        "turned, embedded subset of MNIST", "mnist-mini", rotated, 15, _ROTATED
    ),
    "split-mnist-mini": StreamMaker("two digits per task, embedded", "mnist-mini", split, 5, _classes(2)),
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
        options: further settings of this stream: "step", "angles", "resample" of a rotated one,
            "classes_per_task", "shuffle_classes" of a split one, "layer" ("fc6" or "pool5") of cub200.

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
    settings: dict[str, Any] = {**maker.options, **given}
    stream = maker.build(
        _load(maker.data, data_root, settings.pop("layer", None)),
        tasks=maker.tasks if tasks is None else tasks,
        seed=seed,
        train_size=train_size,
        test_size=test_size,
        **settings,
    )
    return replace(stream, name=name)


def _load(data: str, data_root: str | Path | None, layer: str | None) -> LabelledData:
    if data == "cub200":
        return load_cub200(data_root, layer)
    return load(data, data_root)
