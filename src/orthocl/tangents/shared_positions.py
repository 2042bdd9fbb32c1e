"""What all samples share: weights that a model adds to every sample with a batch size of one, such as positions.

A learned position embedding is often a parameter, of shape (1, positions, width), or is looked up once for all samples.
Its derivative then sums over the samples. While it is recorded, every sample has a copy of its own instead, which
changes nothing for a model that lets it broadcast; the collection checks that the outputs stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from orthocl.tangents.attention import Use
from orthocl.tangents.blocks import Block, Dense


@dataclass
class CommonParameter:
    """A parameter that its module uses itself: expanded to one copy for each sample.

    Args:
        module: the module.
        names: the parameter's name in it -> full name.
        missing: whether it has no axis of samples yet.
    """

    module: nn.Module
    names: dict[str, str]
    missing: bool = False
    uses: list[Use] = field(default_factory=list)
    calls: int = 0
    expanded: bool = False
    single: bool = False

    def watch(self, samples: int | None, *, compared: bool = True) -> Callable[[], None]:
        """Give each sample its copy in the forward passes to come; returns what ends it."""
        (part,) = self.names
        own = getattr(self.module, part)
        one = own[None] if self.missing else own
        copies = one.expand(samples or 1, *one.shape[1:])
        self.calls, self.uses = 1, [Use(copies, copies)]
        self.expanded = self.missing or len(copies) > 1
        self.module.__dict__[part] = copies  # found before the parameter, which stays where it is

        def end() -> None:
            del self.module.__dict__[part]

        return end

    def read(self, use: Use, d: Tensor) -> list[Block] | None:
        """The derivatives themselves."""
        (name,) = self.names.values()
        shape = use.z.shape[1:] if self.missing else (1, *use.z.shape[1:])
        return [Dense((name,), (tuple(shape),), d.flatten(0, 1).flatten(1))]


def common_parameters(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], covered: set[str], *, missing: bool
) -> list[CommonParameter]:
    """The parameters that no layer covers, of two axes at least.

    Args:
        model: the network.
        parameters: by full name.
        covered: names of those that layers cover.
        missing: whether to include those without an axis of samples, not only those of shape (1, ...).
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: dict[str, list[CommonParameter]] = {}
    for module in model.modules():
        for part, parameter in module.named_parameters(recurse=False):
            name = names.get(id(parameter), "")
            if parameter.dim() < 2 or not name or name in covered:
                continue
            if missing or len(parameter) == 1:
                found.setdefault(name, []).append(CommonParameter(module, {part: name}, len(parameter) > 1))
    return [places[0] for places in found.values() if len(places) == 1]
