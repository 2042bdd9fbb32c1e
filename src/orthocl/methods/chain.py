"""chain: several methods on the same parameters, such as a projection and a penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from orthocl.errors import SettingsError
from orthocl.methods.base import Method
from orthocl.methods.composite import Composite, require_methods
from orthocl.methods.learner import Learner


@dataclass
class Chain(Composite):
    """Methods that act together: make one with `chain`."""

    name: ClassVar[str] = "chain"

    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        require_methods(self.methods, "chain")
        parts = [part for method in self.methods for part in _parts(method)]
        projecting = [method for method in parts if method.projects]
        if len(projecting) > 1:
            names = " and ".join(repr(method.name) for method in projecting)
            raise SettingsError(
                f"a chain can project once, got {names}: what the second projection removes brings back what the first "
                "removed. Keep one of them, or give each its own parameters with `partition`"
            )
        self.methods = (*(method for method in parts if not method.projects), *projecting)
        self.declare(" & ".join(method.name for method in self.methods))

    @property
    def members(self) -> Mapping[str, Method]:
        """The methods, in the order in which they act, by name and, where a name occurs twice, number."""
        names = [method.name for method in self.methods]
        keys = [
            name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, 1)
        ]
        return dict(zip(keys, self.methods, strict=True))

    def view(self, learner: Learner, member: str) -> Learner:
        """The learner with all its parameters, which the method shares with others."""
        return learner.seen_by(self.members[member], learner.parameters, sole=len(self.methods) == 1)


def chain(*methods: Method) -> Chain:
    """Several methods as one: penalties add up, gradients are transformed by one after the other.

    A projecting method always acts last, wherever it is listed: it acts on the weights, after the step that the others
    have shaped. They act in the order given. The name of the chain lists all in the order in which they act, joined by
    " & " (a plus would be read as part of "ogd+").

    Args:
        methods: at least one, and at most one that projects.

    >>> from orthocl.methods import EWC, OGDPlus
    >>> both = chain(OGDPlus(memory_per_task=20), EWC(strength=10.0))
    >>> both.name, both.projects
    ('ewc & ogd+', True)
    """
    return Chain(methods)


def _parts(method: Method) -> tuple[Method, ...]:
    return method.methods if isinstance(method, Chain) else (method,)
