"""Composite: several methods as one. What `chain` and `partition` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from orthocl.errors import SettingsError
from orthocl.methods.base import Gradient, Method
from orthocl.methods.learner import Learner
from orthocl.nets.inputs import Inputs


@dataclass
class Composite(Method):
    """Methods that act one after another, each on its share of the protected parameters.

    A subclass says which they are (`members`) and which learner each of them sees (`view`). Everything that a method
    declares (`projects`, `batch_size`, ...) follows from the members.
    """

    name: ClassVar[str] = "composite"

    @property
    def members(self) -> Mapping[str, Method]:
        """The methods, in the order in which they act, by a name that is unique within this composite."""
        return {}

    def view(self, learner: Learner, member: str) -> Learner:
        """The learner as a member sees it: with its share of the protected parameters."""
        return learner.seen_by(self.members[member], learner.parameters, sole=False)

    def declare(self, name: str) -> None:
        """Derive what methods declare from the members: for this object, not for its class."""
        every = self.members.values()
        sizes = {method.batch_size for method in every if method.batch_size is not None}
        if len(sizes) > 1:
            raise SettingsError(
                f"the methods of {name!r} ask for different batch sizes ({sorted(sizes)}): give all the same, or "
                "None for the training loop's own"
            )
        self.batch_size = next(iter(sizes), None)
        vars(self).update(
            name=name,
            projects=any(method.projects for method in every),
            soft=any(method.soft for method in every),
            refreshes=any(method.refreshes for method in every),
            first_task_is_sgd=all(method.first_task_is_sgd for method in every),
            uses_step=any(method.uses_step and method.overrides("after_step") for method in every),
            memory_fields=tuple(dict.fromkeys(key for m in every for key in memory_settings(m))),
        )
        self._gather_remembered()

    def overrides(self, hook: str) -> bool:
        """Whether any member overrides a hook."""
        return any(method.overrides(hook) for method in self.members.values())

    # ---- hooks --------------------------------------------------------------------------------------------

    def begin_task(self, learner: Learner) -> None:
        """Each member begins the task."""
        for key, method in self.members.items():
            method.begin_task(self.view(learner, key))

    def resume_task(self, learner: Learner) -> None:
        """Each member resumes the task."""
        for key, method in self.members.items():
            method.resume_task(self.view(learner, key))

    def penalty(self, learner: Learner) -> Tensor | None:
        """The sum of all penalties."""
        terms = [method.penalty(self.view(learner, key)) for key, method in self.members.items()]
        found = [term for term in terms if term is not None]
        return reduce(torch.add, found) if found else None

    def transform(self, learner: Learner, gradient: Gradient) -> Gradient:
        """Each member transforms its share of what the one before it left."""
        current = list(gradient)
        for key, method in self.members.items():
            view = self.view(learner, key)
            places = _places(learner, view)
            changed = method.transform(view, [current[place] for place in places])
            for place, new in zip(places, changed, strict=True):
                current[place] = new
        return current

    def projectors(self, learner: Learner) -> Sequence[tuple[Method, Learner]]:
        """Those of all members."""
        return [
            pair
            for key, method in self.members.items()
            for pair in method.projectors(self.view(learner, key))
        ]

    def after_step(self, learner: Learner, gradient: Gradient, step: Gradient) -> None:
        """Each member sees its share of the gradient of loss and penalties, and of the step."""
        for key, method in self.members.items():
            view = self.view(learner, key)
            places = _places(learner, view)
            moved = [step[place] for place in places] if step else []
            method.after_step(view, [gradient[place] for place in places], moved)

    def end_task(self, learner: Learner) -> None:
        """Each member remembers what it needs."""
        for key, method in self.members.items():
            method.end_task(self.view(learner, key))
        self._gather_remembered()

    # ---- questions ----------------------------------------------------------------------------------------

    def refusal(self, learner: Learner) -> str | None:
        """The first reason any member has to refuse the model, or None."""
        reasons = (method.refusal(self.view(learner, key)) for key, method in self.members.items())
        return next((reason for reason in reasons if reason), None)

    def memory_warning(self, learner: Learner, inputs: Inputs) -> str | None:
        """The warnings of all members."""
        found = (
            method.memory_warning(self.view(learner, key), inputs) for key, method in self.members.items()
        )
        return "; ".join(warning for warning in found if warning) or None

    def merge(self, learner: Learner) -> None:
        """Each member completes its share of the weights."""
        for key, method in self.members.items():
            method.merge(self.view(learner, key))

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """Each member grows its share."""
        for key, method in self.members.items():
            view = self.view(learner, key)
            method.grow(view, {name: shape for name, shape in earlier.items() if name in view.parameters})

    def monitor(self, learner: Learner) -> dict[str, float]:
        """The numbers of all members; those that several members report carry the member's name."""
        reports = {key: method.monitor(self.view(learner, key)) for key, method in self.members.items()}
        names = [name for report in reports.values() for name in report]
        return {
            name if names.count(name) == 1 else f"{key}: {name}": value
            for key, report in reports.items()
            for name, value in report.items()
        }

    def weights_changed(self, learner: Learner) -> str | None:
        """What it means to each member."""
        found = (method.weights_changed(self.view(learner, key)) for key, method in self.members.items())
        return "; ".join(cost for cost in found if cost) or None

    def _gather_remembered(self) -> None:
        found: dict[int, list[Tensor]] = {}
        for method in self.members.values():
            for task, positions in method.remembered.items():
                found.setdefault(task, []).append(positions)
        self.remembered = {task: torch.cat(lists).unique() for task, lists in sorted(found.items())}

    # ---- settings and state -------------------------------------------------------------------------------

    def check_settings(self) -> None:
        """Check the hyperparameters of every member."""
        for method in self.members.values():
            method.check_settings()

    def settings(self) -> dict[str, Any]:
        """Name and hyperparameters of every member, as JSON values."""
        return {
            key: {"method": method.name, "settings": method.settings()}
            for key, method in self.members.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of every member."""
        return {key: method.state_dict() for key, method in self.members.items()}

    def snapshot(self) -> dict[str, Any]:
        """The snapshot of every member."""
        return {key: method.snapshot() for key, method in self.members.items()}

    def load_state_dict(self, state: Mapping[str, Any], learner: Learner) -> None:
        """Restore every member."""
        for key, method in self.members.items():
            method.load_state_dict(state[key], self.view(learner, key))
        self._gather_remembered()

    def nbytes(self) -> int:
        """Bytes of all members."""
        return sum(method.nbytes() for method in self.members.values())

    def peak_bytes(self) -> int:
        """The most bytes that the members took, each for itself."""
        return sum(method.peak_bytes() for method in self.members.values())


def require_methods(found: Sequence[object], maker: str) -> None:
    """Reject anything that is not a method, or occurs twice."""
    if not found:
        raise SettingsError(f"{maker} needs at least one method")
    for one in found:
        require_method(one)
    if len({id(one) for one in found}) < len(found):
        raise SettingsError(
            f"{maker} got the same method object twice, which would share one memory: make two objects"
        )


def require_method(found: object) -> None:
    """Reject anything but an instance of a method, and say what to give instead."""
    if isinstance(found, Method):
        return
    if isinstance(found, type) and issubclass(found, Method):
        raise SettingsError(
            f"expected a method, got the class {found.__name__}: give an instance, {found.__name__}()"
        )
    if isinstance(found, str):
        raise SettingsError(
            f"expected a method, got the text {found!r}: give an instance such as orthocl.OGD(), or "
            f"orthocl.make_method({found!r})"
        )
    raise SettingsError(f"expected a method such as orthocl.OGD(), got {_kind(found)}")


def memory_settings(method: Method) -> list[str]:
    """Those of the method's `memory_fields` that it has."""
    if isinstance(method, Composite):
        return list(method.memory_fields)
    known = {item.name for item in fields(method) if item.init}
    return [key for key in method.memory_fields if key in known]


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _places(learner: Learner, view: Learner) -> Sequence[int]:
    """Positions of a view's parameters among those of the learner."""
    if view.parameters is learner.parameters:
        return range(len(learner.parameters))
    order = {name: place for place, name in enumerate(learner.parameters)}
    return [order[name] for name in view.parameters]
