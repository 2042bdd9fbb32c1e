"""State on disk: nested dicts of tensors and JSON values as one safetensors file, written atomically, no pickle.

Every file carries a checksum of its content, and files of a run the run's id as their owner. Both are verified whenever
a file is read, and a file without them is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from orthocl.errors import StoreError

SavedState = dict[str, Any]
_TENSOR = "__tensor__"
_SEAL, _SKELETON = "__seal__", "__skeleton__"
FORMAT = 2
"""Version of the format of state files. Version 1, from before the first release, had no seal and is not read."""


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


def moved(value: Any, device: torch.device) -> Any:
    """A nested state with its tensors on a device, but for positions in data sets, which stay in main memory."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: item if key in POSITIONS else moved(item, device) for key, item in value.items()}
    return [moved(item, device) for item in value] if isinstance(value, list | tuple) else value


POSITIONS = ("index", "places", "remembered")
"""What states call positions of samples in a data set, and of rows among those that were given."""


def tensor_bytes(value: Any) -> int:
    """Bytes taken by all tensors in a nested state."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(tensor_bytes(item) for item in value.values())
    return sum(tensor_bytes(item) for item in value) if isinstance(value, list | tuple) else 0


def write_state(
    path: str | Path, state: Mapping[str, Any], *, owner: str = "", check: Callable[[], object] | None = None
) -> None:
    """Write a state so that the file is either complete or untouched, whatever happens in between.

    Args:
        path: the file.
        state: nested mappings and lists of tensors and JSON values.
        owner: what the state belongs to, such as the id of a run; `read_state` can insist on it.
        check: as for `write_atomically`.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _pack(state, "", tensors)
    seal = {"format": FORMAT, "owner": owner, "checksum": _state_checksum(owner, skeleton, tensors)}
    # One entry of metadata: of several the order would differ from file to file.
    text = json.dumps({_SEAL: seal, _SKELETON: skeleton})
    write_atomically(Path(path), save(tensors, metadata={"orthocl": text}), check=check)


def write_atomically(path: Path, content: bytes, *, check: Callable[[], object] | None = None) -> None:
    """Write to a file next to it, flush it to the disk, then rename it over `path`.

    Args:
        path: the file.
        content: all of it.
        check: called at the last moment, before the rename: an error from it leaves `path` as it was.
    """
    with _partial(path, content) as partial:
        if check is not None:
            check()
        os.replace(partial, path)


def output_file(path: str | Path) -> Path:
    """Where a file that a person named is written: links are followed, and only a regular file is replaced.

    Files of a store are not written through links: a store may come from somebody else.

    Raises:
        StoreError: there is something else, such as a folder, a pipe or a device.
    """
    try:
        target = Path(os.path.realpath(path))
        if not stat.S_ISREG(os.stat(target).st_mode):
            raise StoreError(f"{path} is not a regular file: give another name for the output")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"cannot write {str(path)[:200]!r}: {reason}. Nothing was changed.") from error
    return target


def write_output(path: str | Path, content: bytes) -> None:
    """Write a file that a person named, see `output_file`, whole or not at all; it keeps its permissions."""
    write_atomically(output_file(path), content)


def create_atomically(path: Path, content: bytes, *, check: Callable[[], object] | None = None) -> bool:
    """Like `write_atomically`, but never over a file that exists: returns whether the file is the one given here."""
    with _partial(path, content) as partial:
        if check is not None:
            check()
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            os.replace(partial, path)
    return True


@contextmanager
def _partial(path: Path, content: bytes) -> Iterator[Path]:
    """A complete file next to `path`, for a `with` block that makes it `path`."""
    partial = path.parent / f".{path.name[:200]}.{secrets.token_hex(6)}.partial"
    try:
        with open(partial, "wb") as file:
            _keep_permissions(path, file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}. Nothing was changed.") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _keep_permissions(path: Path, file: int) -> None:
    """Give a file those of the one that it will replace, if there is one."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode):
            os.fchmod(file, stat.S_IMODE(found.st_mode))


def read_file(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        FileNotFoundError: there is no such file.
        StoreError: it cannot be read, or is something else, such as a directory or a pipe that would block.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(f"{path} is not a file: move it away")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(path)) from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """The table in a JSON file. Its checksum, if it has one, is for `check_seal`."""
    try:
        values = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: it is not JSON ({str(error)[:80]})") from error
    if not isinstance(values, dict):
        raise StoreError(f"{path} is damaged: expected a JSON table, got {str(values)[:40]}")
    return values


def check_seal(values: Mapping[str, Any], path: Path) -> None:
    """Reject values that have no checksum, or do not match it, see `sealed`."""
    if "checksum" not in values:
        raise StoreError(f"{path} is damaged: it has no checksum")
    if values["checksum"] != _json_checksum(values):
        raise StoreError(f"{path} is damaged: it does not match its own checksum")


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with a checksum over all of them.

    >>> sorted(sealed({"id": "a"}))
    ['checksum', 'id']
    """
    return {**values, "checksum": _json_checksum(values)}


def read_state(path: str | Path, *, owner: str = "") -> SavedState:
    """Read what `write_state` wrote.

    Args:
        path: the file.
        owner: what the state must belong to; anything by default.

    Raises:
        StoreError: there is no such file, it is damaged, or it belongs to something else.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise StoreError(f"{path} is not a file")
        with safe_open(str(path), framework="pt") as file:
            values = json.loads((file.metadata() or {})["orthocl"])
            # Cloned, because tensors in the file's buffer may be unaligned, and rounding may depend on that.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        _check_seal(path, values, tensors, owner)
        state: SavedState = _unpack(values[_SKELETON], tensors)
        return state
    except FileNotFoundError as error:
        raise StoreError(f"no such file: {path}") from error
    except (
        SafetensorError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        OSError,
    ) as error:
        raise StoreError(
            f"{path} is not a state file of orthocl, or it is damaged ({error}): restore it from a backup or delete it"
        ) from error


def _check_seal(
    path: str | Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], owner: str
) -> None:
    if _SEAL not in values:
        raise StoreError(
            f"{path} has no checksum, so nobody can tell whether it was changed: delete it, and make it again"
        )
    seal = values[_SEAL]
    if seal["format"] != FORMAT:
        raise StoreError(
            f"{path} has format {seal['format']}, this version reads {FORMAT}: use the version that wrote it"
        )
    whose = seal["owner"]
    if seal["checksum"] != _state_checksum(whose, values[_SKELETON], tensors):
        raise StoreError(
            f"{path} is damaged: it does not match its own checksum. Restore it from a backup or delete it"
        )
    if owner and whose and whose != owner:
        raise StoreError(f"{path} belongs to {whose!r}, not to {owner!r}: it was copied here. Move it away")


def _json_checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 over the values without their checksum."""
    rest = {key: value for key, value in values.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _state_checksum(owner: str, skeleton: Any, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the owner, the skeleton and every tensor with its name, type and shape."""
    digest = hashlib.sha256(json.dumps([owner, skeleton]).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
