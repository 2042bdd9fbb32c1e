"""Data. Every row: what is given, the kind of error, and words that it must contain."""

from __future__ import annotations

import io
import os
import tarfile
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from orthocl.errors import DataError, OrthoclError, SettingsError
from orthocl.streams import from_arrays, from_image_folder, from_npz, make
from orthocl.streams.datasets.archives import extract_tree

X, Y = np.linspace(0, 1, 18).reshape(6, 3), np.array([0, 1] * 3)
ARRAYS = {
    "too large for 64 bits": ({"x": np.full((6, 3), 2**64 - 1, dtype=np.uint64)}, DataError, "too large"),
    "masked": ({"x": np.ma.masked_array(X, mask=X > 0.5)}, DataError, "masked values"),
    "fractions as integers": ({"dtype": torch.int64}, DataError, "fractions"),
    "NaN": ({"x": np.where(X > 0.5, np.nan, X)}, DataError, "NaN or infinite values"),
    "infinite": (
        {"x": X / 0.0 if False else np.where(X > 0.5, np.inf, X)},
        DataError,
        "NaN or infinite values",
    ),
    "text": ({"x": np.array([["a"] * 3] * 6)}, DataError, "must be numbers"),
    "objects": ({"x": np.array([[None] * 3] * 6)}, DataError, "must be numbers"),
    "complex": ({"x": X.astype(complex)}, DataError, "must be numbers"),
    "dates": ({"x": X.astype("datetime64[s]")}, DataError, "must be numbers"),
    "sparse": ({"x": torch.eye(6).to_sparse()}, DataError, "dense real numbers"),
    "one number per sample": ({"x": X[:, 0]}, DataError, "reshape"),
    "no samples": ({"x": X[:0], "y": Y[:0]}, DataError, "leave the task out"),
    "no values": ({"x": X[:, :0]}, DataError, "no values"),
    "more inputs than targets": ({"y": Y[:3]}, DataError, "one target per input"),
    "one target": ({"y": np.array(1)}, DataError, "one target per input"),
    "negative labels": ({"y": Y - 1}, DataError, "count from 0"),
    "one-hot labels": ({"y": np.eye(2, dtype=int)[Y]}, DataError, "argmax"),
    "float labels": ({"y": Y.astype(float), "kind": "classification"}, DataError, "must be integers"),
    "ragged": ({"x": [[1.0], [1.0, 2.0]]}, DataError, "not an array"),
    "outputs: text": ({"outputs": "a"}, SettingsError, "outputs must be"),
    "outputs: fraction": ({"outputs": 3.5}, SettingsError, "outputs must be"),
    "outputs: bool": ({"outputs": True}, SettingsError, "outputs must be"),
    "outputs: zero": ({"outputs": 0}, SettingsError, "at least 1"),
    "outputs: too few": ({"outputs": 1}, DataError, "below outputs=1"),
    "outputs: of too many tasks": ({"outputs": [2, 2, 2]}, SettingsError, "one number of outputs each"),
    "names: a number": ({"names": 5}, SettingsError, "names must be"),
    "names: too many": ({"names": ["a", "b"]}, SettingsError, "as many names"),
    "heads: a number": ({"heads": 5}, SettingsError, "unknown heads"),
    "heads: unknown": ({"heads": "many"}, SettingsError, "per-task"),
    "kind": ({"kind": 5}, SettingsError, "classification, regression"),
    "dtype": ({"dtype": "float32"}, SettingsError, "a type of torch"),
    "tasks: none": ({"tasks": []}, DataError, "at least one task"),
    "tasks: a number": ({"tasks": 5}, DataError, "expected a list of"),
    "tasks: a text": ({"tasks": "abc"}, DataError, "expected a list of"),
    "tasks: pairs": ({"tasks": [(X, Y)]}, DataError, "x_train, y_train, x_test, y_test"),
}


@pytest.mark.parametrize(("changes", "kind", "words"), ARRAYS.values(), ids=ARRAYS)
def test_arrays(changes, kind, words):
    given = dict(changes)
    x, y = given.pop("x", X), given.pop("y", Y)
    tasks = given.pop("tasks", [(x, y, x, y)])
    with pytest.raises(kind, match=words):
        from_arrays(tasks, **given)


STREAMS = [
    ("rotated-mnist-min", {}, "did you mean 'rotated-mnist-mini'"),
    ("rotated-mnist-mini", {"tasks": 0}, "at least 1"),
    ("rotated-mnist-mini", {"tasks": "3"}, "must be int"),
    ("rotated-mnist-mini", {"train_size": 0}, "at least 1"),
    ("rotated-mnist-mini", {"train_size": 10**9}, "a task has 5000 samples"),
    ("rotated-mnist-mini", {"options": {"step": "a"}}, "must be float"),
    ("rotated-mnist-mini", {"options": {"stp": 1.0}}, "did you mean 'step'"),
    ("split-mnist-mini", {"tasks": 6}, "at most 5 tasks"),
    ("split-mnist-mini", {"options": {"classes_per_task": 0}}, "from 1 to 10"),
    ("split-mnist-mini", {"options": {"classes_per_task": 11}}, "from 1 to 10"),
    ("rotated", {"options": {"data": "nowhere"}}, "unknown data"),
    ("none.npz", {}, "no such file"),
    ("folder", {}, "needs a value for 'folder'"),
]


@pytest.mark.parametrize(("name", "settings", "words"), STREAMS)
def test_streams(name, settings, words):
    with pytest.raises(OrthoclError, match=words):
        make(name, **settings)


NPZ = {
    "not a zip": (b"hello", "npz|zip|damaged"),
    "empty": (b"", "npz|zip|damaged|empty"),
    "other names": ({"a": X}, "expected arrays x_train_1"),
    "a part missing": ({"x_train_1": X, "y_train_1": Y, "x_test_1": X}, "no array y_test_1"),
    "a task missing": (
        {f"{p}_2": X for p in ("x_train", "y_train", "x_test", "y_test")},
        "no array x_train_1",
    ),
    "objects": ({"x_train_1": np.array([None])}, "x_train_1|pickle|object"),
}


@pytest.mark.parametrize(("content", "words"), NPZ.values(), ids=NPZ)
def test_files_of_arrays(tmp_path, content, words):
    path = tmp_path / "tasks.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    with pytest.raises(OrthoclError, match=words):
        from_npz(path)


# ---- folders of images ------------------------------------------------------------------------------------------


def picture(path, array=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    if array is None:
        array = np.full((8, 8, 3), 100, dtype=np.uint8)
    Image.fromarray(array).save(path, **options)


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        for number in range(3):
            picture(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def spoil(folder, name, content):
    (folder / "a" / name).write_bytes(content)


FOLDERS = {
    "text called .png": (lambda f: spoil(f, "x.png", b"hello"), {}, "x.png: not a readable image"),
    "PostScript called .jpg": (
        lambda f: spoil(f, "e.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"),
        {},
        "e.jpg: not a readable image",
    ),
    "empty": (lambda f: spoil(f, "x.gif", b""), {}, "x.gif: not a readable image"),
    "truncated": (
        lambda f: spoil(f, "x.png", (f / "a" / "0.png").read_bytes()[:40]),
        {},
        "x.png: not a readable image",
    ),
    "a pipe": (lambda f: os.mkfifo(f / "a" / "p.png"), {}, "it is not a file"),
    "a folder called .png": (lambda f: (f / "a" / "d.png").mkdir(), {}, "it is not a file"),
    "floating-point pixels": (
        lambda f: Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(f / "a" / "f.tif"),
        {},
        "floating-point",
    ),
    "32-bit pixels": (
        lambda f: Image.fromarray(np.full((8, 8), 70_000, dtype=np.int32)).save(f / "a" / "i.tif"),
        {},
        "more than 16 bits",
    ),
    "a class without images": (lambda f: (f / "c").mkdir(), {}, "holds no images"),
    "size 0": (lambda f: None, {"size": 0}, "size must be at least 1"),
    "size 1.5": (lambda f: None, {"size": 1.5}, "size must be int, got 1.5"),
    "size 10^9": (lambda f: None, {"size": 10**9}, "size must be at most 10000"),
    "test_fraction: a text": (lambda f: None, {"test_fraction": "a"}, "test_fraction must be float"),
    "test_fraction 1": (lambda f: None, {"test_fraction": 1.0}, "between 0 and 1"),
    "too many classes a task": (lambda f: None, {"classes_per_task": 3}, "from 1 to 2"),
    "too many tasks": (lambda f: None, {"tasks": 2}, "at most 1 tasks"),
}


@pytest.mark.parametrize(("change", "settings", "words"), FOLDERS.values(), ids=FOLDERS)
def test_folders(folder, change, settings, words):
    change(folder)
    with pytest.raises(OrthoclError, match=words):
        from_image_folder(folder, **settings)


def test_no_program_is_started_by_a_picture(folder, tmp_path, monkeypatch):
    """Pillow would start Ghostscript from the path for PostScript, whatever the file is called."""
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent) + os.pathsep + os.environ["PATH"])
    spoil(
        folder, "e.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with pytest.raises(DataError):
        from_image_folder(folder)
    assert not (tmp_path / "started").exists()


def test_sixteen_bits_are_scaled_not_cut(tmp_path):
    eight = np.arange(0, 256, dtype=np.uint8).reshape(16, 16)
    for name, array in {"a": eight, "b": eight.astype(np.uint16) * 257}.items():
        for number in range(2):
            picture(tmp_path / "photos" / name / f"{number}.png", array)
    stream = from_image_folder(tmp_path / "photos", size=16, grey=True)
    inputs = stream.task(1).train.inputs()
    assert torch.equal(inputs[0], inputs[1]), "a ramp of 16 bits is the ramp of 8 bits"


def test_classes_left_over_are_said(tmp_path):
    for name in ("a", "b", "c"):
        for number in range(2):
            picture(tmp_path / "photos" / name / f"{number}.png")
    with pytest.warns(UserWarning, match=r"3 classes .* 1 are left out \(c\)"):
        assert len(from_image_folder(tmp_path / "photos")) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_image_folder(tmp_path / "photos", tasks=1)


@pytest.mark.parametrize("name", [".", "", "x", "x/", "./"])
def test_odd_names_in_an_archive_do_no_harm(tmp_path, name):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 2
        tar.addfile(member, io.BytesIO(b"ab"))
    target = tmp_path / "out"
    extract_tree(path, "x", target, most_bytes=100, most_files=10, progress=lambda *_: None)
    assert not target.exists() or not list(target.iterdir())
