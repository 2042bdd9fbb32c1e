"""Checkpoints: everything a run needs to continue to the same result, in one safetensors file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orthocl.errors import StoreError
from orthocl.methods.learner import Learner
from orthocl.storage import read_state, write_state
from orthocl.streams.base import Stream
from orthocl.tangents.adapter import raw_weights
from orthocl.training.loop import Progress


def save_checkpoint(
    path: str | Path,
    learner: Learner,
    progress: Progress,
    *,
    owner: str = "",
    check: Callable[[], object] | None = None,
) -> None:
    """Weights, optimizer, method with its tangents, random state and position, written atomically.

    Args:
        path: the file.
        learner: the learner in training.
        progress: its position.
        owner: the run it belongs to; `load_checkpoint` can insist on it.
        check: called at the last moment: an error from it leaves the earlier checkpoint as it was.
    """
    write_state(path, checkpoint_state(learner, progress), owner=owner, check=check)


def checkpoint_state(learner: Learner, progress: Progress) -> dict[str, Any]:
    """What `save_checkpoint` writes."""
    return {
        # The tensors as they are, not `state_dict()`: that would fold a tangent adapter into the weights, and the
        # rounding of a run would depend on when it was saved.
        "model": raw_weights(learner.model) | dict(learner.model.named_buffers()),
        "optimizer": learner.optimizer.state_dict(),
        "learner": learner.state_dict(),
        "progress": progress.state_dict(),
        "random": torch.get_rng_state(),
    }


def load_checkpoint(path: str | Path, learner: Learner, stream: Stream, *, owner: str = "") -> Progress:
    """Restore a freshly attached learner from a checkpoint, and return the progress to pass to `train`.

    Args:
        path: the file.
        learner: the learner to restore.
        stream: what it learns.
        owner: the run that the checkpoint must belong to; any by default.
    """
    state = read_state(path, owner=owner)
    try:
        progress = Progress(**state["progress"])
        _load_model(learner.model, state["model"])
        learner.optimizer.load_state_dict(state["optimizer"])
        learner.load_state_dict(state["learner"])
        torch.set_rng_state(state["random"])
    except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"checkpoint {path} does not fit this run ({error}): delete it to start over"
        ) from error
    return progress


def _load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    own = dict([*model.named_parameters(), *model.named_buffers()])
    if own.keys() != tensors.keys():
        raise KeyError(f"weights {sorted(own.keys() ^ tensors.keys())[:3]} are not in both")
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
