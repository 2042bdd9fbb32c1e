"""Weights of AlexNet: torchvision's published file (fc6), or one with the convolutions only (pool5)."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from orthocl.errors import DataError
from orthocl.streams.datasets.catalogue import ALEXNET_FILE
from orthocl.streams.datasets.locate import data_roots, read_verified
from orthocl.streams.datasets.npz import read_npz

CONVOLUTIONS = {
    "features.0": (64, 3, 11, 11),
    "features.3": (192, 64, 5, 5),
    "features.6": (384, 192, 3, 3),
    "features.8": (256, 384, 3, 3),
    "features.10": (256, 256, 3, 3),
}
FC6 = {"classifier.1": (4096, 9216)}
CONVOLUTION_FILE = "alexnet-conv.npz"


@dataclass(frozen=True)
class Weights:
    """Weights of AlexNet up to a layer.

    Args:
        layer: "fc6" or "pool5".
        tensors: by torchvision's names.
        sha256: hash of the tensors.
    """

    layer: str
    tensors: dict[str, Tensor]
    sha256: str


def find_weights(data_root: str | Path | None = None) -> Path:
    """The weights below the data roots or in torch's own cache: torchvision's file first.

    Raises:
        DataError: when there are none; it says what is expected where.
    """
    roots = data_roots(data_root)
    folders = [root / folder for root in roots for folder in ("hub/checkpoints", "checkpoints", ".")]
    folders.append(Path(torch.hub.get_dir()) / "checkpoints")
    for name in (ALEXNET_FILE.name, CONVOLUTION_FILE):
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
    raise DataError(
        f"no weights of AlexNet in {', '.join(map(str, folders))}.\n"
        f"Expected there: {ALEXNET_FILE.name} ({ALEXNET_FILE.size} bytes, {ALEXNET_FILE.checksum}), which gives "
        f"fc6, or {CONVOLUTION_FILE} (arrays features.0.weight ... features.10.bias), which gives pool5.\n"
        "Get the first with `orthocl data fetch alexnet`."
    )


def read_weights(path: Path) -> Weights:
    """Read and check weights.

    A .pth file is a pickle: it is read only if it is the one torchvision publishes, and then as tensors only.

    Raises:
        DataError: when the file is damaged or a different one, or its tensors have the wrong shapes.
    """
    if path.suffix == ".pth":
        content = read_verified(path, ALEXNET_FILE)
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return check_weights(path, state, "fc6")
    arrays = read_npz(path, most_bytes=1 << 29)
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise DataError(f"{path}: {name} holds {array.dtype}, expected floats")
    state = {name: torch.from_numpy(array.astype("float32")) for name, array in arrays.items()}
    return check_weights(path, state, "fc6" if all(f"{name}.weight" in state for name in FC6) else "pool5")


def check_weights(path: Path, state: dict[str, Tensor], layer: str) -> Weights:
    """Keep the tensors that the layer needs, if they have the right shapes."""
    kept: dict[str, Tensor] = {}
    digest = hashlib.sha256()
    for module, shape in {**CONVOLUTIONS, **(FC6 if layer == "fc6" else {})}.items():
        for name, expected in ((f"{module}.weight", shape), (f"{module}.bias", shape[:1])):
            tensor = state.get(name)
            if tensor is None or tuple(tensor.shape) != expected:
                got = "nothing" if tensor is None else f"shape {tuple(tensor.shape)}"
                raise DataError(f"{path}: expected {name} of shape {expected}, got {got}")
            if not bool(tensor.isfinite().all()):
                raise DataError(f"{path}: {name} holds NaN or infinite values")
            kept[name] = tensor.to(torch.float32).contiguous()
            digest.update(name.encode())
            digest.update(kept[name].numpy().data)
    return Weights(layer, kept, digest.hexdigest())
