"""Permuted, rotated and split streams against slow, obvious references."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from orthocl import streams
from orthocl.errors import DataError, SettingsError
from orthocl.streams import ImageData, permuted, rotated, split
from orthocl.streams.datasets import mnist_mini
from orthocl.streams.seeds import generator


@pytest.fixture(scope="module")
def noise() -> ImageData:
    """Small colour images, bright to the very edge."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (90, 3, 9, 12), dtype=torch.uint8, generator=draw)
    labels = torch.arange(90) % 6
    classes = tuple("abcdef")
    return ImageData(
        "noise", images[:60], labels[:60], images[60:], labels[60:], classes, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    )


def reference(image: np.ndarray, data: ImageData) -> torch.Tensor:
    """Scale and normalise one uint8 image (channels, height, width) in float64."""
    scaled = torch.from_numpy(image.astype(np.float64)) / 255
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (data.mean, data.std))
    return (scaled - mean) / std


def turned(image: np.ndarray, angle: float, resample: Image.Resampling) -> np.ndarray:
    return np.stack([np.asarray(Image.fromarray(channel).rotate(angle, resample)) for channel in image])


def test_first_permuted_task_is_the_original(noise):
    inputs = permuted(noise, tasks=2).task(1).train.inputs()
    expected = torch.stack([reference(image, noise) for image in noise.train_images.numpy()])
    torch.testing.assert_close(inputs.double(), expected, rtol=0, atol=2e-6)


def test_permuted_pixels_move_as_one_and_the_same_way_in_all_images(noise):
    stream = permuted(noise, tasks=3, seed=7)
    for number in (2, 3):
        task = stream.task(number)
        order = generator("permuted", 7, number).permutation(9 * 12)
        assert sorted(order) == list(range(9 * 12))
        for part in ("train", "test"):
            view, original = getattr(task, part), noise.images(part).numpy()
            moved = original.reshape(-1, 3, 108)[:, :, order].reshape(-1, 3, 9, 12)
            expected = torch.stack([reference(image, noise) for image in moved])
            torch.testing.assert_close(view.inputs().double(), expected, rtol=0, atol=2e-6)
            assert torch.equal(view.targets, noise.labels(part))


@pytest.mark.parametrize("resample", ["nearest", "bilinear"])
@pytest.mark.parametrize("source", ["digits", "noise"])
def test_rotation_is_pillows_bit_by_bit(noise, resample, source):
    data = noise if source == "noise" else mnist_mini()
    stream = rotated(data, tasks=15, resample=resample)
    assert stream.angles == tuple(range(0, 75, 5))
    some = torch.arange(0, len(data.train_labels), len(data.train_labels) // 40)
    for number, angle in enumerate(range(0, 75, 5), start=1):
        inputs = stream.task(number).train.inputs(some)
        pixels = np.stack(
            [
                turned(image.numpy(), angle, Image.Resampling[resample.upper()])
                for image in data.train_images[some]
            ]
        )
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
        assert torch.equal(inputs, torch.from_numpy(pixels).float().div(255).sub(mean).div(std))


@pytest.mark.parametrize("angle", [90, 180, 270, 360, -5, 33.3, 725])
@pytest.mark.parametrize("resample", ["nearest", "bilinear"])
def test_unusual_angles(noise, angle, resample):
    square = replace(noise, train_images=noise.train_images[..., :9], test_images=noise.test_images[..., :9])
    inputs = rotated(square, angles=[angle], resample=resample).task(1).train.inputs(slice(0, 5))
    pixels = np.stack(
        [
            turned(image.numpy(), angle, Image.Resampling[resample.upper()])
            for image in square.train_images[:5]
        ]
    )
    expected = torch.stack([reference(image, square) for image in pixels])
    torch.testing.assert_close(inputs.double(), expected, rtol=0, atol=2e-6)


def test_split_holds_its_classes_and_no_other(noise):
    stream = split(noise, classes_per_task=2)
    assert dict(stream.heads) == {"task-1": 2, "task-2": 2, "task-3": 2}
    seen = []
    for task in stream:
        first = 2 * (task.number - 1)
        for part in ("train", "test"):
            view = getattr(task, part)
            rows = [row for row, label in enumerate(noise.labels(part)) if label in (first, first + 1)]
            assert view.targets.tolist() == [int(noise.labels(part)[row]) - first for row in rows]
            expected = torch.stack([reference(noise.images(part)[row].numpy(), noise) for row in rows])
            torch.testing.assert_close(view.inputs().double(), expected, rtol=0, atol=2e-6)
        seen.append(len(task.train))
        assert (task.head, task.outputs) == (f"task-{task.number}", 2)
        assert task.name == f"classes {'abcdef'[first]}, {'abcdef'[first + 1]}"
    assert sum(seen) == 60


def test_shuffled_classes_are_dealt_out_once(noise):
    stream = split(noise, classes_per_task=3, shuffle_classes=True, seed=1)
    assert sorted(label for group in stream.groups for label in group) == list(range(6))
    assert stream.groups != split(noise, classes_per_task=3).groups
    assert stream.groups != split(noise, classes_per_task=3, shuffle_classes=True, seed=2).groups
    task = stream.task(1)
    labels = noise.train_labels[torch.isin(noise.train_labels, torch.tensor(stream.groups[0]))]
    assert [stream.groups[0][label] for label in task.train.targets] == labels.tolist()


@pytest.mark.parametrize("make", [permuted, rotated, split])
def test_every_way_of_indexing_agrees(noise, make):
    view = make(noise, tasks=2).task(2).train
    everything = view.inputs()
    mask = torch.arange(len(view)) % 3 == 1
    for index in (
        torch.tensor([5, 0, 5]),
        torch.tensor([-1, 2]),
        slice(3, 9),
        slice(None, None, 4),
        mask,
        torch.tensor([1], dtype=torch.int32),
    ):
        inputs, targets = view.samples(index)
        assert torch.equal(
            inputs,
            everything[
                index.long() if isinstance(index, torch.Tensor) and index.dtype == torch.int32 else index
            ],
        )
        assert torch.equal(targets, view.targets[index])
    assert view.inputs(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 9, 12)


@pytest.mark.parametrize("make", [permuted, rotated, split])
def test_inputs_can_be_written_to_without_harm(noise, make):
    view = make(noise, tasks=2).task(1).train
    before = view.inputs()
    view.inputs().zero_()
    view.inputs(slice(0, 4)).zero_()
    assert torch.equal(view.inputs(), before)


@pytest.mark.parametrize("make", [permuted, rotated, split])
def test_tasks_share_one_store(make):
    data = mnist_mini()
    stream = make(data)
    stores = {task.train.stored.data_ptr() for task in stream}
    assert stores == {data.train_images.data_ptr()}
    assert all(task.train.stored.dtype == torch.uint8 for task in stream)


@pytest.mark.parametrize(("make", "per_task"), [(permuted, 60), (rotated, 60), (split, 20)])
def test_subsets_are_balanced_and_the_same_in_every_run(noise, make, per_task):
    first, again, other = (make(noise, tasks=2, train_size=7, test_size=6, seed=seed) for seed in (0, 0, 1))
    for task in first:
        counts = torch.bincount(task.train.targets)
        assert len(task.train) == 7
        assert counts.max() - counts.min() <= 1
        assert torch.equal(task.train.inputs(), again.task(task.number).train.inputs())
    assert not torch.equal(first.task(1).train.inputs(), other.task(1).train.inputs())
    with pytest.raises(SettingsError, match=rf"{per_task} samples.*got 1000"):
        make(noise, tasks=2, train_size=1000).task(1)
    with pytest.raises(SettingsError, match="got 0"):
        make(noise, tasks=2, test_size=0).task(1)


def test_unbalanced_classes_give_what_they_have():
    images = torch.zeros(30, 1, 2, 2, dtype=torch.uint8)
    labels = torch.tensor([0] * 25 + [1] * 3 + [2] * 2)
    data = ImageData("few", images, labels, images, labels, ("x", "y", "z"))
    assert torch.bincount(data.split("train").subset(12, "train", 0).targets).tolist() == [7, 3, 2]


def test_fingerprints_tell_data_and_settings_apart(noise):
    changed = noise.train_images.clone()
    changed[0, 0, 0, 0] ^= 1
    made = [
        permuted(noise),
        permuted(noise, seed=1),
        permuted(noise, tasks=3),
        permuted(noise, train_size=10),
        permuted(replace(noise, train_images=changed)),
        permuted(replace(noise, mean=(0.1, 0.1, 0.1))),
        permuted(replace(noise, test_labels=noise.test_labels.flip(0))),
        rotated(noise),
        rotated(noise, step=10),
        rotated(noise, resample="bilinear"),
        split(noise),
        split(noise, classes_per_task=3),
    ]
    assert len({stream.fingerprint for stream in made}) == len(made)
    assert permuted(noise).fingerprint == permuted(replace(noise)).fingerprint


def test_settings_are_json(noise):
    import json

    for stream in (permuted(noise), rotated(noise), split(noise)):
        assert json.loads(json.dumps(dict(stream.settings)))["data"] == "noise"


def test_sequence_of_tasks(noise):
    stream = permuted(noise, tasks=4)
    assert [task.number for task in stream] == [1, 2, 3, 4]
    assert stream[-1].number == 4
    assert [task.number for task in stream[1:3]] == [2, 3]
    with pytest.raises(IndexError, match="4 tasks"):
        stream[4]
    for number in (0, 5, -1):
        with pytest.raises(SettingsError, match=f"no task {number}"):
            stream.task(number)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: permuted(data, tasks=0), "at least one task"),
        (lambda data: rotated(data, tasks=-1), "at least one task"),
        (lambda data: rotated(data, angles=[]), "finite angle"),
        (lambda data: rotated(data, angles=[float("nan")]), "finite angle"),
        (lambda data: rotated(data, resample="bilinera"), "did you mean 'bilinear'"),
        (lambda data: split(data, classes_per_task=7), "from 1 to 6, got 7"),
        (lambda data: split(data, classes_per_task=0), "got 0"),
        (lambda data: split(data, tasks=4), "at most 3 tasks of 2"),
        (lambda data: split(data, tasks=0), "got 0"),
    ],
)
def test_impossible_settings(noise, call, message):
    with pytest.raises(SettingsError, match=message):
        call(noise)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": torch.zeros(60, 3, 9, 12)}, "expected uint8 images"),
        ({"train_images": torch.zeros(60, 9, 12, dtype=torch.uint8)}, "expected uint8 images"),
        ({"train_images": torch.zeros(59, 3, 9, 12, dtype=torch.uint8)}, "59 images with labels"),
        ({"test_images": torch.zeros(30, 3, 9, 9, dtype=torch.uint8)}, "both must agree"),
        ({"train_labels": torch.full((60,), 6)}, "from 0 to 5"),
        ({"train_labels": torch.full((60,), -1)}, "from 0 to 5"),
        ({"train_labels": torch.zeros(60)}, "int64"),
        ({"mean": (0.5,)}, "3 channels"),
        ({"std": (1.0, 0.0, 1.0)}, "positive"),
    ],
)
def test_impossible_data(noise, change, message):
    with pytest.raises(DataError, match=message):
        replace(noise, **change)


def test_registry_names_the_nearest_and_defaults_follow_the_protocol():
    with pytest.raises(SettingsError, match="did you mean 'rotated-mnist'"):
        streams.make("rotatd-mnist")
    with pytest.raises(SettingsError, match="did you mean 'step'"):
        streams.make("rotated-mnist-mini", options={"stpe": 1})
    with pytest.raises(SettingsError, match="'step'"):
        streams.make("permuted-mnist-mini", options={"step": 1})
    shipped = [
        name for name in streams.STREAMS if not re.search(r"mini$|-[0-9a-f]{8}$", name)
    ]  # the rest: `compare`
    tasks = {name: streams.STREAMS[name].tasks for name in shipped}
    assert tasks == {
        "permuted-mnist": 15,
        "rotated-mnist": 15,
        "split-mnist": 5,
        "permuted-fashion": 15,
        "rotated-fashion": 15,
        "split-cifar10": 5,
        "split-cifar100": 20,
        "cub200": 10,
        "permuted": 15,
        "rotated": 15,
        "split": None,
        "folder": None,
        "arrays": None,
    }
    for name in streams.STREAMS:
        if name.endswith("mini"):
            stream = streams.make(name)
            assert (stream.name, len(stream)) == (name, streams.STREAMS[name].tasks)


def test_golden_tensors_of_the_embedded_streams():
    """Data must not change between versions: the records would not be comparable."""

    def digest(name: str, number: int) -> str:
        return hashlib.sha256(streams.make(name).task(number).train.inputs().numpy().tobytes()).hexdigest()[
            :16
        ]

    golden = {
        ("permuted-mnist-mini", 1): "e3f7e14b6d234709",
        ("permuted-mnist-mini", 3): "19a9bc0b6e1eb6a7",
        ("rotated-mnist-mini", 1): "e3f7e14b6d234709",
        ("rotated-mnist-mini", 3): "afaa06d560a65610",
        ("split-mnist-mini", 1): "b3be9c311af254d1",
        ("split-mnist-mini", 3): "cf4868b3b0688453",
    }
    assert {key: digest(*key) for key in golden} == golden
