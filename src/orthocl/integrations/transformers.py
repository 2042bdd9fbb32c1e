"""A callback for the Trainer of transformers, with or without PEFT.

    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=100))
    for dataset in tasks:
        Trainer(model, arguments, train_dataset=dataset, callbacks=[callback]).train()

Each `train()` is a task. The Trainer makes its own optimizer each time; the memory is carried over. What is protected:
all trainable parameters, which with PEFT are the adapters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from orthocl.errors import TrainingError, UnsupportedError
from orthocl.integrations.session import FILE, Session, plain_loader
from orthocl.storage import read_state


class OrthoclCallback(Session, TrainerCallback):  # type: ignore[misc]  # without transformers its base is Any
    """Applies a method to every step of a Trainer; arguments as for `Session`."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **rest: Any
    ) -> None:
        """Begin a task with the Trainer's model, optimizer and training data."""
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise UnsupportedError(
                "FSDP and DeepSpeed shard the parameters, so that no process has a whole gradient to project: train "
                "with one process, or with DDP"
            )
        # The Trainer does not tell its callbacks of an error: a task that is still open here has failed.
        self.fail(TrainingError("the fit before this one did not end"))
        memory = _checkpoint(args, state) / FILE
        resumed = state.global_step > 0
        self.begin(
            model,
            optimizer,
            plain_loader(rest.get("train_dataloader")),
            resumed=resumed,
            # The Trainer does not say which checkpoint it goes on from: its weights will tell whether it is this one.
            checkpoint=read_state(memory) if resumed and memory.exists() else None,
        )

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Write the memory into the checkpoint."""
        if args.should_save:
            self.save_in(_checkpoint(args, state))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Add the gradient of the method's penalty."""
        self.add_penalty()

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """End the task."""
        self.end()


def _checkpoint(args: Any, state: Any) -> Path:
    """The folder of the Trainer's checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
