"""Buffers that a model moves while it trains: running statistics, which change earlier outputs past any projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from orthocl.errors import warn

if TYPE_CHECKING:
    from orthocl.methods.learner import Learner

NOTICEABLE = 0.001
"""Relative change of remembered outputs by moved buffers that is worth a warning."""


def norm_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The statistics of batch and instance norm layers, which `batch_norm="freeze"` holds after the first task."""
    return {
        f"{name}.{key}" if name else key: value
        for name, module in model.named_modules()
        if isinstance(module, _NormBase)
        for key, value in module.named_buffers(recurse=False)
    }


def moved_buffers(learner: Learner) -> dict[str, Tensor]:
    """Earlier values of the other buffers that the task has moved; none in the first task, which nothing precedes."""
    if not learner.tasks_done:
        return {}
    held, start = norm_buffers(learner.model), learner.started_from
    return {
        name: start[name]
        for name, value in learner.model.named_buffers()
        if name in start and name not in held and _moved(start[name], value)
    }


def warn_of_buffers(moved: Mapping[str, Tensor], effect: float | None) -> None:
    """Name buffers that moved.

    Args:
        moved: those.
        effect: relative change of remembered outputs by them alone; None if no samples are kept to measure it.
    """
    if not moved or (effect is not None and effect <= NOTICEABLE):
        return
    said = "changed earlier outputs by an unknown amount (no samples are kept to measure it)"
    if effect is not None:
        said = f"changed remembered outputs by {effect:.1%}"
    warn(
        f"{len(moved)} buffers, such as {next(iter(moved))!r}, kept moving during the task and {said}, which no "
        "projection can prevent: hold them fixed after the first task"
    )


def _moved(then: Tensor, now: Tensor) -> bool:
    return then.shape == now.shape and not torch.equal(then.to(now), now)
