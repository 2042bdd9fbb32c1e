"""SampleMemory: a few samples of every finished task, with the head they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from orthocl.errors import SettingsError
from orthocl.methods.learner import Learner
from orthocl.methods.ranks import same_draws
from orthocl.nets.heads import use_head
from orthocl.nets.inputs import (
    Inputs,
    Targets,
    each_tensor,
    join,
    layout,
    restored,
    sample_count,
    take,
    tensors,
)


@dataclass(frozen=True)
class Remembered:
    """Samples of one task: `index` holds their positions in its training data."""

    task: int
    head: str
    index: Tensor
    inputs: Inputs
    targets: Targets

    def __len__(self) -> int:
        return len(self.index)

    def first(self, count: int) -> Remembered:
        """The first `count` samples. They were drawn in random order, so this is a random subset."""
        return Remembered(
            self.task,
            self.head,
            self.index[:count].clone(),
            each_tensor(self.inputs, lambda part: part[:count].clone()),
            each_tensor(self.targets, lambda part: part[:count].clone()),
        )

    def on_cpu(self) -> Remembered:
        """The same samples in main memory, to be sent to other processes."""
        return Remembered(
            self.task,
            self.head,
            self.index,
            each_tensor(self.inputs, lambda part: part.cpu()),
            each_tensor(self.targets, lambda part: part.cpu()),
        )

    @classmethod
    def joined(cls, pieces: Sequence[Remembered]) -> Remembered:
        """The samples of several pieces of one task."""
        full = [piece for piece in pieces if len(piece)] or [pieces[0]]
        return cls(
            full[0].task,
            full[0].head,
            torch.cat([piece.index for piece in full]),
            join([piece.inputs for piece in full]),
            join([piece.targets for piece in full]),
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and JSON values."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Remembered:
        """The samples that `state_dict` returned."""
        return cls(**{**state, "inputs": restored(state["inputs"])})


@dataclass
class SampleMemory:
    """Samples per finished task, in order of the tasks. A task with a number seen before replaces the earlier one."""

    pieces: dict[int, Remembered] = field(default_factory=dict)
    _joined: list[tuple[str, Inputs, Targets]] = field(default_factory=list, repr=False)

    def __iter__(self) -> Iterator[Remembered]:
        return iter(self.pieces.values())

    def __len__(self) -> int:
        return sum(len(piece) for piece in self)

    def add(self, learner: Learner, count: int) -> Remembered:
        """Draw samples of the current task and keep them."""
        piece = draw(learner, count)
        self.pieces[piece.task] = piece
        self._joined = []
        return piece

    def by_head(self) -> list[tuple[str, Inputs, Targets]]:
        """Head, inputs and targets of all tasks that can share a batch, end to end. The pieces become views of them.

        They can if they have the same head and samples of the same shape and type.
        """
        if not self._joined:
            for kind in dict.fromkeys(_kind(piece) for piece in self):
                mine = [piece for piece in self if _kind(piece) == kind]
                inputs = join([piece.inputs for piece in mine])
                targets = join([piece.targets for piece in mine])
                head = mine[0].head
                self._joined.append((head, inputs, targets))
                start = 0
                for piece in mine:
                    rows = slice(start, start := start + len(piece))
                    view = Remembered(piece.task, head, piece.index, take(inputs, rows), take(targets, rows))
                    self.pieces[piece.task] = view
        return self._joined

    def losses(self, learner: Learner, count: int) -> list[Tensor]:
        """Terms whose sum is the mean loss of `count` samples drawn from all tasks, each through its task's head."""
        size = len(self)
        count = min(count, size)
        chosen = torch.randperm(size, generator=learner.generator)[:count]
        terms: list[Tensor] = []
        start = 0
        with fixed_batch_statistics(learner.model):
            for head, inputs, targets in self.by_head():
                own = sample_count(targets)
                stop = start + own
                rows = chosen if own == size else chosen[(chosen >= start) & (chosen < stop)] - start
                start = stop
                if len(rows):
                    with use_head(learner.model, head):
                        labels = take(targets, rows)
                        loss = learner.loss(learner.answer(take(inputs, rows), labels), labels)
                    terms.append(loss * (len(rows) / count))
        return terms

    def shrink(self, per_task: int) -> None:
        """Keep at most `per_task` samples of each task."""
        self.pieces = {number: piece.first(per_task) for number, piece in self.pieces.items()}
        self._joined = []

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and JSON values."""
        return {"pieces": [piece.state_dict() for piece in self]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        pieces = [Remembered.from_state_dict(piece) for piece in state["pieces"]]
        self.pieces = {piece.task: piece for piece in pieces}
        self._joined = []


@contextmanager
def fixed_batch_statistics(model: nn.Module) -> Iterator[None]:
    """Keep passes inside the block from moving the running statistics, which belong to the current task."""
    tracking = [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


def _kind(piece: Remembered) -> tuple[object, ...]:
    return piece.head, layout(piece.inputs), layout(piece.targets)


def draw(learner: Learner, count: int) -> Remembered:
    """A uniform draw of `count` training samples of the current task (all of them if it has fewer), for its model.

    Processes that train copies of the model remember the same samples: if all were given the same data, those that the
    first one draws, otherwise a share of each process's data.
    """
    if count < 0:
        raise SettingsError(f"a memory cannot hold {count} samples per task: give 0 or more")
    ranks = learner.ranks
    if ranks is None:
        return _draw(learner, count)
    content = len(learner.current_task.train), *_content(learner.samples(torch.tensor([0])))
    same = len(set(ranks.gather(content))) == 1
    piece = _draw(learner, count if same else ranks.share(count))
    pieces = ranks.gather(piece.on_cpu())
    same_draws(learner.generator, ranks)
    found = pieces[0] if same else Remembered.joined(pieces)
    return Remembered(
        found.task, found.head, found.index, learner.to_model(found.inputs), _on(found.targets, learner)
    )


def _content(samples: tuple[Inputs, Targets]) -> tuple[float, ...]:
    """Numbers by which the processes see whether they were given the same data."""
    return tuple(float(part.double().sum()) for batch in samples for part in tensors(batch))


def _on(targets: Targets, learner: Learner) -> Targets:
    return each_tensor(targets, lambda part: part.to(learner.device))


def _draw(learner: Learner, count: int) -> Remembered:
    task = learner.current_task
    index = torch.randperm(len(task.train), generator=learner.generator)[:count]
    inputs, targets = learner.samples(index)
    # Contiguous, as they will be when read back from disk: rounding may depend on the layout.
    inputs = each_tensor(learner.to_model(inputs), lambda part: part.contiguous())
    targets = each_tensor(targets, lambda part: part.to(learner.device).contiguous())
    # Labels index logits, so any integers or booleans become int64.
    targets = each_tensor(targets, lambda part: part if part.is_floating_point() else part.long())
    return Remembered(task.number, task.head, index, inputs, targets)
