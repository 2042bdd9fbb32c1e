"""MNIST and Fashion-MNIST: the complete data sets from their IDX files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from orthocl.errors import DataError
from orthocl.streams.datasets.idx import parse_idx
from orthocl.streams.images import ImageData, padded

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
# Mean and standard deviation of the training pixels, scaled to [0, 1], after padding to 32 x 32.
MNIST_MEAN, MNIST_STD = 0.1000, 0.2752
FASHION_MEAN, FASHION_STD = 0.2190, 0.3318


def mnist_from_idx(contents: Mapping[str, bytes]) -> ImageData:
    """MNIST, padded to 32 x 32."""
    return padded(_from_idx("mnist", contents, DIGITS, MNIST_MEAN, MNIST_STD), 2)


def fashion_mnist_from_idx(contents: Mapping[str, bytes]) -> ImageData:
    """Fashion-MNIST, padded to 32 x 32."""
    return padded(_from_idx("fashion", contents, CLOTHES, FASHION_MEAN, FASHION_STD), 2)


def _from_idx(
    name: str, contents: Mapping[str, bytes], classes: tuple[str, ...], mean: float, std: float
) -> ImageData:
    train, train_labels = _part(contents, "train")
    test, test_labels = _part(contents, "t10k")
    return ImageData(name, train, train_labels, test, test_labels, classes, (mean,), (std,))


def _part(contents: Mapping[str, bytes], prefix: str) -> tuple[Tensor, Tensor]:
    images_name, labels_name = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
    images = parse_idx(contents[images_name], images_name, 3)
    labels = parse_idx(contents[labels_name], labels_name, 1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{images_name}: expected images of 28 x 28, got {images.shape[1:]}")
    return torch.from_numpy(images.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))
