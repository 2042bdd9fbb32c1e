"""A stream from a folder of images sorted by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from orthocl.checking import check_value
from orthocl.errors import DataError, SettingsError
from orthocl.streams.base import check_numbers
from orthocl.streams.datasets.schema import OnProgress
from orthocl.streams.images import ImageData
from orthocl.streams.seeds import generator
from orthocl.streams.split import SplitStream, split
from orthocl.streams.views import Part

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
LARGEST = 10_000
"""Pixels of a side."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def from_image_folder(
    folder: str | Path,
    *,
    tasks: int | None = None,
    classes_per_task: int = 2,
    size: int = 32,
    grey: bool = False,
    test_fraction: float = 0.2,
    shuffle_classes: bool = False,
    seed: int = 0,
    train_size: int | None = None,
    test_size: int | None = None,
    progress: OnProgress | None = None,
) -> SplitStream:
    """A split stream of your own images: FOLDER/class/image.jpg, or FOLDER/train/class/... and FOLDER/test/class/...

    Images are scaled to a square of `size` pixels (bilinear) and kept as bytes; the normalisation is that of the
    training images.

    Args:
        folder: where they are; class names are the names of its subfolders, in alphabetical order.
        tasks: number of tasks; as many as the classes allow by default.
        classes_per_task: classes in each task, which has its own head.
        size: side of the square that the network sees.
        grey: one channel instead of red, green, blue.
        test_fraction: part of each class held out for testing when there is no folder `test`, drawn by `seed`.
        shuffle_classes: assign the classes in a random order (by `seed`) instead of alphabetically.
        seed: seed of the data, independent of the run seed.
        train_size: training samples per task, balanced over classes; all by default.
        test_size: likewise for test samples.
        progress: called with what is read, images done and their total.

    Raises:
        DataError: when there are too few classes or images, or one cannot be read.
    """
    check_value("size", size, int, 1, LARGEST)
    check_numbers(seed=seed)
    check_value("test_fraction", test_fraction, float, 0, 1)
    if not 0 < test_fraction < 1:
        raise SettingsError(f"test_fraction must be between 0 and 1, got {test_fraction}")
    root = Path(folder).expanduser()
    files, classes = _listed(root, test_fraction, seed)
    parts = {part: _read_part(part, files[part], size, grey, progress) for part in files}
    scaled = parts["train"][0].to(torch.float32).div_(255)
    mean = tuple(round(value, 4) for value in scaled.mean((0, 2, 3)).tolist())
    # A constant channel has no spread to divide by: leave it as it is.
    std = tuple(round(value, 4) or 1.0 for value in scaled.std((0, 2, 3), correction=0).tolist())
    data = ImageData(root.resolve().name, *parts["train"], *parts["test"], classes, mean, std)
    return split(
        data,
        tasks=tasks,
        classes_per_task=classes_per_task,
        shuffle_classes=shuffle_classes,
        seed=seed,
        train_size=train_size,
        test_size=test_size,
    )


Files = list[tuple[Path, int]]


def _listed(root: Path, test_fraction: float, seed: int) -> tuple[dict[Part, Files], tuple[str, ...]]:
    """The files of both parts with their labels, and the class names."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: expected one with a subfolder of images per class")
    if (root / "train").is_dir() and (root / "test").is_dir():
        train, test = _by_class(root / "train"), _by_class(root / "test")
        if list(train) != list(test):
            differ = sorted(set(train) ^ set(test))
            raise DataError(f"{root}: train and test do not have the same classes: {', '.join(differ[:10])}")
    else:
        train, test = {}, {}
        for name, images in _by_class(root).items():
            held_out = max(1, round(test_fraction * len(images)))
            if held_out >= len(images):
                raise DataError(
                    f"{root / name} holds {len(images)} images: at least two are needed, to test on one"
                )
            order = generator("image-folder", seed, name).permutation(len(images))
            test[name] = [images[i] for i in sorted(order[:held_out])]
            train[name] = [images[i] for i in sorted(order[held_out:])]
    files: dict[Part, Files] = {
        "train": [(image, label) for label, name in enumerate(train) for image in train[name]],
        "test": [(image, label) for label, name in enumerate(test) for image in test[name]],
    }
    return files, tuple(train)


def _by_class(folder: Path) -> dict[str, list[Path]]:
    names = sorted(
        child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")
    )
    found = {
        name: sorted(file for file in (folder / name).iterdir() if file.suffix.lower() in SUFFIXES)
        for name in names
    }
    if not found:
        raise DataError(f"{folder} has no subfolders: expected one per class, with images")
    for name, images in found.items():
        if not images:
            raise DataError(
                f"{folder / name} holds no images ({', '.join(sorted(SUFFIXES))}): add some or remove it"
            )
    return found


def _read_part(
    part: str, files: Files, size: int, grey: bool, progress: OnProgress | None
) -> tuple[Tensor, Tensor]:
    pixels = np.empty((len(files), 1 if grey else 3, size, size), dtype=np.uint8)
    for position, (path, _) in enumerate(files):
        pixels[position] = _image(path, size, grey)
        if progress is not None and (position % 100 == 99 or position + 1 == len(files)):
            progress(f"{part} images", position + 1, len(files))
    return torch.from_numpy(pixels), torch.tensor([label for _, label in files])


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image with eight bits a channel: Pillow would cut brighter pixels of sixteen bits to white."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers: save it with 8 or 16 bits a channel")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have more than 16 bits: save it with 8 or 16 bits a channel")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _image(path: Path, size: int, grey: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        if not path.is_file():  # a pipe would block
            raise ValueError("it is not a file")
        # By the formats named only: others are told by their content, and may start programs (PostScript).
        with Image.open(path, formats=FORMATS) as image:
            plain = _eight_bits(image).convert("L" if grey else "RGB")
            square = plain.resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow raises many kinds on damaged files
        raise DataError(f"{path}: not a readable image ({error}): remove or replace it") from error
    array = np.asarray(square)
    return array[None] if grey else array.transpose(2, 0, 1)
