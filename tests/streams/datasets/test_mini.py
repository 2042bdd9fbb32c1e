"""The data that comes with the package."""

from __future__ import annotations

import hashlib
import importlib.util
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from orthocl import streams
from orthocl.streams.datasets import load, mnist_mini

FILE = resources.files("orthocl.streams.datasets") / "mnist-mini.npz"


def test_the_file_is_the_committed_one_and_small():
    content = FILE.read_bytes()
    assert len(content) <= 1_500_000
    assert (
        hashlib.sha256(content).hexdigest()
        == "d86fcdc0dff42fdd9834d893acaef9dd06c779f030a2ad3659b358ab7ed1f7c8"
    )


def test_balanced_and_padded():
    data = mnist_mini()
    assert torch.bincount(data.train_labels).tolist() == [500] * 10
    assert torch.bincount(data.test_labels).tolist() == [100] * 10
    assert data.train_images.shape == (5000, 1, 32, 32)
    border = torch.ones(32, 32, dtype=torch.bool)
    border[2:30, 2:30] = False
    assert not data.train_images[:, 0, border].any()
    assert data.train_images[:, 0, ~border].any()


def test_no_image_is_in_both_parts():
    data = mnist_mini()
    train = {bytes(image) for image in data.train_images.flatten(1).numpy()}
    assert len(train) == 5000
    assert not train & {bytes(image) for image in data.test_images.flatten(1).numpy()}


@pytest.mark.data
def test_the_script_makes_it_from_the_complete_data(mnist_root, tmp_path, monkeypatch):
    source = Path(__file__).parents[3] / "scripts" / "make_embedded_mnist.py"
    spec = importlib.util.spec_from_file_location("make_embedded_mnist", source)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "TARGET", tmp_path / "mnist-mini.npz")
    monkeypatch.setattr("sys.argv", ["make", str(mnist_root / "MNIST" / "raw")])
    script.main()
    with np.load(tmp_path / "mnist-mini.npz") as made, resources.as_file(FILE) as path, np.load(path) as kept:
        assert sorted(made) == sorted(kept)
        for name in kept:
            assert (made[name] == kept[name]).all()


@pytest.mark.parametrize("kind", ["permuted", "rotated", "split"])
def test_streams_need_nothing_else(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("ORTHOCL_DATA", str(tmp_path))
    stream = streams.make(f"{kind}-mnist-mini", tasks=2, train_size=100, test_size=50)
    assert [(len(task.train), len(task.test)) for task in stream] == [(100, 50)] * 2
    assert list(tmp_path.iterdir()) == []


def test_it_is_shared_not_read_again():
    assert load("mnist-mini") is load("mnist-mini")
