"""partition: different methods for different parts of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from orthocl.errors import SettingsError, UnsupportedError
from orthocl.methods.base import Method
from orthocl.methods.composite import Composite, require_methods
from orthocl.methods.learner import Learner


@dataclass
class Partition(Composite):
    """Methods of different parts of a model: make one with `partition`."""

    name: ClassVar[str] = "partition"

    parts: Mapping[str, Method]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Mapping):
            raise SettingsError(
                'partition expects a dict such as {"encoder": OGD(), "decoder": EWC()}, got a '
                f"{type(self.parts).__name__}"
            )
        require_methods(list(self.parts.values()), "partition")
        self.parts = dict(sorted(self.parts.items()))  # so that the order given does not influence any draw
        self.declare(", ".join(f"{prefix}: {method.name}" for prefix, method in self.parts.items()))

    @property
    def members(self) -> Mapping[str, Method]:
        """The methods by the leading part of the names of their parameters."""
        return self.parts

    def belongs(self, name: str, prefix: str) -> bool:
        """Whether a parameter is in a part."""
        return name == prefix or name.startswith(prefix + ".")

    def view(self, learner: Learner, member: str) -> Learner:
        """The learner with the parameters and the method of one part."""
        own = {name: p for name, p in learner.parameters.items() if self.belongs(name, member)}
        return learner.seen_by(self.parts[member], own, sole=True)

    def refusal(self, learner: Learner) -> str | None:
        """Every part must have parameters, and none may have two methods."""
        for prefix in self.parts:
            if not any(self.belongs(name, prefix) for name in learner.parameters):
                raise UnsupportedError(
                    f"no protected parameter belongs to the part {prefix!r}: the names begin with "
                    f"{sorted({name.split('.')[0] for name in learner.parameters})}"
                )
        for name in learner.parameters:
            owners = [prefix for prefix in self.parts if self.belongs(name, prefix)]
            if len(owners) > 1:
                return f"parameter {name!r} belongs to {owners}: the parts of a partition must not overlap"
        return super().refusal(learner)


def partition(parts: Mapping[str, Method]) -> Partition:
    """Different methods for different parts of a model; what belongs to no part is trained plainly.

    The parts do not overlap and act in the order of their names: the order given does not matter. Each may project.
    A penalty that runs the model, such as that of `ER`, has a gradient in the other parts as well.

    Args:
        parts: leading part of the names of parameters, such as "encoder" -> its method.

    >>> from orthocl.methods import EWC, OGD
    >>> partition({"encoder": OGD(memory_per_task=20), "decoder": EWC(strength=10.0)}).name
    'decoder: ewc, encoder: ogd'
    """
    return Partition(parts)
