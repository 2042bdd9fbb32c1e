"""Session: one method through several fits of a trainer, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from orthocl.errors import DataError, StoreError, TrainingError, UnsupportedError, warn
from orthocl.integrations.ending import Ending, moved
from orthocl.integrations.snapshots import Snapshots, over_time, snapshot
from orthocl.methods.adapter_ogd import AdapterOGD
from orthocl.methods.base import Method
from orthocl.methods.certificate import Certificate
from orthocl.methods.learner import Learner, Loss
from orthocl.methods.learner_certificate import Samples, named_probes, remembered_probes
from orthocl.nets.outputs import Outputs
from orthocl.storage import read_state, write_state
from orthocl.streams.base import Split, Task
from orthocl.streams.batches import SplitBatch
from orthocl.tangents.retention import Probe
from orthocl.training.attach import attach

FILE = "orthocl.safetensors"
"""Name of the memory's file in the folder of a checkpoint."""


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
        remember: other data than those of the trainer to remember samples of, such as the single samples where the
            trainer packs them into rows: a data set, or a loader with a collate function. Set it before each fit. By
            default the data of the fit.
        snapshots: keep a copy of the trainable weights after each fit, in main memory, so that `certificate` can say
            what became of each task since it was learnt.
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
        remember: Any = None,
        snapshots: bool = True,
    ):
        self.method, self.head, self.remember = method, head, remember
        self.snapshots: Snapshots = {}
        self.learner: Learner | None = None
        self._protect = None if protect is None else list(protect)
        self._outputs, self._batch, self._loss = outputs, batch, loss
        self._batch_norm: Literal["freeze", "keep"] = batch_norm
        self._seed, self._tasks = seed, tasks
        self._open: ExitStack | None = None
        self._saved: Path | None = None
        self._ending: Ending | None = None
        self._keeps_snapshots = snapshots
        self._data: Any = None

    def begin(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        resumed: bool = False,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> Learner:
        """Start a task: attach to this optimizer, with the memory of the tasks before.

        Args:
            model: the model.
            optimizer: the optimizer of this fit.
            data: the data of the task.
            resumed: whether the trainer goes on from a checkpoint, in the middle of a fit.
            checkpoint: the memory in that checkpoint, as `state_dict` gave it; None if it has none.
        """
        if self._open is not None:
            raise TrainingError(
                "a task is still being learnt with this callback: let its fit end before the next one begins"
            )
        if resumed and checkpoint is None and self._saved is None:
            raise StoreError(
                f"the trainer goes on from a checkpoint, but the memory of earlier tasks is not in it ({FILE}): they "
                "would not be protected. Resume from a checkpoint that was written with this callback, or name the "
                "file with callback.load(path). If there is no earlier task, load only the weights of the checkpoint "
                "and begin a new fit"
            )
        learner = self._attached(model, optimizer)
        self._restore(learner, checkpoint, resumed)
        self._data = data if self.remember is None else self.remember
        stack = ExitStack()
        try:
            resumed = resumed and learner.halfway is not None
            stack.enter_context(learner.learning(self._data, head=self.head, resumed=resumed))
            learner.samples(torch.arange(min(2, len(learner.current_task.train))))
        except DataError as error:
            self._open = stack
            self.fail(error)
            if self.remember is not None:
                raise
            raise DataError(
                f"samples cannot be remembered from this trainer's batches: {error}. If its collate function joins "
                "samples into one row (packing), remember the single ones: give the callback remember=dataset, or "
                "remember=DataLoader(dataset, collate_fn=...) where they must be padded"
            ) from error
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
        if self._open is not None and self.learner is not None:
            stack, self._open = self._open, None
            ending = Ending.before(self.learner)
            stack.close()
            self._ending = ending.after(self.learner)
            self._take_snapshot(self.learner)

    def fail(self, error: BaseException) -> None:
        """End the task after an error: the memory is as it was before the task."""
        if self._open is not None:
            stack, self._open = self._open, None
            try:
                stack.__exit__(type(error), error, error.__traceback__)
            except BaseException as raised:
                if raised is not error:
                    raise

    def certificate(
        self,
        probes: Mapping[str, Samples] | None = None,
        *,
        before: Mapping[str, Tensor] | int | None = None,
        samples: int = 512,
        confidence: float = 0.95,
    ) -> Certificate:
        """What the latest fit changed on earlier tasks, and what became of each task over all fits.

        Args:
            probes: name -> samples of an earlier task: what the trainer takes as its data, or what
                `Learner.certificate` takes. Those called "task 3" belong to the third fit: losses are counted from it.
            before: compare with these weights instead: a state dict, or the number of the task after whose fit they
                were the model's.
            samples: at most so many of each probe, drawn at random.
            confidence: of the limits on what was lost.
        """
        learner = self._learnt("there is no change to certify")
        _check_active(learner)
        if isinstance(before, int):
            if before not in self.snapshots:
                raise TrainingError(
                    f"there are no weights from after task {before}: kept are those of "
                    f"{sorted(self.snapshots) or 'none'}"
                )
            before = {name: value.to(learner.device) for name, value in self.snapshots[before].items()}
        collated = {name: self._as_trained(data) for name, data in (probes or {}).items()}
        named = named_probes(learner, collated, samples)
        found = learner.certificate({each.name: each for each in named}, before=before, confidence=confidence)
        every = [*remembered_probes(learner), *named]
        if not every or not self.snapshots:
            return found
        return replace(found, over_time=over_time(learner, every, self.snapshots, confidence))

    def state_dict(self) -> dict[str, Any]:
        """The memory, with the task that is being learnt if there is one; empty if nothing was learnt yet."""
        if self.learner is None:
            return {}
        self.learner.merge()  # the weights of the checkpoint are complete: so must be those that the memory goes with
        return {**self.learner.state_dict(), "snapshots": self.snapshots}

    def save(self, path: str | Path) -> None:
        """Write the method's memory to one file; save the model's weights as always."""
        self._learnt("there is no memory to save")
        write_state(path, self.state_dict())

    def save_in(self, folder: Path) -> None:
        """Write the memory into the folder of a checkpoint, if it is there."""
        if self.learner is not None and folder.is_dir():
            write_state(folder / FILE, self.state_dict())

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote, when the next fit begins: a file, or the folder of a checkpoint."""
        self._saved = Path(path)

    def _learnt(self, consequence: str) -> Learner:
        """The learner, once a task was learnt, with the memory of the weights that the model has now."""
        if self.learner is None:
            raise TrainingError(
                f"nothing was learnt with this callback yet, so {consequence}: fit a task first"
            )
        self._end_again(self.learner)
        return self.learner

    def _restore(self, learner: Learner, checkpoint: Mapping[str, Any] | None, resumed: bool) -> None:
        """Load the memory of the checkpoint that the trainer goes on from, or of the file that the user has named."""
        saved, self._saved = self._saved, None
        if saved is not None:
            named = read_state(saved / FILE if saved.is_dir() else saved)
            if checkpoint is None or named.get("halfway") is not None:  # the memory before the task says less
                checkpoint = named
        if checkpoint is None:
            self._end_again(learner)
        else:
            learner.load_state_dict(dict(checkpoint))
            self.snapshots = dict(checkpoint.get("snapshots", {}))
            if not resumed and moved(learner, self.snapshots.get(learner.tasks_done, {})):
                warn(
                    f"the model's weights are not those that it had after task {learner.tasks_done}, to which the "
                    "loaded memory belongs: earlier tasks are protected less well. Load those weights, or save the "
                    "memory (callback.save) after the weights were changed, where the task was learnt"
                )
        self._ending = None

    def _end_again(self, learner: Learner) -> None:
        """End the latest task anew if the weights were changed since, such as by loading those of the best epoch."""
        if self._ending is not None and self._open is None:
            before, self._ending = self._ending, self._ending.again(learner)
            if self._ending is not before:
                self._take_snapshot(learner)

    def _take_snapshot(self, learner: Learner) -> None:
        if self._keeps_snapshots:
            self.snapshots[learner.tasks_done] = snapshot(learner.model)

    def _as_trained(self, data: Any) -> Any:
        """Samples with the collate function and the entries that the trainer uses, unless they bring their own."""
        if not isinstance(self._data, DataLoader) or not _is_dataset(data):
            return data
        collate, entries = self._data.collate_fn, _entries(self._data.dataset)
        if entries is None:
            return DataLoader(data, batch_size=1, collate_fn=collate)
        return DataLoader(
            data, batch_size=1, collate_fn=lambda items: collate([_only(item, entries) for item in items])
        )

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
        before = self.learner
        if before is not None:
            before.detach()
            learner.tasks_done, learner.generator = before.tasks_done, before.generator
            learner.guard.left = before.guard.left
            if before.tasks_done and not isinstance(self.method, AdapterOGD):
                _follow(before, learner)
        self.learner = learner
        return learner


def plain_loader(loader: Any) -> Any:
    """The data of a trainer's loader, which may be wrapped, with its collate function and nothing else."""
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if dataset is None:
        return loader
    return DataLoader(dataset, batch_size=1, collate_fn=collate)


def _follow(before: Learner, learner: Learner) -> None:
    """Carry the memory over to parameters that have grown; reject other ones."""
    earlier, now = ({n: p.shape for n, p in each.parameters.items()} for each in (before, learner))
    if earlier == now:
        return
    try:
        learner.load_state_dict(before.state_dict())
    except StoreError as error:
        learner.detach()
        raise UnsupportedError(
            "this callback remembers tasks of other parameters than those that are trained now: give each adapter (or "
            f"model) a callback with a method of its own, and this one what it has trained before ({error})"
        ) from error


def _check_active(learner: Learner) -> None:
    """Reject questions about an adapter while the model computes with another one."""
    adapters = set(getattr(learner.model, "peft_config", ()))
    active = set(getattr(learner.model, "active_adapters", ())) if adapters else set()
    for name in learner.parameters:
        own = adapters.intersection(name.split("."))
        if own and not own & active:
            raise TrainingError(
                f"this callback has trained the adapter {min(own)!r}, the model computes with "
                f"{', '.join(map(repr, sorted(active))) or 'none'}: call model.set_adapter({min(own)!r}) first"
            )


def _is_dataset(data: object) -> bool:
    """Whether samples came as a data set of single items, to be collated."""
    known = isinstance(data, Task | Split | Probe | DataLoader | tuple)
    return not known and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _entries(dataset: Any) -> frozenset[str] | None:
    """Names of the entries of the items that were trained on; None for items of another form."""
    item = dataset[0] if hasattr(dataset, "__getitem__") and len(dataset) else None
    return frozenset(item) if isinstance(item, Mapping) else None


def _only(item: Any, entries: frozenset[str]) -> Any:
    """An item without entries, such as its text, that the trainer had removed."""
    if not isinstance(item, Mapping) or not entries <= item.keys():
        return item
    return {name: value for name, value in item.items() if name in entries}
