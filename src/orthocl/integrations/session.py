"""Session: one method through several fits of a trainer, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader

from orthocl.errors import TrainingError
from orthocl.methods.base import Method
from orthocl.methods.certificate import Certificate
from orthocl.methods.learner import Learner, Loss
from orthocl.methods.learner_certificate import Samples
from orthocl.nets.outputs import Outputs
from orthocl.streams.batches import SplitBatch
from orthocl.training.attach import attach


class Session:
    """A method that stays while trainers come and go: each fit is a task, and the memory is carried over.

    Args:
        method: such as `orthocl.OGDPlus(memory_per_task=100)`.
        protect: names of the parameters that tasks share, as for `attach`.
        outputs: what is remembered, as for `attach`.
        batch: how a batch is split into inputs and targets, as for `attach`.
        loss: for methods that need the loss of old samples, as for `attach`.
        batch_norm: "freeze" batch statistics after the first task, or "keep" them moving.
        seed: seed for the method's own random choices.
        tasks: how many tasks to expect.
        head: head of a `MultiHead` that the next fit trains; set it before each fit.
    """

    def __init__(
        self,
        method: Method,
        *,
        protect: Iterable[str] | None = None,
        outputs: Outputs = None,
        batch: SplitBatch | None = None,
        loss: Loss | None = None,
        batch_norm: Literal["freeze", "keep"] = "freeze",
        seed: int | None = None,
        tasks: int | None = None,
        head: str | None = None,
    ):
        self.method, self.head = method, head
        self.learner: Learner | None = None
        self._protect = None if protect is None else list(protect)
        self._outputs, self._batch, self._loss = outputs, batch, loss
        self._batch_norm: Literal["freeze", "keep"] = batch_norm
        self._seed, self._tasks = seed, tasks
        self._open: ExitStack | None = None
        self._saved: Path | None = None

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: Any) -> Learner:
        """Start a task: attach to this optimizer, with the memory of the tasks before."""
        if self._open is not None:
            raise TrainingError(
                "a task is still being learnt with this callback: let its fit end before the next one begins"
            )
        learner = self._attached(model, optimizer)
        stack = ExitStack()
        stack.enter_context(learner.learning(data, head=self.head))
        self._open = stack
        return learner

    def add_penalty(self) -> None:
        """Add the gradient of the method's penalty, if it has one, to that of the loss: just before a step."""
        if self._open is None or self.learner is None:
            return
        with torch.enable_grad():
            penalty = self.learner.penalty_or_none()
            if penalty is not None and penalty.requires_grad:
                penalty.backward()

    def end(self) -> None:
        """End the task: the method remembers what it needs. Nothing happens if none was begun."""
        if self._open is not None:
            stack, self._open = self._open, None
            stack.close()

    def fail(self, error: BaseException) -> None:
        """End the task after an error: the memory is as it was before the task."""
        if self._open is not None:
            stack, self._open = self._open, None
            try:
                stack.__exit__(type(error), error, error.__traceback__)
            except BaseException as raised:
                if raised is not error:
                    raise

    def certificate(self, probes: dict[str, Samples] | None = None) -> Certificate:
        """What the latest fit changed on earlier tasks: see `Learner.certificate`."""
        if self.learner is None:
            raise TrainingError("nothing was learnt with this callback yet: fit a task first")
        return self.learner.certificate(probes)

    def save(self, path: str | Path) -> None:
        """Write the method's memory to one file; save the model's weights as always."""
        if self.learner is None:
            raise TrainingError("nothing was learnt with this callback yet: there is no memory to save")
        self.learner.save(path)

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote, when the next fit begins."""
        self._saved = Path(path)

    def _attached(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Learner:
        learner = attach(
            self.method,
            model,
            optimizer,
            protect=self._protect,
            loss=self._loss,
            batch_norm=self._batch_norm,
            seed=self._seed,
            tasks=self._tasks,
            outputs=self._outputs,
            batch=self._batch,
        )
        before, self.learner = self.learner, learner
        if before is not None:
            before.detach()
            learner.tasks_done, learner.generator = before.tasks_done, before.generator
            learner.guard.left = before.guard.left
        if self._saved is not None:
            learner.load(self._saved)
            self._saved = None
        return learner


def plain_loader(loader: Any) -> Any:
    """The data of a trainer's loader, which may be wrapped, with its collate function and nothing else."""
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if dataset is None:
        return loader
    return DataLoader(dataset, batch_size=1, collate_fn=collate)
