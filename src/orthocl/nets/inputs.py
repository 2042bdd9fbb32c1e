"""Batches of inputs of any form that a model takes: a tensor, several (a tuple), or named ones (a dict).

The model is called as model(x), model(*inputs) or model(**inputs). Targets may be named too, one for each output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from orthocl.errors import UnsupportedError

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Targets = Tensor | dict[str, Tensor]
Batch = TypeVar("Batch", bound=Inputs)


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """What the model returns for a batch.

    >>> call_model(nn.Bilinear(1, 1, 1), (torch.ones(2, 1), torch.ones(2, 1))).shape
    torch.Size([2, 1])
    """
    try:
        if isinstance(inputs, Tensor):
            return model(inputs)
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    except TypeError as error:
        if isinstance(inputs, Tensor):
            raise
        raise UnsupportedError(
            f"the model cannot be called with {described(inputs)}: {error}. Say what its inputs are with "
            "attach(..., batch=lambda batch: (inputs, targets)), or how it is called with "
            "attach(..., outputs=lambda model, inputs: ...)"
            + (
                ", such as model(inputs)[name] if it takes the dict itself"
                if isinstance(inputs, dict)
                else ""
            )
        ) from error
    except KeyError as error:
        raise UnsupportedError(
            f"the model has no {error} when it is called with {described(inputs)}: if it gets a part for each task, "
            "such as a head, add it to model and optimizer before `with learner.learning(data)`"
        ) from error


def tensors(batch: Inputs) -> list[Tensor]:
    """All tensors of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def sample_count(batch: Inputs) -> int:
    """How many samples a batch has.

    >>> sample_count({"words": torch.zeros(3, 7), "mask": torch.zeros(3, 7)})
    3
    """
    return len(tensors(batch)[0])


def each_tensor(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with a function applied to each of its tensors."""
    if isinstance(batch, Tensor):
        return cast(Batch, function(batch))
    if isinstance(batch, dict):
        return cast(Batch, {name: function(part) for name, part in batch.items()})
    return cast(Batch, tuple(function(part) for part in batch))


def take(batch: Batch, index: Tensor | slice | int) -> Batch:
    """Some samples of a batch; with an integer, one sample without the batch's dimension."""
    return each_tensor(batch, lambda part: part[index])


def join(batches: Sequence[Batch]) -> Batch:
    """Batches end to end."""
    first = batches[0]
    if isinstance(first, Tensor):
        return cast(Batch, torch.cat([cast(Tensor, batch) for batch in batches]))
    if isinstance(first, dict):
        named = [cast(dict[str, Tensor], batch) for batch in batches]
        return cast(Batch, {name: torch.cat([batch[name] for batch in named]) for name in first})
    parts = zip(*(cast(tuple[Tensor, ...], batch) for batch in batches), strict=True)
    return cast(Batch, tuple(torch.cat(part) for part in parts))


def layout(batch: Inputs) -> tuple[object, ...]:
    """What two batches must have in common to be joined: names, shapes of a sample and types."""
    names = tuple(batch) if isinstance(batch, dict) else None
    return (
        type(batch).__name__,
        names,
        *((tuple(part.shape[1:]), part.dtype) for part in tensors(batch)),
    )


def restored(batch: Any) -> Any:
    """A batch as it was, after a file turned its tuple into a list."""
    return tuple(batch) if isinstance(batch, list) else batch


def described(batch: object) -> str:
    """What a batch, or whatever came instead, is: for errors.

    >>> described({"words": torch.zeros(3, 7)})
    "a dict with the keys 'words'"
    """
    if isinstance(batch, dict):
        return f"a dict with the keys {', '.join(map(repr, batch)) or 'none'}"
    if isinstance(batch, tuple | list):
        inside = ", ".join(described(part) for part in batch[:4])
        return f"a {type(batch).__name__} of {len(batch)} ({inside})"
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    return "None" if batch is None else f"a {type(batch).__name__}"
