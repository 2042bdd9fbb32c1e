"""Streams by name, module or file; folders of images and files of arrays too.

Your own stream is a function that takes whichever it needs of `tasks`, `seed`, `train_size`, `test_size` and
`data_root`, and any settings by name, and returns a Stream (see `from_arrays`, `from_datasets`) or a list of (x_train,
y_train, x_test, y_test), one for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter
from pathlib import Path, PurePath
from typing import Any

from orthocl.checking import (
    argument_types,
    check_names,
    check_value,
    defaults,
    parameters_of,
    required_arguments,
)
from orthocl.errors import OrthoclError, SettingsError, shortened
from orthocl.registry import Registry
from orthocl.streams.arrays import from_arrays
from orthocl.streams.base import Stream
from orthocl.streams.datasets import DATASETS
from orthocl.streams.folder import from_image_folder
from orthocl.streams.npz import from_npz
from orthocl.streams.permuted import permuted
from orthocl.streams.rotated import rotated
from orthocl.streams.split import split
from orthocl.streams.texts import text_stream

COMMON = ("tasks", "seed", "train_size", "test_size", "data_root")
"""Arguments that any stream may take; all other arguments of a function are its own settings."""


@dataclass(frozen=True)
class StreamMaker:
    """How a named stream is made.

    Args:
        summary: one line for lists.
        build: function of those common arguments that it takes, and of the options.
        tasks: default number of tasks; None where the data decide.
        options: further settings of `build`, with their defaults.
        types: their declared types.
        takes: which of `COMMON` the function takes.
        data: name of the data set that the stream is made of; empty where the stream brings its own data.
        named: whether the stream is called by its spec, whatever its function names it.
    """

    summary: str
    build: Callable[..., Stream]
    tasks: int | None
    options: Mapping[str, object] = field(default_factory=dict)
    types: Mapping[str, Any] = field(default_factory=dict)
    takes: Collection[str] = COMMON
    data: str = ""
    named: bool = False

    def check(self, spec: str, options: Mapping[str, Any], common: Mapping[str, Any]) -> None:
        """Reject options that the stream does not have, values of the wrong type, and arguments it does not take."""
        check_names(f"setting of stream {spec!r}", options, self.options)
        for key, value in options.items():
            check_value(f"{key} of stream {spec!r}", value, self.types.get(key, Any))
        for key, value in common.items():
            expected = self.tasks if key == "tasks" else None
            if value not in (None, expected) and key not in self.takes:
                raise SettingsError(f"stream {spec!r} takes no {key!r}: leave it out")
            check_value(f"{key} of stream {spec!r}", value, int | None, 1)


def _on(data: str, summary: str, build: Callable[..., Stream], tasks: int, **options: object) -> StreamMaker:
    """A stream of a data set, with other defaults of some options."""
    known = {**defaults(build, besides=COMMON), **options}
    make = partial(_build_on, build, data)
    return StreamMaker(summary, make, tasks, known, argument_types(build), data=data, named=True)


def _build_on(build: Callable[..., Stream], data: str, *, data_root: Any, **settings: Any) -> Stream:
    """The layer belongs to the data set, everything else to the stream."""
    layer = {"layer": settings.pop("layer")} if "layer" in settings else {}
    return build(DATASETS[data](data_root, **layer), **settings)


def _on_any(summary: str, build: Callable[..., Stream], tasks: int | None) -> StreamMaker:
    """A stream of a data set that the option `data` names."""
    options = {"data": "mnist-mini", **defaults(build, besides=COMMON)}
    types = {**argument_types(build), "data": str}

    def on(*, data: str, data_root: Any, **settings: Any) -> Stream:
        return build(DATASETS[data](data_root), **settings)

    return StreamMaker(summary, on, tasks, options, types)


def _of_function(function: Callable[..., Any], summary: str) -> StreamMaker:
    """A stream that a function builds."""
    arguments = argument_types(function, besides=("progress",))
    common = [name for name in COMMON if name in arguments]
    options = {
        name: None if parameter.default is Parameter.empty else parameter.default
        for name, parameter in parameters_of(function).items()
        if name in arguments and name not in common
    }
    default = defaults(function).get("tasks")
    tasks = default if isinstance(default, int) else None
    return StreamMaker(summary, function, tasks, options, arguments, common)


def _stream(value: Any, spec: str) -> StreamMaker:
    if isinstance(value, StreamMaker):
        return value
    if isinstance(value, Stream):
        return StreamMaker(value.name, lambda: value, len(value), takes=())
    if not callable(value):
        raise SettingsError(f"{spec} is not a function that builds a stream")
    return _of_function(value, (value.__doc__ or spec).strip().splitlines()[0])


STREAMS: Registry[StreamMaker] = Registry(
    "stream",
    {
        "permuted-mnist": _on("mnist", "MNIST, pixels in another order in each task", permuted, 15),
        "rotated-mnist": _on("mnist", "MNIST, turned by 5 degrees more in each task", rotated, 15),
        "split-mnist": _on("mnist", "MNIST, two digits per task", split, 5),
        "permuted-fashion": _on("fashion-mnist", "Fashion-MNIST, permuted", permuted, 15),
        "rotated-fashion": _on("fashion-mnist", "Fashion-MNIST, turned", rotated, 15),
        "split-cifar10": _on("cifar10", "CIFAR-10, two classes per task", split, 5),
        "split-cifar100": _on("cifar100", "CIFAR-100, five classes per task", split, 20, classes_per_task=5),
        "cub200": _on(
            "cub200",
            "CUB-200 birds, AlexNet features, 20 classes per task",
            split,
            10,
            classes_per_task=20,
            layer=None,
        ),
        "permuted-mnist-mini": _on("mnist-mini", "permuted, embedded subset of MNIST", permuted, 15),
        "rotated-mnist-mini": _on("mnist-mini", "turned, embedded subset of MNIST", rotated, 15),
        "split-mnist-mini": _on("mnist-mini", "two digits per task, embedded", split, 5),
        "permuted": _on_any("any image data set, permuted", permuted, 15),
        "rotated": _on_any("any image data set, turned", rotated, 15),
        "split": _on_any("any data set, some classes per task", split, None),
        "text-stream": _of_function(text_stream, "texts for a pretrained encoder, one data set per task"),
        "folder": _of_function(from_image_folder, "your images: FOLDER/class/image.jpg"),
        "arrays": _of_function(from_npz, "your arrays in an .npz file: x_train_1, y_train_1, ..."),
    },
    _stream,
    unlisted=("text-stream",),  # its texts are at no address from which everybody may fetch them
)


def is_data(path: Path) -> bool:
    """Whether a path is that of a folder or of an .npz file."""
    try:
        return path.is_dir() or (path.suffix == ".npz" and path.is_file())
    except OSError:  # not a possible file name
        return False


def data_of_path(spec: str) -> dict[str, Any]:
    """The options of a stream that is given as a folder or an .npz file; nothing for any other.

    >>> data_of_path("tasks.npz"), data_of_path("rotated-mnist")
    ({'arrays': 'tasks.npz'}, {})
    """
    if spec in STREAMS or ":" in PurePath(spec).name:
        return {}
    if spec.endswith(".npz"):
        return {"arrays": spec}
    if is_data(Path(spec)):
        return {"folder": spec}
    if PurePath(spec).name != spec and not spec.endswith(".py"):  # names of streams have no '/'
        raise SettingsError(f"no such folder: {shortened(spec)!r}")
    return {}


def make(
    spec: str,
    *,
    tasks: int | None = None,
    seed: int = 0,
    data_root: str | Path | None = None,
    train_size: int | None = None,
    test_size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Stream:
    """The stream of this name, module or file.

    Args:
        spec: one of `STREAMS`, "package.module:function", "file.py:function", a folder of images or an .npz file.
        tasks: number of tasks; the protocol's by default.
        seed: seed of the data, independent of the run seed.
        data_root: folder with the data sets; by default $ORTHOCL_DATA, or the user's cache folder.
        train_size: training samples per task, balanced over classes; all by default.
        test_size: likewise for test samples.
        options: further settings of this stream: "step", "angles", "resample" of a rotated one,
            "classes_per_task", "shuffle_classes" of a split one, "layer" ("fc6" or "pool5") of cub200, "folder" and
            "arrays" of your own data.

    Raises:
        SettingsError: for an unknown name or setting.
        DataError: when the data set is missing or damaged.

    >>> len(make("rotated-mnist-mini", tasks=4, train_size=100, options={"step": 10}))
    4
    """
    data = data_of_path(spec)
    if data:
        (spec,), options = data, {**(options or {}), **data}
    maker = STREAMS[spec]
    common: dict[str, Any] = {"tasks": tasks, "train_size": train_size, "test_size": test_size}
    maker.check(spec, options or {}, common)
    common |= {"seed": seed, "data_root": data_root, "tasks": maker.tasks if tasks is None else tasks}
    arguments = {**maker.options, **(options or {})}
    arguments |= {key: value for key, value in common.items() if key in maker.takes}
    _check_complete(maker, spec, arguments)
    try:
        stream = maker.build(**arguments)
    except OrthoclError:
        raise
    except Exception as error:
        if spec in STREAMS:
            raise
        raise SettingsError(f"stream {spec} failed: {type(error).__name__}: {error}") from error
    return replace(stream, name=spec) if maker.named else _as_stream(stream, spec)


def _check_complete(maker: StreamMaker, spec: str, arguments: Mapping[str, Any]) -> None:
    for name in required_arguments(maker.build):
        if name in maker.options and arguments[name] is None:
            raise SettingsError(f"stream {spec!r} needs a value for {name!r}")


def _as_stream(made: Any, spec: str) -> Stream:
    if isinstance(made, Stream):
        return made
    if isinstance(made, list | tuple):
        return from_arrays(made, name=spec.rpartition(":")[2])
    raise SettingsError(
        f"stream {spec} returned a {type(made).__name__}: return a Stream (orthocl.streams.from_arrays makes one) or a "
        "list of (x_train, y_train, x_test, y_test)"
    )
