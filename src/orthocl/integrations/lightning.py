"""A callback for Lightning.

    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=100))
    for loader in tasks:
        Trainer(max_epochs=3, callbacks=[callback]).fit(module, loader)

Each `fit` is a task. Lightning makes the optimizers anew each time; the memory is carried over. The module is called
as module(inputs): if its `forward` does something else, say what is remembered with outputs=.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback

from orthocl.errors import UnsupportedError
from orthocl.integrations.session import Session, plain_loader


class OrthoclCallback(Session, Callback):  # type: ignore[misc]  # without lightning its base is Any
    """Applies a method to every step of a fit; arguments as for `Session`."""

    _checkpoint: Mapping[str, Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Be the last callback: others may put the weights' average in their place when training ends."""
        trainer.callbacks = [each for each in trainer.callbacks if each is not self] + [self]
        self._checkpoint = None

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take the memory out of the checkpoint that a fit goes on from; its file ends up in `state_dict`."""
        if trainer.state.fn == "fit":
            self._checkpoint = checkpoint["callbacks"].get(self.state_key)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a task with the module, its optimizer and the training data."""
        if len(trainer.optimizers) != 1:
            raise UnsupportedError(
                f"a method follows one optimizer, this module has {len(trainer.optimizers)}: let configure_optimizers "
                "return one, with a parameter group for each learning rate"
            )
        loaders = trainer.train_dataloader
        if isinstance(loaders, dict | list | tuple):
            raise UnsupportedError(
                "a task has one loader of training data, this fit has several: join their data sets in one loader"
            )
        self.begin(
            pl_module,
            trainer.optimizers[0],
            plain_loader(loaders),
            resumed=trainer.ckpt_path is not None,
            checkpoint=self._checkpoint,
        )

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Add the gradient of the method's penalty."""
        self.add_penalty()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the task."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Forget what a failed task has begun."""
        self.fail(exception)
