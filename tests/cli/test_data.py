"""`orthocl data`."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from orthocl.cli import data as command
from orthocl.errors import DataError, SettingsError
from orthocl.streams.datasets import status
from orthocl.streams.datasets.schema import DataFile, Edition, Entry
from orthocl.streams.datasets.sources import WebFiles
from orthocl.streams.datasets.weights import CONVOLUTIONS


def run(*arguments: object) -> None:
    command.app([str(argument) for argument in arguments], result_action="return_value")


def write_birds(folder, count=6):
    (folder / "images").mkdir(parents=True)
    for number in range(1, count + 1):
        Image.new("RGB", (230, 240), (40 * number, 0, 0)).save(folder / "images" / f"{number}.jpg")
    numbers = range(1, count + 1)
    lists = {
        "images": [f"{number}.jpg" for number in numbers],
        "image_class_labels": [1 + number % 2 for number in numbers],
        "train_test_split": [int(number <= count // 2) for number in numbers],
        "classes": ["one", "two"],
    }
    for name, values in lists.items():
        (folder / f"{name}.txt").write_text(
            "".join(f"{n} {value}\n" for n, value in enumerate(values, start=1))
        )


def write_weights(path):
    draw = np.random.RandomState(0)
    arrays = {}
    for name, shape in CONVOLUTIONS.items():
        arrays[f"{name}.weight"] = draw.normal(size=shape, scale=0.05).astype(np.float32)
        arrays[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    np.savez(path, **arrays)


def test_commands_are_never_broken_in_two(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    run("status", "--data-root", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    for row in status(tmp_path):
        if row.state == "missing":
            assert any(row.detail in line for line in lines), row.detail
    assert max(map(len, lines[: lines.index(f"Looked in: {tmp_path}")])) <= 80


def test_status_of_an_empty_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    run("status", "--data-root", tmp_path)
    shown = capsys.readouterr().out
    for word in (
        "mnist-mini",
        "verified",
        "missing",
        "orthocl data fetch",
        "CC BY-SA 3.0",
        "Krizhevsky",
        "Wah",
    ):
        assert word in shown
    details = {row.name: row.detail for row in status(tmp_path)}
    assert details["mnist"] == "orthocl data fetch mnist (55 MB on disk)"
    states = {row.name: row.state for row in status(tmp_path)}
    assert states.pop("mnist-mini") == "verified"
    assert set(states.values()) == {"missing"}
    assert list(states) == [
        "mnist",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "cub200",
        "alexnet",
        "all-minilm-l6-v2",
        "efficientnet-lite0",
        "cub200 features",
    ]


def test_status_tells_damaged_from_unverified(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(b"rubbish")
    write_birds(tmp_path / "CUB_200_2011")
    write_weights(tmp_path / "alexnet-conv.npz")
    rows = {row.name: row for row in status(tmp_path)}
    assert rows["mnist"].state == "damaged"
    assert "47040016 bytes, this file only 7" in rows["mnist"].detail
    assert rows["mnist"].size == 28
    assert rows["cub200"].state == "damaged"
    assert (rows["alexnet"].state, rows["alexnet"].detail) == ("unverified", "gives pool5")
    run("status", "--data-root", tmp_path)
    assert "delete it and fetch it again" in capsys.readouterr().out.replace("\n", " ")


def test_fetch(web, tmp_path, capsys, monkeypatch):
    content = b"content" * 1000
    web.content["file"] = content
    known = f"sha256:{hashlib.sha256(content).hexdigest()}"
    edition = Edition(("Tiny",), (DataFile("file", len(content), known),))
    entry = Entry(
        "tiny",
        "Tiny",
        "free",
        "nobody",
        "-",
        (edition,),
        ((0, WebFiles(f"{web.url}/ok/", (("file", known),))),),
    )
    monkeypatch.setitem(command.ENTRIES, "tiny", entry)
    run("fetch", "tiny", "--data-root", tmp_path)
    assert (tmp_path / "Tiny" / "file").read_bytes() == content
    assert f"complete and verified in {tmp_path / 'Tiny'}" in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(SettingsError, match="did you mean 'cifar100'"):
        run("fetch", "cifar-100")


def test_prepare(tmp_path, capsys, monkeypatch):
    write_birds(tmp_path / "CUB_200_2011")
    write_weights(tmp_path / "alexnet-conv.npz")
    with pytest.raises(DataError, match="6 images of 2 classes"):
        run("prepare", "cub200", "--data-root", tmp_path)
    monkeypatch.setattr("orthocl.streams.datasets.cub200.IMAGES", 6)
    monkeypatch.setattr("orthocl.streams.datasets.cub200.CLASSES", 2)
    run("prepare", "cub200", "--data-root", tmp_path, "--batch-size", 4)
    assert "6 x 9216 features of pool5" in capsys.readouterr().out.replace("\n", "")
    files = list((tmp_path / "features").iterdir())
    assert [file.suffix for file in files] == [".npz"]
    rows = {row.name: row for row in status(tmp_path)}
    assert rows["cub200 features"].detail == "6 x 9216 float16, pool5"
    assert rows["cub200"].detail == "6 images, lists consistent"


def test_prepare_says_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"'mnist'.*cub200"):
        run("prepare", "mnist")
    with pytest.raises(DataError, match="orthocl data fetch cub200"):
        run("prepare", "cub200", "--data-root", tmp_path)
