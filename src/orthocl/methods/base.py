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

    A method that projects says so with `projects`: its `transform` is then a linear, orthogonal projection that stays
    the same during a task. The learner applies it to the finished update instead of the gradient where the optimizer
    does not commute with projections, and to momentum that is left over from earlier tasks.
    """

    name: ClassVar[str] = ""
    projects: ClassVar[bool] = False
    quick_steps: ClassVar[bool] = False
    """Whether the loop may take the steps of a multilayer perceptron without calling its modules, bit for bit the same.

    Each class declares it for itself: a subclass may need to see what its parent does not.
    """
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
        """The gradient (or, for a projecting method, the update) to use instead of this one.

        Args:
            learner: the learner.
            gradient: a list of tensors, one for each of `learner.parameters` and of its shape, which stay as they are.
                What is returned is such a list too.
        """
        return gradient

    def project(self, learner: Learner, vectors: Gradient) -> Gradient:
        """The part of some vectors outside the protected space: for a projecting method, however its steps are taken.

        By default `transform`; a method whose `transform` has nothing to do in some tasks overrides it.
        """
        return self.transform(learner, vectors)

    def transform_gradient(self, learner: Learner, gradient: Gradient) -> Gradient:
        """What the optimizer is given: the transformed gradient, unless the projection waits for the update."""
        if self.projects and learner.stage == "update":
            return gradient
        changed = self.transform(learner, gradient)
        if changed is not gradient:
            _check_transformed(self, gradient, changed)
        return changed

    def transform_update(self, learner: Learner, update: Gradient) -> Gradient:
        """What the finished update is replaced by: its projection, where the gradient was left as it was."""
        return self.project(learner, update) if self.projects and learner.stage == "update" else update

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


def _check_transformed(method: Method, gradient: Gradient, changed: object) -> None:
    """Reject what is no gradient, and name the place that made it."""
    got = f"a {type(changed).__name__}"
    if isinstance(changed, list | tuple):
        shapes = [getattr(part, "shape", None) for part in changed]
        if shapes == [part.shape for part in gradient]:
            return
        got = "other shapes" if len(changed) == len(gradient) else f"a list of {len(changed)}"
    code = type(method).transform.__code__
    raise SettingsError(
        f"{code.co_filename}, line {code.co_firstlineno}: `transform` of {method.name} must return a list of tensors, "
        f"one for each that it is given and of its shape, got {got}"
    )


def later(default: Any) -> Any:
    """A hyperparameter that was added after runs were recorded: at its default it is not part of a run's identity.

    So records made before it existed stay valid.
    """
    return field(default=default, metadata={"later": True})


def dot(left: Gradient, right: Gradient) -> Tensor:
    """Inner product of two gradients."""
    return torch.stack(
        [torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in zip(left, right, strict=True)]
    ).sum()
