"""The streams of the protocol on the complete data: counts, classes, constants, golden tensors."""

from __future__ import annotations

import hashlib

import pytest
import torch

from orthocl import streams
from orthocl.errors import DataError
from orthocl.streams.datasets import fetch, load
from orthocl.streams.datasets.cifar import CIFAR100_CLASSES, unpickle

pytestmark = pytest.mark.data


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]


def constants(data) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of the training pixels in [0, 1], from exact integer sums."""
    counts = torch.stack(
        [torch.bincount(data.train_images[:, c].flatten(), minlength=256) for c in range(data.shape[0])]
    )
    values = torch.arange(256, dtype=torch.float64) / 255
    total = counts.sum(1).double()
    mean = (counts * values).sum(1) / total
    variance = (counts * values**2).sum(1) / total - mean**2
    return mean.tolist(), variance.sqrt().tolist()


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("permuted-mnist", {1: "1e97d50545ce7524", 2: "2be8807fb9bc4cfe", 15: "172efb9ae31a58db"}),
        ("rotated-mnist", {1: "1e97d50545ce7524", 2: "6eb5a034bc06cb02", 15: "a8d78d3491147cbf"}),
    ],
)
def test_mnist_streams_with_one_head(mnist_root, name, golden):
    stream = streams.make(name, data_root=mnist_root)
    assert (len(stream), stream.input_shape, dict(stream.heads)) == (15, (1, 32, 32), {"main": 10})
    for task in stream:
        assert (len(task.train), len(task.test), task.outputs) == (60_000, 10_000, 10)
    assert {number: digest(stream.task(number).test.inputs()) for number in golden} == golden


def test_split_mnist(mnist_root):
    stream = streams.make("split-mnist", data_root=mnist_root)
    assert [(len(task.train), len(task.test)) for task in stream] == [
        (12_665, 2_115),
        (12_089, 2_042),
        (11_263, 1_874),
        (12_183, 1_986),
        (11_800, 1_983),
    ]
    assert [task.name for task in stream] == [f"classes {i}, {i + 1}" for i in range(0, 10, 2)]


def test_golden_training_tensors(mnist_root):
    stream = streams.make("rotated-mnist", data_root=mnist_root)
    assert digest(stream.task(1).train.inputs()) == "9ad3c7508d0a25fb"
    assert digest(stream.task(1).train.targets) == "e474323ac02fc156"


def test_mnist_constants(mnist_root):
    data = load("mnist", mnist_root)
    (mean,), (std,) = constants(data)
    assert (round(mean, 4), round(std, 4)) == (0.1000, 0.2752)
    assert (data.mean, data.std) == ((0.1,), (0.2752,))


def test_fashion(fashion_root):
    data = load("fashion-mnist", fashion_root)
    (mean,), (std,) = constants(data)
    assert ((round(mean, 4),), (round(std, 4),)) == (data.mean, data.std)
    for name in ("permuted-fashion", "rotated-fashion"):
        stream = streams.make(name, data_root=fashion_root)
        assert (len(stream), len(stream.task(2).train), len(stream.task(2).test)) == (15, 60_000, 10_000)
    assert digest(stream.task(1).test.inputs()) == "b5e391a75d8e0d40"


def test_mnist_is_not_taken_for_fashion(mnist_root, tmp_path):
    (tmp_path / "FashionMNIST").mkdir()
    (tmp_path / "FashionMNIST" / "raw").symlink_to(mnist_root / "MNIST" / "raw")
    with pytest.raises(DataError, match="its content is train-images-idx3-ubyte of mnist"):
        load("fashion-mnist", tmp_path)


def test_cifar100(cifar100_root):
    stream = streams.make("split-cifar100", data_root=cifar100_root)
    assert (len(stream), stream.input_shape, set(stream.heads.values())) == (20, (3, 32, 32), {5})
    assert {(len(task.train), len(task.test)) for task in stream} == {(2_500, 500)}
    assert stream.task(1).name == "classes apple, aquarium_fish, baby, bear, beaver"
    for task in (stream.task(1), stream.task(20)):
        assert torch.bincount(task.train.targets).tolist() == [500] * 5
    assert digest(stream.task(1).train.inputs()) == "508248ddac2b44f1"
    mean, std = constants(stream.data)
    assert [round(value, 3) for value in mean] == [0.507, 0.487, 0.441]
    assert [round(value, 3) for value in std] == [0.267, 0.256, 0.276]
    names = unpickle((cifar100_root / "cifar-100-python" / "meta").read_bytes(), "meta")["fine_label_names"]
    assert tuple(name.decode() for name in names) == CIFAR100_CLASSES


@pytest.mark.slow
def test_cifar10(cifar10_root):
    stream = streams.make("split-cifar10", data_root=cifar10_root)
    assert [(len(task.train), len(task.test)) for task in stream] == [(10_000, 2_000)] * 5
    assert stream.task(1).name == "classes airplane, automobile"
    mean, std = constants(stream.data)
    assert [round(value, 4) for value in mean] == list(stream.data.mean)
    assert [round(value, 4) for value in std] == list(stream.data.std)
    assert digest(stream.task(1).test.inputs()) == "b8d2d933bd927cd5"


def test_what_is_there_is_found_without_any_source(mnist_root, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert fetch("mnist", mnist_root) == mnist_root / "MNIST" / "raw"
