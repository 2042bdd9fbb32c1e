"""Checkpoints of accelerate: `accelerator.save_state` and `load_state` with the memory.

learner = orthocl.attach(method, model, optimizer)
keep_memory(accelerator, learner)
accelerator.load_state(folder)                        # to go on after an interruption
with learner.learning(data, resumed=True): ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate import Accelerator

from orthocl.errors import StoreError
from orthocl.integrations.session import FILE
from orthocl.methods.learner import Learner
from orthocl.storage import write_state


def keep_memory(accelerator: Accelerator, learner: Learner) -> None:
    """Write the memory into every checkpoint of the accelerator, and read it back with it.

    Args:
        accelerator: whose `save_state` and `load_state` are meant.
        learner: from `attach`. Call `load_state` outside `learner.learning`.
    """

    def save(models: Any, weights: Any, folder: str) -> None:
        learner.merge()
        if accelerator.is_main_process:
            write_state(Path(folder) / FILE, learner.state_dict())

    def load(models: Any, folder: str) -> None:
        path = Path(folder) / FILE
        if not path.exists():
            raise StoreError(
                f"the checkpoint {folder} does not contain the memory of earlier tasks ({FILE}): they would not be "
                "protected. Load a checkpoint that was saved after keep_memory(accelerator, learner)"
            )
        learner.load(path)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
