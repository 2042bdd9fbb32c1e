"""Make the embedded data set `mnist-mini` from the complete MNIST.

    python scripts/make_embedded_mnist.py FOLDER_WITH_THE_FOUR_IDX_FILES

Of each class, 500 training and 100 test images are taken at equal distances over the file (the first half of
the MNIST test set is easier than the second, so the first images would not be a fair sample). No randomness.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "src" / "orthocl" / "streams" / "datasets" / "mnist-mini.npz"
SHA256 = {  # of the uncompressed files
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def read(folder: Path, name: str) -> bytes:
    """One of the four files, plain or .gz, checked."""
    plain = folder / name
    content = plain.read_bytes() if plain.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise SystemExit(f"{name} is not the published MNIST file: its sha256 is not {SHA256[name]}")
    return content


def take(folder: Path, prefix: str, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """`per_class` images of each class at equal distances, in file order."""
    images = np.frombuffer(read(folder, f"{prefix}-images-idx3-ubyte"), np.uint8, offset=16).reshape(
        -1, 28, 28
    )
    labels = np.frombuffer(read(folder, f"{prefix}-labels-idx1-ubyte"), np.uint8, offset=8)
    rows = []
    for label in range(10):
        members = np.flatnonzero(labels == label)
        rows.append(members[np.arange(per_class) * len(members) // per_class])
    chosen = np.sort(np.concatenate(rows))
    return images[chosen], labels[chosen]


def main() -> None:
    """Write the package data."""
    folder = Path(sys.argv[1])
    train_images, train_labels = take(folder, "train", 500)
    test_images, test_labels = take(folder, "t10k", 100)
    np.savez_compressed(
        TARGET,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes")
    print(f"sha256 of the file: {hashlib.sha256(TARGET.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
