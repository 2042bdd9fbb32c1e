"""Learner: model + optimizer + method + current task, which is all that a method may touch."""

from __future__ import annotations

import sys
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

from orthocl.errors import DataError, SettingsError, TrainingError, UnsupportedError, warn
from orthocl.formatting import counted, size_text
from orthocl.methods.base import Method, check_answer
from orthocl.methods.certifiable import Certifiable
from orthocl.methods.following import follow_growth, follow_precision, follow_weights, restore
from orthocl.methods.guard import Guard, marks
from orthocl.methods.halfway import Halfway
from orthocl.methods.ranks import Ranks
from orthocl.nets.heads import find_heads
from orthocl.nets.inputs import Batch, Inputs, Targets, call_model, each_tensor, tensors
from orthocl.nets.modes import run_in_eval_mode
from orthocl.nets.outputs import Outputs, check_repeatable, read_outputs, takes
from orthocl.storage import output_file, read_state, write_state
from orthocl.streams.base import Split, Task
from orthocl.streams.batches import SplitBatch, as_split
from orthocl.streams.checks import check_finite
from orthocl.tangents.adapter import raw_weights

FEW = 4
"""Samples whose outputs are evaluated twice."""
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
    batch_norm: Literal["freeze", "keep"] = "freeze"
    outputs: Outputs = None
    batch: SplitBatch | None = None
    task: Task | None = None
    tasks_done: int = 0
    tasks_expected: int | None = None
    """How many tasks will come, if known."""
    batch_size: int | None = None
    """Samples per step, if the loop is that of this library."""
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    """All optimizers that train the model; `optimizer` is the first."""
    every: int = 1
    """Steps after which the constraint is restored."""
    on_batch: Callable[[Tensor], None] | None = None
    """Called with the positions of each batch in the training data, before its forward pass, if the loop knows them."""
    sole: bool = True
    """Whether no other method acts on the same parameters: their gradient is then that of the loss alone."""
    find_protected: Callable[[], dict[str, nn.Parameter]] | None = None
    """The parameters that would be protected now: a model may grow between tasks."""
    ranks: Ranks | None = None
    """The processes that train copies of the model with this one."""
    halfway: Halfway | None = None
    """Where a task was, if the state that was loaded was saved in the middle of one: until that task goes on."""
    hooks: list[Any] = field(default_factory=list, repr=False)
    """Handles of the hooks on the optimizer, removed by `detach`."""

    def __post_init__(self) -> None:
        self.optimizers = self.optimizers or (self.optimizer,)
        self._transforms = self.method.overrides("transform")
        self._watches = self.method.overrides("after_step")
        self._measures = self._watches and self.method.uses_step
        self.protect(self.parameters)
        self._gradient: list[Tensor] = []
        self._before: list[Tensor] = []
        self.anchor: dict[str, Tensor] = {}
        """Where the displacement of each weight is measured from."""
        self.unprojected = 0
        """Steps since the constraint was last restored."""
        self._penalises = self.method.overrides("penalty")
        self._penalised = False  # whether the penalty was asked for since the last step
        self._warned = self._warned_of_penalty = False
        self.dtype = self.protected[0].dtype
        self.guard = Guard(self.model, self.method.name, self.method.projects)
        if self.every > 1 and any(
            method.soft or method.refreshes for method, _ in self.method.projectors(self)
        ):
            raise UnsupportedError(
                f"every={self.every} is for methods whose projection may act on several steps at once, not for "
                f"{self.method.name}: leave it at 1"
            )
        self._undo: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.protected)
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
        if self.halfway is not None:
            self.halfway.check(self.protected, resumed)
        random = self.generator.get_state()
        self.enter_task(self._as_task(data, head))
        before = self.method.snapshot()  # of the model as it is now: it may have grown
        halfway, self.halfway = self.halfway, None
        self.note_start(self.model, self.current_task.number, halfway)
        self.anchor = {name: at for name, at in self.started_from.items() if name in self.parameters}
        self.unprojected = 0
        if halfway is not None:
            self.unprojected = halfway.unprojected
            self.anchor |= {name: at.to(self.anchor[name]) for name, at in halfway.anchor.items()}
        try:
            with self.full_precision():
                self.check_memory(self.current_task.train.inputs(torch.tensor([0])))
                if resumed:
                    self.method.resume_task(self)
                else:
                    if self.method.projects:
                        self.check_outputs()
                    self.method.begin_task(self)
            self.guard.begin(self.protected)
            yield self
            self.guard.end(self.protected)
            with self.full_precision():
                self.restore_constraint()
                self.method.end_task(self)
            self.tasks_done += 1
            self.guard.left = [marks(self.parameters)]
        except BaseException:
            if sys.is_finalizing():  # the program ends inside the task: nothing is left to be restored for
                raise
            self.method.load_state_dict(before, self)
            self.generator.set_state(random)
            self.guard.left = [*self.guard.left[:1], marks(self.parameters)]
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
        follow_weights(self)
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
                if isinstance(module, nn.modules.batchnorm._NormBase):
                    self._undo += run_in_eval_mode(module)
        self.task = task

    def full_precision(self) -> AbstractContextManager[object]:
        """The method's own passes use the precision of the weights, even inside autocast around the loop."""
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    def leave_task(self) -> None:
        """Undo `enter_task`."""
        for undo in self._undo:
            undo()
        self._undo, self._gradient, self._before = [], [], []
        self.anchor = {}
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
        view.batch_size, view.sole = None, self.sole and sole
        return view

    def check_memory(self, inputs: Inputs) -> None:
        """Warn, once, if the method will need more memory than is available."""
        warning = None if self._warned else self.method.memory_warning(self, inputs)
        if warning:
            self._warned = True
            warn(warning)

    def check_outputs(self) -> None:
        """Reject outputs that are random: their gradients would be those of one draw."""
        index = torch.arange(min(FEW, len(self.current_task.train)))
        inputs, targets = self.samples(index)
        targets = each_tensor(targets, lambda part: part.to(self.device))
        check_repeatable(self.model, self.to_model(inputs), targets, self.outputs)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.protected[0].device

    def to_model(self, inputs: Batch) -> Batch:
        """Inputs on the model's device; converted to its precision only where it does not take them as they are."""
        moved = each_tensor(inputs, lambda part: part.to(self.device))
        dtype = self.protected[0].dtype
        others = {part.dtype for part in tensors(moved) if part.is_floating_point()} - {dtype}
        if not others or not dtype.is_floating_point or takes(self.model, moved, self.outputs):
            return moved
        return each_tensor(moved, lambda part: part.to(dtype) if part.is_floating_point() else part)

    def samples(self, index: Tensor) -> tuple[Inputs, Targets]:
        """Inputs and targets of some training samples of the current task, as the data set gives them.

        What a method remembers comes from here: one sample that is not finite would spoil all later tasks.
        """
        inputs, targets = self.current_task.train.samples(index)
        for what, batch in {"inputs": inputs, "targets": targets}.items():
            check_finite(batch, index, what, self.current_task.number)
        return inputs, targets

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
        """Make the weights complete in the middle of a task, where a method was asked to keep part of them elsewhere.

        Only needed with engine="adapter". With every other setting the weights are complete after each step.
        """
        self.method.merge(self)

    @torch.no_grad()
    def restore_constraint(self) -> None:
        """Take the protected part of all that this task has changed out of the weights.

        It happens by itself after every step of the optimizer and at the end of the task. Call it after changing the
        weights in another way (by hand, from a checkpoint, by an average) if they are used before the next step.
        """
        self.unprojected = 0
        for method, view in self.method.projectors(self) if self.task is not None else ():
            if not method.protects:
                continue
            weights, anchor = view.protected, [self.anchor[name] for name in view.parameters]
            inside = method.inside(view, _displacement(weights, anchor))
            check_answer(method, "inside", weights, inside)
            torch._foreach_sub_(weights, list(inside))
            if method.soft:
                view.reanchor()

    @torch.no_grad()
    def reanchor(self) -> None:
        """Measure the displacement of the weights from where they are now."""
        for name, parameter in self.parameters.items():
            if self.anchor[name] is self.started_from.get(name):  # which is kept as it is
                self.anchor[name] = parameter.detach().clone()
            else:
                self.anchor[name].copy_(parameter.detach())

    def note_weights(self) -> None:
        """First part of a step: note where the parameters are."""
        _ = self.current_task
        self.guard.stepped()
        self.guard.check_rates(self.optimizers, self.parameters)
        if self._measures:
            self._before = [p.detach().clone() for p in self.protected]

    def use_gradient(self, *, first: bool = True) -> None:
        """Second part of a step, between `loss.backward()` and the optimizer: the first of several, or another."""
        if self._penalises and first:
            self._check_penalised()
        if not (self._transforms or self._watches):
            return
        self._gradient = [_dense_gradient(p) for p in self.protected]
        if self._transforms:
            changed = self.method.transform(self, self._gradient)
            if changed is not self._gradient:
                check_answer(self.method, "transform", self._gradient, changed)
            for parameter, new in zip(self.protected, changed, strict=True):
                if parameter.requires_grad:
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
        self.unprojected += 1
        if self.unprojected >= self.every:
            self.restore_constraint()
        if self._watches:
            step = torch._foreach_sub(self.protected, self._before) if self._measures else []
            self.method.after_step(self, self._gradient, step)
        self._gradient, self._before = [], []

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
            "weights": [] if self.task else self.guard.packed(),
            "halfway": None if self.task is None else self._halfway().state_dict(),
        }

    def _halfway(self) -> Halfway:
        raw = raw_weights(self.model)
        moved = {name: at for name, at in self.anchor.items() if at is not self.started_from.get(name)}
        return Halfway.of(self.started_from, [raw[name] for name in self.parameters], moved, self.unprojected)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, into a learner with the same method and the same protected parameters.

        Parameters may have come, or have got longer along their first axis (a head with more outputs): what is
        remembered has zeros there.
        """
        restore(self, state)

    def protect(self, parameters: dict[str, nn.Parameter]) -> None:
        """Let these be the protected parameters from now on."""
        self.parameters, self.protected = parameters, cast(list[Tensor], list(parameters.values()))

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


def _displacement(weights: list[Tensor], anchor: list[Tensor]) -> list[Tensor]:
    """In at least single precision, because the difference of close numbers has few digits."""
    if weights[0].dtype in (torch.float16, torch.bfloat16):
        weights, anchor = [w.float() for w in weights], [a.float() for a in anchor]
    return list(torch._foreach_sub(weights, anchor))


def _dense_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
