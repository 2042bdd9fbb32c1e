"""CUB-200: lists, images, weights, features, the stream; on a small copy and on the real sample."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from orthocl import streams
from orthocl.errors import DataError
from orthocl.nets import AlexNet
from orthocl.streams.datasets import load_cub200
from orthocl.streams.datasets.cub200 import find_folder, hash_images, load_images, read_index
from orthocl.streams.datasets.features import LAYERS, extract_features, read_features
from orthocl.streams.datasets.schema import DataFile
from orthocl.streams.datasets.weights import CONVOLUTIONS, FC6, check_weights, find_weights, read_weights


@pytest.fixture
def birds(tmp_path):
    """A folder in the form of CUB_200_2011: 12 small images of 3 classes."""
    folder = tmp_path / "CUB_200_2011"
    lines = {"images.txt": [], "image_class_labels.txt": [], "train_test_split.txt": []}
    for number in range(1, 13):
        label = (number - 1) // 4 + 1
        path = f"{label:03}.Bird/bird_{number}.jpg"
        (folder / "images" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300 + number, 260), (20 * number, 100, 0)).save(folder / "images" / path)
        lines["images.txt"].append(f"{number} {path}")
        lines["image_class_labels.txt"].append(f"{number} {label}")
        lines["train_test_split.txt"].append(f"{number} {number % 2}")
    lines["classes.txt"] = [f"{label} {label:03}.Bird" for label in (1, 2, 3)]
    for name, text in lines.items():
        (folder / name).write_text("\n".join(text) + "\n")
    return folder


def brightness(images: torch.Tensor) -> torch.Tensor:
    """A stand-in for the network: 9216 numbers that depend on the image."""
    return images.mean((1, 2, 3))[:, None] + torch.linspace(0, 1, 9216)


def extract(birds, root, network=brightness, **changes):
    settings = {"layer": "pool5", "weights": "w" * 64, "batch_size": 5, **changes}
    return extract_features(read_index(birds, complete=False), network, root, **settings)


def test_lists(birds, tmp_path):
    assert find_folder(tmp_path) == birds
    index = read_index(birds, complete=False)
    assert index.paths[0] == "001.Bird/bird_1.jpg"
    assert index.labels == (0,) * 4 + (1,) * 4 + (2,) * 4
    assert index.train == (True, False) * 6
    assert index.classes == ("001.Bird", "002.Bird", "003.Bird")
    with pytest.raises(DataError, match="12 images of 3 classes, CUB-200-2011 has 11788 of 200"):
        read_index(birds)


@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        ("images.txt", 3, "5 wrong/number.jpg", "line 4: expected '4 ...'"),
        ("images.txt", 3, "4", "line 4"),
        ("images.txt", 0, "1 ../../etc/passwd", "unsafe image path"),
        ("images.txt", 0, "1 /etc/passwd", "unsafe image path"),
        ("image_class_labels.txt", 2, "3 4", "labels must be from 1 to 3"),
        ("image_class_labels.txt", 2, "3 0", "labels must be from 1 to 3"),
        ("image_class_labels.txt", 2, "3 x", "expected a number"),
        ("train_test_split.txt", 2, "3 2", "splits 0 or 1"),
        ("train_test_split.txt", 11, None, "lists do not agree: 12 images, 12 labels, 11 splits"),
    ],
)
def test_wrong_lists(birds, file, line, text, message):
    lines = (birds / file).read_text().splitlines()
    lines[line : line + 1] = [] if text is None else [text]
    (birds / file).write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        read_index(birds, complete=False)


def test_fuzz_lists(birds):
    draw = random.Random(0)
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"):
        stored = (birds / name).read_bytes()
        for _ in range(150):
            changed = bytearray(stored)
            for _ in range(draw.choice([1, 3, 20])):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            (birds / name).write_bytes(
                bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
            )
            try:
                index = read_index(birds, complete=False)
            except DataError:
                continue
            assert all(0 <= label < len(index.classes) for label in index.labels)
        (birds / name).write_bytes(stored)
    (birds / "images.txt").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        read_index(birds, complete=False)


def test_images_as_alexnet_wants_them(tmp_path):
    """Against the arithmetic written out: shorter side 256, centre 224, ImageNet normalisation."""
    draw = np.random.RandomState(0)
    for width, height in ((500, 333), (333, 500), (256, 256), (120, 90)):
        path = tmp_path / f"{width}.png"
        Image.fromarray(draw.randint(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
        tensor = load_images([path])
        assert tensor.shape == (1, 3, 224, 224)
        scale = 256 / min(width, height)
        size = (256, int(height * 256 / width)) if width <= height else (int(width * 256 / height), 256)
        assert abs(size[0] - width * scale) < 1
        whole = np.asarray(Image.open(path).resize(size, Image.Resampling.BILINEAR)).astype(np.float64) / 255
        top, left = round((size[1] - 224) / 2), round((size[0] - 224) / 2)
        centre = whole[top : top + 224, left : left + 224]
        expected = (centre - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        np.testing.assert_allclose(tensor[0].permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_grey_and_damaged_images(birds):
    Image.new("L", (300, 300), 77).save(birds / "images" / "001.Bird" / "bird_1.jpg")
    assert load_images([birds / "images" / "001.Bird" / "bird_1.jpg"]).shape == (1, 3, 224, 224)
    (birds / "images" / "001.Bird" / "bird_2.jpg").write_bytes(b"\xff\xd8\xff rubbish")
    with pytest.raises(DataError, match=r"bird_2\.jpg: not a readable image"):
        load_images([birds / "images" / "001.Bird" / "bird_2.jpg"])
    (birds / "images" / "001.Bird" / "bird_3.jpg").unlink()
    with pytest.raises(DataError, match=r"bird_3\.jpg cannot be read"):
        hash_images(read_index(birds, complete=False))


def test_fuzz_images(birds):
    path = birds / "images" / "001.Bird" / "bird_1.jpg"
    noise = np.random.RandomState(0).randint(0, 256, (40, 50, 3), dtype=np.uint8)
    for save in ("JPEG", "PNG", "GIF"):
        Image.fromarray(noise).save(path, save)
        stored, draw = path.read_bytes(), random.Random(0)
        for _ in range(60):
            changed = bytearray(stored)
            for _ in range(draw.choice([1, 3, 20])):
                changed[draw.randrange(draw.choice([30, 200, len(changed)]))] = draw.randrange(256)
            path.write_bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
            try:
                assert load_images([path]).isfinite().all()
            except DataError:
                continue


def test_features_are_kept_and_read(birds, tmp_path):
    path = extract(birds, tmp_path)
    data = read_features(path)
    index = read_index(birds, complete=False)
    expected = brightness(load_images([index.folder / name for name in index.paths])).half()
    assert torch.equal(data.features, expected)
    assert data.labels.tolist() == list(index.labels)
    assert data.train.tolist() == list(index.train)
    assert data.classes == index.classes
    assert data.origin == {"layer": "pool5", "weights": "w" * 64, "images": hash_images(index)}
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]
    stream = streams.make("cub200", data_root=tmp_path, tasks=3, options={"classes_per_task": 1})
    assert [(len(task.train), len(task.test)) for task in stream] == [(2, 2)] * 3
    assert stream.settings["layer"] == "pool5"
    assert stream.settings["weights"] == "w" * 64
    assert torch.equal(stream.task(2).train.inputs(), expected[[4, 6]].float())


def test_the_name_follows_images_weights_and_type(birds, tmp_path):
    names = {extract(birds, tmp_path).name, extract(birds, tmp_path, weights="v" * 64).name}
    names.add(extract(birds, tmp_path, dtype="float32").name)
    Image.new("RGB", (300, 300)).save(birds / "images" / "001.Bird" / "bird_1.jpg")
    names.add(extract(birds, tmp_path).name)
    assert len(names) == 4


def test_features_are_made_once(birds, tmp_path):
    first = extract(birds, tmp_path)

    def never(_):
        raise AssertionError("computed again")

    assert extract(birds, tmp_path, network=never) == first


def test_an_interrupted_run_goes_on(birds, tmp_path):
    seen = []

    def failing(images):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(len(images))
        return brightness(images)

    with pytest.raises(KeyboardInterrupt):
        extract(birds, tmp_path, network=failing)
    assert seen == [5, 5]
    done = []

    def counting(images):
        done.append(len(images))
        return brightness(images)

    path = extract(birds, tmp_path, network=counting)
    assert done == [2]
    whole = extract(birds, tmp_path / "other")
    assert torch.equal(read_features(path).features, read_features(whole).features)


def test_a_damaged_journal_starts_anew(birds, tmp_path):
    path = extract(birds, tmp_path)
    for note in ("rubbish", "{}", '{"rows": 99}', '{"rows": -1}', "[]"):
        path.unlink(missing_ok=True)
        path.with_suffix(".json.partial").write_text(note)
        path.with_suffix(".npy.partial").write_bytes(b"rubbish")
        assert read_features(extract(birds, tmp_path)).features.shape == (12, 9216)


def feature_file(path, **changes):
    arrays = {
        "features": np.ones((4, 9216), np.float16),
        "labels": np.array([0, 0, 1, 1], np.int16),
        "train": np.array([True, False, True, False]),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_a_plain_feature_file_will_do(tmp_path):
    data = read_features(feature_file(tmp_path / "cub200-alexnet-pool5.npz"))
    assert data.origin == {"layer": "pool5"}
    assert data.classes == ("001", "002")
    assert len(load_cub200(tmp_path).split("train", (1,))) == 1


def test_fc6_is_preferred_and_a_layer_can_be_asked_for(tmp_path):
    feature_file(tmp_path / "cub200-alexnet-pool5.npz")
    feature_file(tmp_path / "cub200-alexnet-fc6.npz", features=np.ones((4, 4096), np.float32))
    assert load_cub200(tmp_path).origin["layer"] == "fc6"
    assert load_cub200(tmp_path, "pool5").origin["layer"] == "pool5"
    assert streams.make(
        "cub200", data_root=tmp_path, tasks=1, options={"classes_per_task": 2, "layer": "pool5"}
    ).input_shape == (9216,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": None}, "no array features"),
        ({"train": None}, "no array train"),
        ({"features": np.ones((4, 9216))}, "float16 or float32"),
        ({"features": np.ones(4, np.float16)}, "float16 or float32"),
        ({"features": np.full((4, 9216), np.nan, np.float16)}, "NaN"),
        ({"labels": np.zeros(3, np.int16)}, "labels must be 4 integers"),
        ({"labels": np.zeros(4)}, "labels must be 4 integers"),
        ({"labels": np.array([0, 0, 1, -1])}, "labels must be from 0"),
        ({"train": np.zeros(4, bool)}, "some true and some false"),
        ({"train": np.zeros(4, int)}, "train must be 4 booleans"),
        ({"meta": np.array("{")}, "meta text is damaged"),
        ({"meta": np.array("[1]")}, "not a JSON object"),
        ({"meta": np.array([{}], dtype=object)}, "holds object"),
    ],
)
def test_wrong_feature_files(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_features(feature_file(tmp_path / "x.npz", **changes))


def test_fuzz_feature_files(tmp_path):
    small = {"features": np.ones((4, 8), np.float16), "meta": np.array(json.dumps({"layer": "pool5"}))}
    path = feature_file(tmp_path / "x.npz", **small)
    stored, draw = path.read_bytes(), random.Random(0)
    for _ in range(400):
        changed = bytearray(stored)
        for _ in range(draw.choice([1, 2, 10])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed[: draw.choice([len(changed), len(changed), draw.randrange(len(changed))])])
        try:
            data = read_features(path)
        except DataError:
            continue
        assert len(data.features) == len(data.labels) == len(data.train)


def convolutions(**changes):
    state = {}
    for name, shape in {**CONVOLUTIONS, **FC6}.items():
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.zeros(shape), torch.zeros(shape[0])
    return {**state, **changes}


def test_weights_are_checked(tmp_path):
    everything = check_weights(tmp_path, convolutions(), "fc6")
    assert everything.layer == "fc6"
    assert len(everything.tensors) == 12
    assert len(check_weights(tmp_path, convolutions(), "pool5").tensors) == 10
    with pytest.raises(DataError, match=r"expected features.3.weight of shape .* got shape \(1,\)"):
        check_weights(tmp_path, convolutions(**{"features.3.weight": torch.zeros(1)}), "pool5")
    with pytest.raises(DataError, match="NaN"):
        check_weights(tmp_path, convolutions(**{"features.3.bias": torch.full((192,), torch.nan)}), "pool5")
    path = tmp_path / "alexnet-conv.npz"
    np.savez(path, **{name: tensor.numpy() for name, tensor in convolutions().items() if "features" in name})
    assert find_weights(tmp_path) == path
    assert read_weights(path).layer == "pool5"
    np.savez(path, **{"features.0.weight": np.zeros(3)})
    with pytest.raises(DataError, match=r"expected features.0.weight"):
        read_weights(path)
    np.savez(path, x=np.array("text"))
    with pytest.raises(DataError, match="expected floats"):
        read_weights(path)


def test_a_pth_file_that_is_not_torchvisions_is_not_loaded(tmp_path, monkeypatch):
    path = tmp_path / "alexnet-owt-7be5be79.pth"
    torch.save(convolutions(), path)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(DataError, match=r"alexnet-owt-7be5be79\.pth has 244408911 bytes, this file only"):
        read_weights(path)


def test_torchvisions_file_is_read_as_tensors_only(tmp_path, monkeypatch):
    path = tmp_path / "alexnet-owt-7be5be79.pth"
    shapes = {name: tensor.shape for name, tensor in convolutions().items()}
    torch.save({name: torch.full((1,), 0.5).expand(shape) for name, shape in shapes.items()}, path)
    content = path.read_bytes()
    known = DataFile(path.name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
    monkeypatch.setattr("orthocl.streams.datasets.weights.ALEXNET_FILE", known)
    np.savez(tmp_path / "alexnet-conv.npz", x=np.zeros(1))
    assert find_weights(tmp_path) == path
    weights = read_weights(path)
    assert weights.layer == "fc6"
    assert AlexNet.from_torchvision(weights.tensors, weights.layer)(torch.zeros(1, 3, 224, 224)).shape == (
        1,
        4096,
    )


def test_without_weights_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    with pytest.raises(DataError, match="orthocl data fetch alexnet") as caught:
        find_weights(tmp_path)
    assert "7be5be791159472b" in str(caught.value)


@pytest.mark.data
def test_the_published_features_are_reproduced_to_their_rounding(birds_root, tmp_path):
    """End to end on the 16 original images: the rows of the shared feature file, rounded to 5 mantissa bits."""
    with (birds_root / "cub-sample" / "index.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    folder = tmp_path / "CUB_200_2011"
    (folder / "images").mkdir(parents=True)
    for row in rows:
        shutil.copy(birds_root / "cub-sample" / row["file"], folder / "images" / row["file"])
    for name, values in (
        ("images", [row["file"] for row in rows]),
        ("image_class_labels", [1] * 16),
        ("train_test_split", [1, 0] * 8),
    ):
        (folder / f"{name}.txt").write_text(
            "".join(f"{number} {value}\n" for number, value in enumerate(values, start=1))
        )
    (folder / "classes.txt").write_text("1 bird\n")
    weights = read_weights(find_weights(birds_root))
    network = AlexNet.from_torchvision(weights.tensors, weights.layer)
    path = extract_features(
        read_index(folder, complete=False),
        network,
        tmp_path,
        layer=weights.layer,
        weights=weights.sha256,
        dtype="float32",
    )
    made = read_features(path).features
    published = load_cub200(birds_root, "pool5")
    expected = published.features[[int(row["row"]) for row in rows]].float()
    assert made.shape == expected.shape == (16, LAYERS["pool5"])
    assert torch.equal(made == 0, expected == 0)
    # Rounded to float16 (ten bits beside the leading one) and then to five bits: half a step of each.
    power = 2.0 ** torch.floor(torch.log2(made.clamp(min=1e-30)))
    assert ((made - expected).abs() <= power * (2.0**-6 + 2.0**-11 + 2e-5)).all()


@pytest.mark.data
def test_the_stream_on_complete_features(birds_root):
    stream = streams.make("cub200", data_root=birds_root)
    assert (stream.name, len(stream), stream.input_shape) == ("cub200", 10, (9216,))
    assert stream.settings["layer"] == "pool5"
    assert sum(len(task.train) for task in stream) == 5994
    assert sum(len(task.test) for task in stream) == 5794
    assert {task.outputs for task in stream} == {20}
    for task in (stream.task(1), stream.task(10)):
        assert sorted(set(task.train.targets.tolist())) == list(range(20))
    inputs = stream.task(1).train.inputs(slice(0, 8))
    assert inputs.dtype == torch.float32
    assert stream.task(1).train.stored.dtype == torch.float16
