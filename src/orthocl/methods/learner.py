"""Learner: model + optimizer + method + current task, which is all that a method may touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from orthocl.errors import DataError, SettingsError, TrainingError, warn
from orthocl.formatting import counted, size_text
from orthocl.methods.base import Method
from orthocl.methods.certifiable import Certifiable
from orthocl.methods.following import follow_growth, follow_precision, restore
from orthocl.methods.guard import Guard
from orthocl.methods.ranks import Ranks
from orthocl.nets.heads import find_heads
from orthocl.nets.inputs import Batch, Inputs, Targets, call_model, each_tensor, tensors
from orthocl.nets.modes import run_in_eval_mode
from orthocl.nets.outputs import Outputs, read_outputs
from orthocl.storage import output_file, read_state, write_state
from orthocl.streams.base import Split, Task
from orthocl.streams.batches import SplitBatch, as_split
from orthocl.tangents.commuting import why_not_exact

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of a batch -> mean loss: tensors, or dicts of them where outputs are named."""


@dataclass(repr=False)
class Learner(Certifiable):
    """What a method may touch, and the parts of a training step around `optimizer.step()`.

    Make one with `orthocl.attach`.

    Args:
        model: any module; of a DistributedDataParallel one the model inside.
        optimizer: any torch optimizer over its parameters.
        method: the method.
        parameters: the protected parameters, by full name: what penalties and projections act on.
        loss: loss of a batch of outputs and targets, for methods that need gradients of old samples.
        generator: the method's own randomness.
        stage: whether a projecting method acts on the "gradient" or on the finished "update".
        batch_norm: "freeze" batch statistics after the first task, or "keep" them moving.
        outputs: which outputs of the model are meant (`orthocl.nets.outputs`).
        batch: how batches are split into inputs and targets (`orthocl.streams.batches`).
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    method: Method
    parameters: dict[str, nn.Parameter]
    loss: Loss
    generator: torch.Generator
    stage: Literal["gradient", "update"] = "gradient"
    batch_norm: Literal["freeze", "keep"] = "freeze"
    outputs: Outputs = None
    batch: SplitBatch | None = None
    task: Task | None = None
    tasks_done: int = 0
    tasks_expected: int | None = None
    """How many tasks will come, if known."""
    batch_size: int | None = None
    """Samples per step, if the loop knows it."""
    on_batch: Callable[[Tensor], None] | None = None
    """Called with the positions of each batch in the training data, before its forward pass, if the loop knows them."""
    sole: bool = True
    """Whether no other method acts on the same parameters: their gradient is then that of the loss alone."""
    find_protected: Callable[[], dict[str, nn.Parameter]] | None = None
    """The parameters that would be protected now: a model may grow between tasks."""
    ranks: Ranks | None = None
    """The processes that train copies of the model with this one."""
    hooks: list[Any] = field(default_factory=list, repr=False)
    """Handles of the hooks on the optimizer, removed by `detach`."""

    def __post_init__(self) -> None:
        self._transforms = self.method.overrides("transform")
        self._watches = self.method.overrides("after_step")
        self._measures = self._watches and self.method.uses_step
        self.protect(self.parameters)
        self._gradient: list[Tensor] = []
        self._before: list[Tensor] = []
        self._penalises = self.method.overrides("penalty")
        self._penalised = False  # whether the penalty was asked for since the last step
        self._warned = self._warned_of_penalty = False
        self.dtype = self._protected[0].dtype
        self.guard = Guard(self.model, self.method.name, self.method.projects)
        self._undo: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self._protected)
        learnt, stored = counted(self.tasks_done, "task"), size_text(self.method.nbytes())
        return f"Learner({self.method.in_short()}: {weights:,} weights protected, {learnt} learnt, {stored} stored)"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    # ---- tasks --------------------------------------------------------------------------------------------

    @contextmanager
    def learning(
        self,
        data: Task | Split | Dataset[Any] | DataLoader[Any],
        *,
        head: str | None = None,
        resumed: bool = False,
    ) -> Iterator[Learner]:
        """Learn one task inside a `with` block.

        On an error inside, the memory and all other state of the method are as they were before the task.

        Args:
            data: the training data: a data set of (input, target) or of whatever `attach(..., batch=...)` splits, the
                loader that you train with, a Split, or a Task of a stream. An iterable data set is read once now.
            head: head of a multi-head model; a Task brings its own.
            resumed: continue a task whose state has been restored, instead of starting it.
        """
        random = self.generator.get_state()
        self.enter_task(self._as_task(data, head))
        before = self.method.snapshot()  # of the model as it is now: it may have grown
        self.note_start(self.model, self.current_task.number)
        try:
            with self.full_precision():
                self.check_memory(self.current_task.train.inputs(torch.tensor([0])))
                if resumed:
                    self.method.resume_task(self)
                else:
                    self.method.begin_task(self)
                    self.clean_momentum()
            self.guard.begin(self._protected)
            yield self
            self.guard.end(self._protected)
            with self.full_precision():
                self.method.end_task(self)
            self.tasks_done += 1
        except BaseException:
            self.method.load_state_dict(before, self)
            self.generator.set_state(random)
            raise
        finally:
            self.leave_task()

    def enter_task(self, task: Task) -> None:
        """Make `task` the current one: its head selected, other heads and old batch statistics frozen."""
        if self.task is not None:
            raise TrainingError(f"task {self.task.number} is still being learnt: tasks cannot be nested")
        if not len(task.train):
            raise DataError(f"task {task.number} has no training samples: leave it out of the stream")
        follow_growth(self)
        self.guard.before_task(self.parameters)
        follow_precision(self)
        if self.method.projects:  # the optimizer's settings may have changed since the last task
            self.stage = "update" if why_not_exact(self.optimizer, self.parameters) else "gradient"
        model = find_heads(self.model)
        if model is not None:
            model.select(task.head)
            chosen = set(model.heads[model.names.index(task.head)].parameters())
            for _, parameter in model.head_parameters():
                if parameter not in chosen and parameter.requires_grad:
                    parameter.requires_grad_(False)
                    parameter.grad = None
                    self._undo.append(partial(parameter.requires_grad_, True))
        if self.batch_norm == "freeze" and self.tasks_done > 0:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    self._undo += run_in_eval_mode(module)
        self.task = task

    @torch.no_grad()
    def clean_momentum(self) -> None:
        """Remove momentum from earlier tasks that lies in the protected space: it would carry the steps back into it.

        Where the finished update is projected, momentum is projected with it.
        """
        buffers = self.momentum()
        if buffers is None or not self.method.projects or self.stage == "update":
            return
        for parameter, old, new in zip(
            self._protected, buffers, self.method.project(self, buffers), strict=True
        ):
            if new is not old:
                self.optimizer.state[parameter]["momentum_buffer"] = old.copy_(new)

    def momentum(self) -> list[Tensor] | None:
        """Momentum buffers of the protected parameters, zero where one is missing; None if there are none yet."""
        found = [self.optimizer.state.get(p, {}).get("momentum_buffer") for p in self._protected]
        if all(buffer is None for buffer in found):
            return None
        return [torch.zeros_like(p) if b is None else b for p, b in zip(self._protected, found, strict=True)]

    def full_precision(self) -> AbstractContextManager[object]:
        """The method's own passes use the precision of the weights, even inside autocast around the loop."""
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    def leave_task(self) -> None:
        """Undo `enter_task`."""
        for undo in self._undo:
            undo()
        self._undo, self._gradient, self._before = [], [], []
        self.task = self.on_batch = None

    def until_task_ends(self, owner: dict[str, Any], key: str, value: Any, before: Any = None) -> None:
        """Set owner[key] (a setting of the optimizer or of a layer) for the rest of the task, then put it back."""
        original = owner[key] if before is None else before
        owner[key] = value
        self._undo.append(lambda: owner.__setitem__(key, original))

    def seen_by(self, method: Method, parameters: dict[str, nn.Parameter], *, sole: bool) -> Learner:
        """This learner as one of several methods sees it: valid for one call, not to be kept.

        It has no batch size: what depends on a whole batch, such as a cache of inputs, belongs to the full learner.
        """
        view = copy(self)
        view.method = method
        view.protect(parameters)
        view.own_lists = self.own_lists + view.own_lists
        view.batch_size, view.sole = None, self.sole and sole
        return view

    def check_memory(self, inputs: Inputs) -> None:
        """Warn, once, if the method will need more memory than is available."""
        warning = None if self._warned else self.method.memory_warning(self, inputs)
        if warning:
            self._warned = True
            warn(warning)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._protected[0].device

    def to_model(self, inputs: Batch) -> Batch:
        """Inputs on the model's device and, unless they are integers, in its precision."""
        return each_tensor(inputs, self._one_to_model)

    def _one_to_model(self, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            return inputs.to(self.device, self._protected[0].dtype)
        return inputs.to(self.device)

    def samples(self, index: Tensor) -> tuple[Inputs, Targets]:
        """Inputs and targets of some training samples of the current task, as the data set gives them."""
        return self.current_task.train.samples(index)

    def answer(self, inputs: Inputs, targets: Targets | None = None) -> Any:
        """What the loss is given for a batch: what the model returns, or the outputs that `attach` was told to read."""
        return call_model(self.model, inputs) if self.outputs is None else self.read(inputs, targets)

    def read(self, inputs: Inputs, targets: Targets | None = None) -> Any:
        """The outputs that are meant, for a batch: a tensor, or a dict of them where `attach` was given several."""
        return read_outputs(self.model, inputs, targets, self.outputs)

    @property
    def current_task(self) -> Task:
        """The task being learnt; an error if there is none."""
        if self.task is None:
            raise TrainingError(
                "no task is being learnt: put the training inside `with learner.learning(data):`, "
                "or call `learner.detach()` to train without the method"
            )
        return self.task

    def _as_task(self, data: Task | Split | Dataset[Any] | DataLoader[Any], head: str | None) -> Task:
        if isinstance(data, Task):
            return data
        if head is not None and find_heads(self.model) is None:
            raise SettingsError(f"this model has no heads (it is not a `MultiHead`): leave head={head!r} out")
        number = self.tasks_done + 1
        split = as_split(data, self.batch, self.model, self.generator)
        if not len(split):
            raise DataError(f"task {number} has no training samples: leave it out")
        _, targets = split.samples(torch.tensor([0]))  # one sample only: reading a data set can be slow
        kind: Literal["classification", "regression"] = (
            "regression" if tensors(targets)[0].is_floating_point() else "classification"
        )
        return Task(number, f"task {number}", split, split, head=head or "main", kind=kind)

    # ---- a step -------------------------------------------------------------------------------------------

    def penalty(self) -> Tensor | float:
        """The method's term of the loss for this step: add it to your own loss."""
        value = self.penalty_or_none()
        return 0.0 if value is None else value

    def penalty_or_none(self) -> Tensor | None:
        """The penalty, or None where there is nothing to add."""
        self._penalised = True
        return self.method.penalty(self)

    def merge(self) -> None:
        """Make the weights complete in the middle of a task, wherever they are read from.

        The fast path of the OGD family keeps part of the weights outside the layers until a task ends. What is read
        through the model or held by others is right without this (`held_weights`); call it with engine="adapter".
        """
        self.method.merge(self)

    def note_weights(self) -> None:
        """First part of a step: note where the parameters are."""
        _ = self.current_task
        self.guard.stepped()
        if self._measures or self.stage == "update":
            self._before = [p.detach().clone() for p in self._protected]

    def use_gradient(self) -> None:
        """Second part of a step, between `loss.backward()` and the optimizer."""
        if self._penalises:
            self._check_penalised()
        if not (self._transforms or self._watches):
            return
        self._gradient = [_dense_gradient(p) for p in self._protected]
        if self._transforms:
            changed = self.method.transform_gradient(self, self._gradient)
            for parameter, old, new in zip(self._protected, self._gradient, changed, strict=True):
                if parameter.requires_grad and (new is not old or self.stage == "gradient"):
                    parameter.grad = new

    def _check_penalised(self) -> None:
        if not self._penalised and self.tasks_done > 0 and not self._warned_of_penalty:
            self._warned_of_penalty = True
            warn(
                f"{self.method.name} works through a penalty, which this step left out: add `learner.penalty()` to "
                "the loss before `backward()`",
            )
        self._penalised = False

    @torch.no_grad()
    def after_step(self) -> None:
        """Last part of a step, after the optimizer has moved the parameters."""
        if self._transforms and self.stage == "update":
            update = self.method.transform_update(self, torch._foreach_sub(self._protected, self._before))
            for parameter, before, change in zip(self._protected, self._before, update, strict=True):
                torch.add(before, change, out=parameter.data)
        if self._watches:
            step = torch._foreach_sub(self._protected, self._before) if self._measures else []
            self.method.after_step(self, self._gradient, step)

    # ---- saving and detaching -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The method's state, with what is needed to check that it fits the model it is loaded into."""
        return {
            "method": self.method.name,
            "settings": self.method.settings(),
            "parameters": {name: list(p.shape) for name, p in self.parameters.items()},
            "tasks_done": self.tasks_done,
            "random": self.generator.get_state(),
            "state": self.method.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, into a learner with the same method and the same protected parameters.

        Parameters may have come, or have got longer along their first axis (a head with more outputs): what is
        remembered has zeros there.
        """
        restore(self, state)

    def protect(self, parameters: dict[str, nn.Parameter]) -> None:
        """Let these be the protected parameters from now on."""
        self.parameters, self._protected = parameters, cast(list[Tensor], list(parameters.values()))
        self.own_lists: list[object] = [self.parameters, self._protected]  # who else holds them may read them

    def save(self, path: str | Path) -> None:
        """Write the method's memory and state to one safetensors file. Save the model's weights separately."""
        write_state(output_file(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote."""
        self.load_state_dict(read_state(path))

    def detach(self) -> None:
        """Remove all hooks: model and optimizer are as they were before `attach`."""
        if self.task is not None:
            raise TrainingError(
                "cannot detach inside a task: leave the `with learner.learning(data)` block first"
            )
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()


def _dense_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
