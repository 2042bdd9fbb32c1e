"""Method: a dataclass of hyperparameters with five hooks.

A method owns its state, never the loop. State lives in fields declared with `field(init=False)`, so that it is
saved, restored and copied without another line of code: see `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from orthocl.checking import check_value, field_types
from orthocl.errors import SettingsError
from orthocl.nets.inputs import Inputs
from orthocl.storage import export_state, tensor_bytes

if TYPE_CHECKING:
    from orthocl.methods.learner import Learner

Gradient = Sequence[Tensor]  # aligned with `learner.parameters`


class Declarations:
    """What the training loop reads from a method. Not a dataclass, so that these are not hyperparameters by default.

    A method declares them as class attributes, as hyperparameters (the batch size of Stable SGD) or as state.
    """

    batch_size: int | None = None
    """A batch size that the method asks for; the training loop then uses it instead of its own."""
    remembered: Mapping[int, Tensor] = MappingProxyType({})
    """Task number -> positions, in its training data, of the samples whose accuracy is recorded as memorised."""


@dataclass
class Method(Declarations):
    """Plain training with whatever optimizer is attached, and the five hooks that other methods override.

    The life of a task: `begin_task`, then for every step `penalty` (added to the loss), `transform` (of the
    gradient before the optimizer sees it), `after_step`; at the end `end_task`.

    A method that projects says so with `projects`, and what it protects with `inside`. After every step, at the end of
    the task and on request the learner subtracts `inside` of everything that the task has changed so far, whichever
    optimizer, scheduler or hand moved the weights. That is right for a projection that stays the same during a task.
    A method whose map is not a projection says `soft`: it then acts on the last step only.
    """

    name: ClassVar[str] = ""
    projects: ClassVar[bool] = False
    """Whether the method takes the part that `inside` returns out of the weights' displacement."""
    soft: ClassVar[bool] = False
    """Whether `inside` may not act twice on the same displacement: it is then given the last step only."""
    refreshes: ClassVar[bool] = False
    """Whether what `inside` protects changes during a task, which must then not skip a step."""
    first_task_is_sgd: ClassVar[bool] = True
    """Whether the method is plain training as long as there is nothing to protect."""
    uses_step: ClassVar[bool] = True
    """Whether `after_step` needs the displacement of the parameters, which costs a copy of them."""
    minimum: ClassVar[Mapping[str, float]] = {}
    """Smallest sensible values of hyperparameters."""
    maximum: ClassVar[Mapping[str, float]] = {}
    """Largest sensible values of hyperparameters."""
    memory_fields: ClassVar[tuple[str, ...]] = ("memory_per_task",)
    """Hyperparameters, if the method has them, that count the samples remembered of each task."""

    def begin_task(self, learner: Learner) -> None:
        """Before the first step of a task."""

    def resume_task(self, learner: Learner) -> None:
        """Instead of `begin_task`, where a run resumes in the middle of a task with its state restored."""

    def penalty(self, learner: Learner) -> Tensor | None:
        """A term to add to the loss of this step, or None."""
        return None

    def transform(self, learner: Learner, gradient: Gradient) -> Gradient:
        """The gradient to use instead of this one.

        Args:
            learner: the learner.
            gradient: a list of tensors, one for each of `learner.parameters` and of its shape, which stay as they are.
                What is returned is such a list too.
        """
        return gradient

    def inside(self, learner: Learner, displacement: Gradient) -> Gradient:
        """The protected part of a displacement, which a projecting method takes out of the weights."""
        return [torch.zeros_like(part) for part in displacement]

    @property
    def protects(self) -> bool:
        """Whether there is anything to take out of the weights now: not before the first task has ended."""
        return self.projects

    def projectors(self, learner: Learner) -> Sequence[tuple[Method, Learner]]:
        """The methods that project, each with the learner as it sees it."""
        return [(self, learner)] if self.projects else []

    def overrides(self, hook: str) -> bool:
        """Whether the method overrides a hook."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    def after_step(self, learner: Learner, gradient: Gradient, step: Gradient) -> None:
        """After each step, with the loss gradient before `transform` and the displacement of the parameters."""

    def end_task(self, learner: Learner) -> None:
        """After the last step of a task: remember whatever later tasks need."""

    def refusal(self, learner: Learner) -> str | None:
        """Why this method cannot work on this model, or None if it can."""
        return None

    def memory_warning(self, learner: Learner, inputs: Inputs) -> str | None:
        """A warning if the method will need more memory than there is, from one example input; None if not."""
        return None

    def merge(self, learner: Learner) -> None:
        """Make `model.parameters()` the weights that the model computes with, where the method keeps part of them."""

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """Between tasks: the model has got more outputs or layers, and `learner.parameters` are those of now.

        A method that keeps something for each weight keeps it for the weights that were there.

        Args:
            learner: the learner.
            earlier: names and shapes of the parameters that were protected until now; the present ones have these names
                and further ones, and are longer along their first axis where they differ.
        """

    def weights_changed(self, learner: Learner) -> str | None:
        """Between tasks: the weights are not those that the last task left. Take anew whatever can be.

        Returns:
            What that means for what is remembered, for a warning; None if nothing remembered depends on the weights.
        """
        return None

    def monitor(self, learner: Learner) -> dict[str, float]:
        """Numbers worth recording at the end of a task, such as the rank of the memory."""
        return {}

    def check_settings(self) -> None:
        """Reject hyperparameters of an undeclared type, unknown choices, and values out of range."""
        hints = field_types(type(self))
        for name, value in self.settings().items():
            limits = self.minimum.get(name), self.maximum.get(name)
            check_value(f"{name} of {self.name}", value, hints[name], *limits)

    def settings(self) -> dict[str, Any]:
        """The hyperparameters, as JSON values."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def in_short(self) -> str:
        """The method as one would write it: without settings that are at their defaults."""
        chosen = [
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)
            if item.init and getattr(self, item.name) != item.default
        ]
        return f"{type(self).__name__}({', '.join(chosen)})"

    def state_dict(self) -> dict[str, Any]:
        """All state, as nested dicts and lists of tensors and JSON values."""
        return {item.name: export_state(getattr(self, item.name)) for item in fields(self) if not item.init}

    def snapshot(self) -> dict[str, Any]:
        """The state to go back to if a task fails, kept while the task is learnt.

        A copy; a method that never changes its tensors in place may return the tensors themselves.
        """
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], learner: Learner) -> None:
        """Restore what `state_dict` returned."""
        for name, value in state.items():
            current = getattr(self, name)
            if hasattr(current, "load_state_dict"):
                current.load_state_dict(value)
            else:
                setattr(self, name, value)

    def peak_bytes(self) -> int:
        """The most bytes that the method took during the last task, where that is more than its state."""
        return self.nbytes()

    def nbytes(self) -> int:
        """Bytes of memory that the method's state takes."""
        return tensor_bytes(self.state_dict())


def check_answer(method: Method, hook: str, gradient: Gradient, changed: object) -> None:
    """Reject what a method's `transform` or `inside` returned if it is no gradient, and name the place that made it."""
    got = f"a {type(changed).__name__}"
    if isinstance(changed, list | tuple):
        shapes = [getattr(part, "shape", None) for part in changed]
        if shapes == [part.shape for part in gradient]:
            return
        got = "other shapes" if len(changed) == len(gradient) else f"a list of {len(changed)}"
    code = getattr(type(method), hook).__code__
    raise SettingsError(
        f"{code.co_filename}, line {code.co_firstlineno}: `{hook}` of {method.name} must return a list of tensors, "
        f"one for each that it is given and of its shape, got {got}"
    )


def later(default: Any) -> Any:
    """A hyperparameter that was added after runs were recorded: at its default it is not part of a run's identity.

    So records made before it existed stay valid.
    """
    return field(default=default, metadata={"later": True})


def no_complex_weights(learner: Learner) -> str | None:
    """The reason to refuse complex weights, for methods that compare gradients as real vectors."""
    found = [name for name, parameter in learner.parameters.items() if parameter.is_complex()]
    if not found:
        return None
    return (
        f"{learner.method.name} cannot protect complex weights such as {found[0]!r}: keep them as real numbers "
        "(torch.view_as_real, with view_as_complex in forward), or name the real ones with protect=[...]"
    )


def dot(left: Gradient, right: Gradient) -> Tensor:
    """Inner product of two gradients."""
    return torch.stack(
        [torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in zip(left, right, strict=True)]
    ).sum()
