"""Checkpoints: everything a run needs to go on to the same result, as one safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from orthocl.errors import StoreError
from orthocl.methods.learner import Learner
from orthocl.methods.state import read_state, write_state
from orthocl.streams.base import Stream
from orthocl.training.loop import Progress


def save_checkpoint(path: str | Path, learner: Learner, progress: Progress) -> None:
    """Weights, optimizer, method with its tangents, random state and position, written atomically."""
    write_state(path, checkpoint_state(learner, progress))


def checkpoint_state(learner: Learner, progress: Progress) -> dict[str, Any]:
    """What `save_checkpoint` writes."""
    method = learner.state_dict()  # first: an adapter folds its part into the weights
    return {
        "model": dict(learner.model.state_dict()),
        "optimizer": learner.optimizer.state_dict(),
        "learner": method,
        "progress": progress.state_dict(),
        "random": torch.get_rng_state(),
    }


def load_checkpoint(path: str | Path, learner: Learner, stream: Stream) -> Progress:
    """Put a freshly attached learner where the checkpoint was, and return the progress to hand to `train`."""
    state = read_state(path)
    try:
        progress = Progress(**state["progress"])
        learner.model.load_state_dict(state["model"])
        learner.optimizer.load_state_dict(state["optimizer"])
        learner.load_state_dict(state["learner"])
        torch.set_rng_state(state["random"])
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"checkpoint {path} does not fit this run ({error}): delete it to start over"
        ) from error
    return progress
