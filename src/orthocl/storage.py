"""State on disk: nested dicts of tensors and JSON values as one safetensors file, written atomically, no pickle."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from orthocl.errors import StoreError

SavedState = dict[str, Any]
_TENSOR = "__tensor__"


def export_state(value: Any, *, copy: bool = True) -> Any:
    """Replace every object by its `state_dict` if it has one; copy all containers and (unless told not to) tensors."""
    if hasattr(value, "state_dict"):
        return export_state(value.state_dict(), copy=copy)
    if isinstance(value, Mapping):
        return {key: export_state(item, copy=copy) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [export_state(item, copy=copy) for item in value]
    return value.detach().clone() if copy and isinstance(value, Tensor) else value


def converted(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """A nested state with its tensors of one type converted to another.

    What is protected, a "subspace" or "bases", stays as it is: it has a type of its own.
    """
    if isinstance(value, Tensor):
        return value.to(new) if value.dtype == old else value
    if isinstance(value, Mapping):
        return {
            key: item if key in ("subspace", "bases") else converted(item, old, new)
            for key, item in value.items()
        }
    return [converted(item, old, new) for item in value] if isinstance(value, list | tuple) else value


def tensor_bytes(value: Any) -> int:
    """Bytes taken by all tensors in a nested state."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(tensor_bytes(item) for item in value.values())
    return sum(tensor_bytes(item) for item in value) if isinstance(value, list | tuple) else 0


def write_state(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write a state so that the file is either complete or untouched, whatever happens in between."""
    tensors: dict[str, Tensor] = {}
    skeleton = _pack(state, "", tensors)
    blob = save(tensors, metadata={"orthocl": json.dumps(skeleton)})
    write_atomically(Path(path), blob)


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a file next to it, flush it to the disk, then rename it over `path`."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise StoreError(f"cannot write {path}: {error.strerror}. Nothing was changed.") from error


def read_state(path: str | Path) -> SavedState:
    """Read what `write_state` wrote."""
    try:
        with safe_open(str(path), framework="pt") as file:
            skeleton = json.loads((file.metadata() or {})["orthocl"])
            # Cloned, because tensors in the file's buffer may be unaligned, and rounding may depend on that.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            state: SavedState = _unpack(skeleton, tensors)
            return state
    except FileNotFoundError as error:
        raise StoreError(f"no such file: {path}") from error
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise StoreError(
            f"{path} is not a state file of orthocl, or it is damaged ({error}): restore it from a backup or delete it"
        ) from error


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu").contiguous().clone()
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        # JSON keys are strings: integer keys (task numbers, positions) are marked so that they are restored as such.
        return {
            f"#{key}" if isinstance(key, int) else str(key): _pack(item, f"{path}/{key}", tensors)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_pack(item, f"{path}/{number}", tensors) for number, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    raise StoreError(
        f"state {path or '/'} holds a {type(value).__name__}: only tensors and JSON values can be saved"
    )


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    return {
        int(key[1:]) if key.startswith("#") else key: _unpack(item, tensors) for key, item in value.items()
    }
