"""`mnist-mini`: a balanced subset of real MNIST that comes with the package. No network needed."""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np
import torch

from orthocl.streams.datasets.mnist import DIGITS, MNIST_MEAN, MNIST_STD
from orthocl.streams.images import ImageData, padded


@cache
def mnist_mini() -> ImageData:
    """5,000 training and 1,000 test images of MNIST, 500 and 100 of each digit, padded to 32 x 32.

    >>> len(mnist_mini().train_labels), mnist_mini().shape
    (5000, (1, 32, 32))
    """
    source = resources.files("orthocl.streams.datasets") / "mnist-mini.npz"
    with resources.as_file(source) as path, np.load(path, allow_pickle=False) as arrays:
        train_images, test_images = (torch.from_numpy(arrays[f"{part}_images"]) for part in ("train", "test"))
        train_labels, test_labels = (torch.from_numpy(arrays[f"{part}_labels"]) for part in ("train", "test"))
    data = ImageData(
        "mnist-mini",
        train_images.unsqueeze(1),
        train_labels.to(torch.int64),
        test_images.unsqueeze(1),
        test_labels.to(torch.int64),
        DIGITS,
        (MNIST_MEAN,),
        (MNIST_STD,),
    )
    return padded(data, 2)
