"""CUB-200-2011: the folder with its text lists, and the images as AlexNet expects them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from orthocl.errors import DataError
from orthocl.streams.datasets.locate import ENVIRONMENT, data_roots, read_limited
from orthocl.streams.datasets.schema import EMBEDDED, OnProgress, no_progress

FOLDER = "CUB_200_2011"
IMAGES, CLASSES = 11_788, 200
MOST_LIST_BYTES = 10_000_000
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class CubIndex:
    """The lists of the data set.

    Args:
        folder: of the images.
        paths: of the images below `folder`, in the order of images.txt.
        labels: classes, from 0.
        train: whether an image is for training.
        classes: class names.
    """

    folder: Path
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    train: tuple[bool, ...]
    classes: tuple[str, ...]


def find_folder(data_root: str | Path | None = None) -> Path:
    """The folder CUB_200_2011 with its lists below the data roots.

    Raises:
        DataError: when there is none; it says what is expected where.
    """
    roots = data_roots(data_root)
    for root in roots:
        for folder in (root / FOLDER, root / "cub200" / FOLDER, root):
            if (folder / "images.txt").is_file() and (folder / "images").is_dir():
                return folder
    raise DataError(cub_expectation(data_root))


def cub_expectation(data_root: str | Path | None = None) -> str:
    """Which files are expected where, and how to get them."""
    roots = data_roots(data_root)
    return (
        f"cub200 (Caltech-UCSD Birds-200-2011) is not in {' or '.join(map(str, roots))}.\n"
        f"Expected: {roots[0] / FOLDER} with images.txt, image_class_labels.txt, train_test_split.txt, "
        f"classes.txt and images/, as in CUB_200_2011.tgz (md5:97eceeb196236b17998738112f37df78).\n"
        "Get it with `orthocl data fetch cub200` (which also unpacks CUB_200_2011.tgz in that folder), or copy it from "
        "https://data.caltech.edu/records/65de6-vp158\n"
        f"Another folder: --data-root FOLDER or ${ENVIRONMENT}. Without it, {EMBEDDED}."
    )


def read_index(folder: Path, *, complete: bool = True) -> CubIndex:
    """Read and check the text lists.

    Args:
        folder: CUB_200_2011.
        complete: whether to insist on the published 11,788 images of 200 classes.

    Raises:
        DataError: when a list is missing, damaged or does not agree with the others.
    """
    classes = _numbered(folder / "classes.txt")
    paths = _numbered(folder / "images.txt")
    labels = [
        _integer(folder / "image_class_labels.txt", text)
        for text in _numbered(folder / "image_class_labels.txt")
    ]
    train = [
        _integer(folder / "train_test_split.txt", text) for text in _numbered(folder / "train_test_split.txt")
    ]
    if not len(paths) == len(labels) == len(train):
        raise DataError(
            f"{folder}: the lists do not agree: {len(paths)} images, {len(labels)} labels, {len(train)} splits"
        )
    if complete and (len(paths), len(classes)) != (IMAGES, CLASSES):
        raise DataError(
            f"{folder}: {len(paths)} images of {len(classes)} classes, CUB-200-2011 has {IMAGES} of {CLASSES}: "
            "the lists are truncated or of another version (2010 has 6,033)"
        )
    for path in paths:
        parts = PurePosixPath(path).parts
        if not parts or PurePosixPath(path).is_absolute() or ".." in parts or "\\" in path or "\0" in path:
            raise DataError(f"{folder / 'images.txt'}: unsafe image path {path!r}")
    if any(not 1 <= label <= len(classes) for label in labels) or any(flag not in (0, 1) for flag in train):
        raise DataError(f"{folder}: labels must be from 1 to {len(classes)} and splits 0 or 1")
    return CubIndex(
        folder / "images",
        tuple(paths),
        tuple(label - 1 for label in labels),
        tuple(flag == 1 for flag in train),
        tuple(classes),
    )


def hash_images(index: CubIndex, progress: OnProgress = no_progress) -> str:
    """Hash of the lists and of the content of all images."""
    digest = hashlib.sha256()
    for position, (path, label, train) in enumerate(zip(index.paths, index.labels, index.train, strict=True)):
        try:
            content = (index.folder / path).read_bytes()
        except OSError as error:
            raise DataError(f"{index.folder / path} cannot be read: {error.strerror or error}") from error
        digest.update(f"{path}\n{label}\n{int(train)}\n{hashlib.sha256(content).hexdigest()}\n".encode())
        if position % 100 == 99 or position + 1 == len(index.paths):
            progress("hashing images", position + 1, len(index.paths))
    return digest.hexdigest()


def load_images(paths: Sequence[Path]) -> Tensor:
    """Images as AlexNet was trained on them: shorter side 256 (bilinear), centre 224, ImageNet normalisation."""
    pixels = np.stack([_centre(path) for path in paths])
    floats = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32).div_(255)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return floats.sub_(mean).div_(std)


def _centre(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        with Image.open(path) as image:
            if image.width * image.height > 50_000_000 or min(image.size) < 1:
                raise DataError(
                    f"{path}: {image.width} x {image.height} pixels, too large for a photograph of CUB"
                )
            picture = image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # Pillow raises many kinds on damaged files
        raise DataError(f"{path}: not a readable image ({error}): fetch the data set again") from error
    width, height = picture.size
    size = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    if max(size) > 25_600:
        raise DataError(f"{path}: {width} x {height} pixels is not a photograph")
    picture = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - 224) / 2.0), round((size[1] - 224) / 2.0)
    return np.asarray(picture.crop((left, top, left + 224, top + 224)))


def _numbered(path: Path) -> list[str]:
    """The texts of a list whose lines are "number text", numbered 1, 2, ..."""
    content = read_limited(path, MOST_LIST_BYTES)
    if len(content) > MOST_LIST_BYTES:
        raise DataError(f"{path}: more than {MOST_LIST_BYTES} bytes, not a list of CUB-200-2011")
    texts = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        first, _, rest = line.strip().partition(" ")
        if first != str(number) or not rest:
            raise DataError(f"{path}, line {number}: expected '{number} ...', got {line[:60]!r}")
        texts.append(rest)
    if not texts:
        raise DataError(f"{path} is empty")
    return texts


def _integer(path: Path, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise DataError(f"{path}: expected a number, got {text[:60]!r}")
    return int(text)
