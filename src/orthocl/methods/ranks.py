"""Ranks: the processes that train copies of one model on shares of every batch (DistributedDataParallel)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orthocl.errors import UnsupportedError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """What all processes must have in common, so that their copies stay the same.

    Args:
        group: their process group; None for all processes.
    """

    group: Any = None

    @property
    def count(self) -> int:
        """How many processes."""
        return dist.get_world_size(self.group)

    @property
    def own(self) -> int:
        """The number of this process, from 0."""
        return dist.get_rank(self.group)

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in their order."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self.group)
        return found

    def first(self, value: Value) -> Value:
        """The value of the first process."""
        return self.gather(value)[0]

    def share(self, count: int) -> int:
        """This process's share of a number of samples."""
        return count // self.count + (self.own < count % self.count)


def unwrapped(model: nn.Module) -> tuple[nn.Module, Ranks | None]:
    """The model itself and the processes that train it with this one, if there are any.

    Raises:
        UnsupportedError: for a model whose weights are spread over processes.
    """
    for module in model.modules():
        if any(kind.__name__ in ("FullyShardedDataParallel", "FSDPModule") for kind in type(module).__mro__):
            _refuse(type(module).__name__)
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        _refuse("DTensor parameters")
    if isinstance(model, DistributedDataParallel):
        return model.module, Ranks(model.process_group)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return model, Ranks()
    return model, None


def _refuse(what: str) -> None:
    raise UnsupportedError(
        f"this model's weights are spread over processes ({what}): every method here needs all of a layer's weights in "
        "one process. Use DistributedDataParallel, or protect a small adapter (LoRA) that fits"
    )


def same_draws(generator: torch.Generator, ranks: Ranks | None) -> None:
    """Give the generators of all processes the state of the first one's."""
    if ranks is not None:
        generator.set_state(ranks.first(generator.get_state()))
