"""Folders of images by class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from orthocl.errors import DataError, SettingsError
from orthocl.streams import from_image_folder
from orthocl.streams.registry import data_of_path


def paint(folder, count, shade, size=(10, 8), suffix=".png"):
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", size, (shade, number, 0)).save(folder / f"{number}{suffix}")


@pytest.fixture
def animals(tmp_path):
    for shade, name in enumerate(["cat", "ant", "bee", "dog"]):
        paint(tmp_path / "animals" / name, 10, 60 * shade)
    (tmp_path / "animals" / ".hidden").mkdir()
    (tmp_path / "animals" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path / "animals"


def test_classes_become_tasks(animals):
    stream = from_image_folder(animals, size=6)
    assert (stream.name, len(stream), stream.input_shape) == ("split-animals", 2, (3, 6, 6))
    assert [task.name for task in stream] == ["classes ant, bee", "classes cat, dog"]
    assert [(len(task.train), len(task.test)) for task in stream] == [(16, 4), (16, 4)]
    red = stream.data.train_images[stream.data.train_labels == 0, 0]
    assert (red == 60).all()
    everything = torch.cat([task.train.inputs() for task in stream])
    torch.testing.assert_close(everything[:, 0].mean(), torch.tensor(0.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(everything[:, 0].std(correction=0), torch.tensor(1.0), atol=1e-3, rtol=0)
    assert stream.data.std[2] == 1.0


def test_held_out_images_follow_the_data_seed_only(animals):
    first, again, other = (from_image_folder(animals, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    greens = [
        sorted({int(i[1, 0, 0]) for i in s.data.test_images[s.data.test_labels == 0]}) for s in (first, other)
    ]
    assert all(len(each) == 2 for each in greens)


def test_given_test_folder_is_used(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for name in "ab":
            paint(tmp_path / part / name, count, 9, suffix=".jpg")
    stream = from_image_folder(tmp_path, classes_per_task=1, grey=True)
    assert stream.input_shape == (1, 32, 32)
    assert [(len(task.train), len(task.test)) for task in stream] == [(3, 2), (3, 2)]


def test_images_are_scaled_as_pillow_does(animals):
    picture = np.random.RandomState(0).randint(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(picture).save(animals / "ant" / "0.png")
    stream = from_image_folder(animals, size=12)
    expected = np.asarray(Image.fromarray(picture).resize((12, 12), Image.Resampling.BILINEAR)).transpose(
        2, 0, 1
    )
    images = torch.cat([stream.data.train_images, stream.data.test_images])
    assert any((image.numpy() == expected).all() for image in images)


def test_wrong_folders(tmp_path, animals):
    with pytest.raises(DataError, match="is not a folder"):
        from_image_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no subfolders"):
        from_image_folder(animals / "ant")
    with pytest.raises(SettingsError, match="test_fraction"):
        from_image_folder(animals, test_fraction=1.0)
    (animals / "dog" / "3.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"3\.png: not a readable image"):
        from_image_folder(animals)
    (animals / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no images"):
        from_image_folder(animals)
    paint(tmp_path / "one" / "single", 1, 0)
    with pytest.raises(DataError, match="at least two"):
        from_image_folder(tmp_path / "one")
    for part, names in (("train", "ab"), ("test", "ac")):
        for name in names:
            paint(tmp_path / "parts" / part / name, 1, 0)
    with pytest.raises(DataError, match="same classes: b, c"):
        from_image_folder(tmp_path / "parts")


@pytest.mark.parametrize("spec", ["photo/", "./photo", "some/where/photo"])
def test_a_missing_folder_is_said_to_be_missing(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="no such folder"):
        data_of_path(spec)
