"""What all samples share: weights that a model adds to every sample with a batch size of one, such as positions.

A learned position embedding is often a parameter of shape (1, positions, width), or is looked up once for all samples.
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
    """A parameter of shape (1, ...) that its module uses itself: expanded to one copy for each sample.

    Args:
        module: the module.
        names: the parameter's name in it -> full name.
    """

    module: nn.Module
    names: dict[str, str]
    uses: list[Use] = field(default_factory=list)
    calls: int = 0
    expanded: bool = False
    single: bool = False

    def watch(self, samples: int | None, *, compared: bool = True) -> Callable[[], None]:
        """Give each sample its copy in the forward passes to come; returns what ends it."""
        (part,) = self.names
        own = getattr(self.module, part)
        copies = own.expand(samples or 1, *own.shape[1:])
        self.calls, self.expanded, self.uses = 1, len(copies) > 1, [Use(copies, copies)]
        self.module.__dict__[part] = copies  # found before the parameter, which stays where it is

        def end() -> None:
            del self.module.__dict__[part]

        return end

    def read(self, use: Use, d: Tensor) -> list[Block] | None:
        """The derivatives themselves."""
        (name,) = self.names.values()
        return [Dense((name,), ((1, *use.z.shape[1:]),), d.flatten(0, 1).flatten(1))]


def common_parameters(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], covered: set[str]
) -> list[CommonParameter]:
    """The parameters of shape (1, ...) that no layer covers."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: dict[str, list[CommonParameter]] = {}
    for module in model.modules():
        for part, parameter in module.named_parameters(recurse=False):
            name = names.get(id(parameter), "")
            if name and name not in covered and parameter.dim() > 1 and len(parameter) == 1:
                found.setdefault(name, []).append(CommonParameter(module, {part: name}))
    return [places[0] for places in found.values() if len(places) == 1]
