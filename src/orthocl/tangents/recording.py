"""Recording what goes into layers and what comes out, in the forward passes of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from orthocl.tangents import layers
from orthocl.tangents.attention import Use, readable_attention, watch_projections
from orthocl.tangents.blocks import Block
from orthocl.tangents.recurrent import readable_recurrent, watch_steps
from orthocl.tangents.shared_positions import CommonParameter


@dataclass
class RecordedLayer:
    """A module whose gradient can be read off recorded calls: what went in, what came out.

    Args:
        module: the module.
        names: its protected parameters: "weight", "bias" -> full name.
        common: whether an embedding's row of indices, without an axis of samples, is that of every sample.
    """

    module: nn.Module
    names: dict[str, str]
    common: bool = False
    uses: list[Use] = field(default_factory=list)
    calls: int = 0
    samples: int | None = None
    expanded: bool = False
    """Whether one output for all samples was given to each of them."""
    single: bool = False
    """Whether each remembered output depends on one of the layer's positions alone."""

    def record(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """A forward hook that keeps what went in and what came out."""
        self.calls += 1
        if inputs and self.samples is not None and self._for_all(inputs[0]):
            self.expanded = True
            missing = inputs[0].dim() == 1
            x, output = (part[None] if missing else part for part in (inputs[0], output))
            inputs = (x.expand(self.samples, *x.shape[1:]),)
            output = output.expand(self.samples, *output.shape[1:])
        if inputs and output.requires_grad and not self.expanded:
            # Not z itself, which a following in-place activation may overwrite, and which takes memory.
            shape = output.detach().new_empty(()).expand(output.shape)
            self.uses.append(Use(inputs[0], shape, returned=output, edge=get_gradient_edge(output)))
            return output
        returned = output.clone()
        if inputs:
            self.uses.append(Use(inputs[0], output, returned=returned))
        return returned

    def _for_all(self, x: Tensor) -> bool:
        """Whether an embedding is looked up once for all samples."""
        if not isinstance(self.module, nn.Embedding) or self.samples is None or x.dim() == 0:
            return False
        if x.dim() == 1:
            return self.common or len(x) != self.samples
        return len(x) == 1 < self.samples

    def watch(self, samples: int | None, *, compared: bool = True) -> Callable[[], None]:
        """Record the calls to come; returns what ends it.

        Args:
            samples: size of the batch; None if nothing may be given to each sample that was computed for all of them.
            compared: whether forward passes that are written out are compared with the module's own.
        """
        self.samples = samples
        if isinstance(self.module, nn.MultiheadAttention):
            return watch_projections(self.module, self._note, compared=compared)
        if isinstance(self.module, nn.RNN | nn.LSTM | nn.GRU):
            return watch_steps(self.module, self._note, compared=compared)
        return self.module.register_forward_hook(self.record).remove

    def _note(self, use: Use) -> None:
        self.calls += 1
        self.uses.append(use)

    def read(self, use: Use, d: Tensor) -> list[Block] | None:
        """The blocks of one use."""
        x = use.x.detach()
        if not use.parts:
            return layers.read(self.module, self.names, x, d)
        used = [part for part in use.parts if part in self.names]
        full = tuple(self.names[part] for part in used)
        shapes = tuple(tuple(getattr(self.module, part).shape) for part in used)
        return layers.linear(full, shapes, use.parts[0] in self.names, x, use.padded(d)) if used else []


Recorded = RecordedLayer | CommonParameter


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
        readable = layers.supported(module) or readable_attention(module) or readable_recurrent(module)
        if own and readable:
            found.append(RecordedLayer(module, own))
    return found


def recorded_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[RecordedLayer]:
    """The modules that can be read off, of those that alone own all of their protected parameters."""
    found = readable_layers(model, parameters)
    owners = Counter(name for layer in found for name in layer.names.values())
    return [layer for layer in found if all(owners[name] == 1 for name in layer.names.values())]


@contextmanager
def recording(
    recorded: Sequence[Recorded], samples: int | None = None, *, compared: bool = True
) -> Iterator[None]:
    """Forward passes inside are recorded by these layers.

    Args:
        recorded: the layers.
        samples: size of the batch, where what all samples share may be given to each of them.
        compared: whether forward passes that are written out are compared with the modules' own.
    """
    ends: list[Callable[[], None]] = []
    try:
        for layer in recorded:
            ends.append(layer.watch(samples, compared=compared))
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
