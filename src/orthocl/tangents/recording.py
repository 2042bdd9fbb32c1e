"""Recording what goes into layers and what comes out, in the forward passes of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from orthocl.tangents import layers
from orthocl.tangents.attention import IN_PROJECTION, Use, readable_attention, watch_projections
from orthocl.tangents.blocks import Block


@dataclass
class RecordedLayer:
    """A module whose gradient can be read off recorded calls: what went in, what came out.

    Args:
        module: the module.
        names: its protected parameters: "weight", "bias" -> full name.
    """

    module: nn.Module
    names: dict[str, str]
    uses: list[Use] = field(default_factory=list)
    calls: int = 0

    def record(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """A forward hook that keeps what went in and what came out."""
        self.calls += 1
        returned = output.clone()  # a following in-place activation must not overwrite z
        if inputs:
            self.uses.append(Use(inputs[0], output, returned=returned))
        return returned

    def watch(self) -> Callable[[], None]:
        """Record the calls to come; returns what ends it."""
        if isinstance(self.module, nn.MultiheadAttention):
            return self._watch_attention(self.module)
        return self.module.register_forward_hook(self.record).remove

    def _watch_attention(self, module: nn.MultiheadAttention) -> Callable[[], None]:
        def note(use: Use) -> None:
            self.calls += 1
            self.uses.append(use)

        return watch_projections(module, note)

    def read(self, use: Use, d: Tensor) -> list[Block] | None:
        """The blocks of one use."""
        x = use.x.detach()
        if not isinstance(self.module, nn.MultiheadAttention):
            return layers.read(self.module, self.names, x, d)
        full = tuple(self.names[part] for part in IN_PROJECTION if part in self.names)
        shapes = tuple(
            tuple(getattr(self.module, part).shape) for part in IN_PROJECTION if part in self.names
        )
        return layers.linear(full, shapes, IN_PROJECTION[0] in self.names, x, use.padded(d))


def readable_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[RecordedLayer]:
    """The modules that own protected parameters and can be read off."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: list[RecordedLayer] = []
    for module in model.modules():
        own = {
            part: names[id(parameter)]
            for part, parameter in module.named_parameters(recurse=False)
            if id(parameter) in names
        }
        if own and (layers.supported(module) or readable_attention(module)):
            found.append(RecordedLayer(module, own))
    return found


def recorded_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[RecordedLayer]:
    """The modules that can be read off, of those that alone own all of their protected parameters."""
    found = readable_layers(model, parameters)
    owners = Counter(name for layer in found for name in layer.names.values())
    return [layer for layer in found if all(owners[name] == 1 for name in layer.names.values())]


@contextmanager
def recording(recorded: Sequence[RecordedLayer]) -> Iterator[None]:
    """Forward passes inside are recorded by these layers."""
    ends = [layer.watch() for layer in recorded]
    try:
        yield
    finally:
        for end in ends:
            end()


@contextmanager
def activation_types(model: nn.Module) -> Iterator[set[torch.dtype]]:
    """The floating-point types of what modules return in the forward passes inside: gradients are no more exact."""
    found: set[torch.dtype] = set()

    def note(module: nn.Module, inputs: object, output: object) -> None:
        parts = output if isinstance(output, tuple | list) else [output]
        found.update(part.dtype for part in parts if isinstance(part, Tensor) and part.is_floating_point())

    handles = [module.register_forward_hook(note) for module in model.modules()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
