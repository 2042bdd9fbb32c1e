"""CIFAR-10 and CIFAR-100: the binary version, and the Python pickles once their checksum is known."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthocl.errors import DataError
from orthocl.streams.images import ImageData

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
    dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
    leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
    otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
    road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
CIFAR10_CLASSES = tuple(_CIFAR10.split())
CIFAR100_CLASSES = tuple(_CIFAR100.split())
PIXELS = 3 * 32 * 32


def parse_binary(content: bytes, where: str, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels of a binary batch; of two label bytes the second (fine) one counts."""
    record = label_bytes + PIXELS
    if not content or len(content) % record:
        raise DataError(f"{where}: {len(content)} bytes are not a whole number of records of {record} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def parse_pickle(content: bytes, where: str, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels of a Python batch. Only for content whose checksum is known."""
    batch = unpickle(content, where)
    images, labels = batch.get("data"), batch.get(label_key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,):
        raise DataError(f"{where}: no uint8 images (n, {PIXELS}) under the key 'data'")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise DataError(f"{where}: no list of {len(images)} labels under the key {label_key!r}")
    if not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
        raise DataError(f"{where}: labels under {label_key!r} are not all integers from 0 to 255")
    return images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def unpickle(content: bytes, where: str) -> dict[str, Any]:
    """The dictionary of a CIFAR pickle, in which only arrays and plain values are allowed."""
    try:
        loaded = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{where}: not a CIFAR pickle ({type(error).__name__}: {error})") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{where}: expected a dictionary, got {type(loaded).__name__}")
    return {
        key.decode("ascii", "replace") if isinstance(key, bytes) else str(key): loaded[key] for key in loaded
    }


class _ArraysOnly(pickle.Unpickler):
    """An extra safeguard besides the checksum: a pickle that names anything but NumPy arrays is rejected."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
        ):
            return _reconstruct
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no CIFAR file does")


def _reconstruct(subtype: type, shape: tuple[int, ...], dtype: bytes) -> NDArray[np.uint8]:
    # NumPy pickles an empty array first and then sets its state; its module was renamed in NumPy 2.
    if subtype is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("it holds an array of an unusual kind")
    return np.empty(0, dtype=np.uint8)


def cifar10_from_binary(contents: Mapping[str, bytes]) -> ImageData:
    """CIFAR-10 from data_batch_1.bin .. data_batch_5.bin and test_batch.bin."""
    batches = [parse_binary(contents[f"data_batch_{i}.bin"], f"data_batch_{i}.bin", 1) for i in range(1, 6)]
    test = parse_binary(contents["test_batch.bin"], "test_batch.bin", 1)
    return _cifar10(batches, test)


def cifar10_from_pickles(contents: Mapping[str, bytes]) -> ImageData:
    """CIFAR-10 from data_batch_1 .. data_batch_5 and test_batch."""
    batches = [parse_pickle(contents[f"data_batch_{i}"], f"data_batch_{i}", "labels") for i in range(1, 6)]
    return _cifar10(batches, parse_pickle(contents["test_batch"], "test_batch", "labels"))


def cifar100_from_binary(contents: Mapping[str, bytes]) -> ImageData:
    """CIFAR-100 from train.bin and test.bin."""
    train, test = (parse_binary(contents[f"{part}.bin"], f"{part}.bin", 2) for part in ("train", "test"))
    return _cifar100(train, test)


def cifar100_from_pickles(contents: Mapping[str, bytes]) -> ImageData:
    """CIFAR-100 from train and test."""
    train, test = (parse_pickle(contents[part], part, "fine_labels") for part in ("train", "test"))
    return _cifar100(train, test)


Batch = tuple[NDArray[np.uint8], NDArray[Any]]


def _cifar10(batches: Sequence[Batch], test: Batch) -> ImageData:
    train = (
        np.concatenate([images for images, _ in batches]),
        np.concatenate([labels for _, labels in batches]),
    )
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return ImageData("cifar10", *_tensors(train), *_tensors(test), CIFAR10_CLASSES, mean, std)


def _cifar100(train: Batch, test: Batch) -> ImageData:
    mean, std = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
    return ImageData("cifar100", *_tensors(train), *_tensors(test), CIFAR100_CLASSES, mean, std)


def _tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    images, labels = batch
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))
