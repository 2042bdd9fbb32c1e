"""A pretend accelerator: tensors that say that they are elsewhere, compute here, and refuse to meet those of the CPU.

Their device says "meta", because torch knows no other that has no kernels of its own. What mixes them with tensors of
the CPU raises, as it would on a real device; copies do not, nor do numbers (tensors without axes), nor reading by
positions that are kept on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ELSEWHERE = torch.device("meta")
COPIES = ("aten.copy_", "aten._to_copy", "aten._foreach_copy_")
BY_POSITION = ("aten.index.", "aten.index_put", "aten._index_put_impl_", "aten._unsafe_index.")


class Elsewhere(Tensor):
    """A tensor of the CPU that says that it is on another device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=ELSEWHERE,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.held})"

    def tolist(self) -> Any:
        return self.held.tolist()

    def __matmul__(self, other: Tensor) -> Tensor:
        """A row times a matrix; torch would take off an axis in place, which cannot be shown outside."""
        return other.t().mv(self) if (self.dim(), other.dim()) == (1, 2) else super().__matmul__(other)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})


class Watching(TorchDispatchMode):
    """Sees operations on tensors of the CPU too: those that make or move tensors."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})


def run(function: Any, args: Any, kwargs: Any) -> Any:
    """The operation on what is held, and its result where a real device would have it."""
    given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    there = any(isinstance(value, Elsewhere) for value in given)
    target = kwargs.get("device")
    if there:
        check(str(function), args, given)
    to_there = there if target is None else torch.device(target) == ELSEWHERE
    generator = kwargs.get("generator")
    if to_there and generator is not None:
        raise RuntimeError(
            f"Expected a '{ELSEWHERE}' device type for generator but found 'cpu' in {function}"
        )
    held = tree_map(lambda value: value.held if isinstance(value, Elsewhere) else value, (args, kwargs))
    if target is not None:
        held[1]["device"] = torch.device("cpu")
    found = function(*held[0], **held[1])
    if function._schema.is_mutable and isinstance(found, Tensor):  # the tensor that was changed is the result
        return kwargs["out"] if "out" in kwargs else args[0]
    return (
        tree_map(lambda value: Elsewhere(value) if isinstance(value, Tensor) else value, found)
        if to_there
        else found
    )


def check(name: str, args: Any, given: list[Tensor]) -> None:
    """Raise what a real device would raise."""
    here = [value for value in given if not isinstance(value, Elsewhere) and value.dim() > 0]
    if name.startswith(BY_POSITION):
        positions = {id(value) for value in tree_leaves(args[1])}
        here = [value for value in here if id(value) not in positions]
    if here and not name.startswith(COPIES):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} was given {shapes(given)}"
        )


def shapes(given: list[Tensor]) -> str:
    return ", ".join(f"{value.device} {tuple(value.shape)}" for value in given)


def moved(model: nn.Module) -> nn.Module:
    """The model with its parameters and buffers elsewhere, those that it shares still shared."""
    known: dict[int, Any] = {}
    for module in model.modules():
        for parts in (module._parameters, module._buffers):
            for name, value in parts.items():
                if value is not None:
                    there = Elsewhere(value.detach().clone())
                    if isinstance(value, nn.Parameter):
                        there = nn.Parameter(there, requires_grad=value.requires_grad)
                    parts[name] = known.setdefault(id(value), there)
    return model


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[nn.Module], nn.Module]]:
    """Moves models to the pretend device, which exists as long as the test runs."""
    known = torch.is_autocast_enabled
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda kind="cpu": kind != ELSEWHERE.type and known(kind)
    )
    with Watching():
        yield moved
