"""layer_io: the inputs of each layer and the derivatives by its outputs, sample by sample.

For methods that protect the inputs of layers (Gradient Projection Memory and its family) or build Kronecker factors. A
layer with weights W, inputs a and outputs z = W a at each of its positions (pixels of a convolution, words of a
sequence) has the gradient sum over samples and positions of d a^T, with d the derivative by z.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthocl.errors import UnsupportedError
from orthocl.nets.inputs import Inputs, Targets
from orthocl.nets.outputs import Outputs, read_outputs
from orthocl.tangents.attention import Use
from orthocl.tangents.blocks import Patches
from orthocl.tangents.collect import RecordedLayer, differentiable, recorded_layers, recording


@dataclass(frozen=True)
class LayerIO:
    """Inputs and output derivatives of one layer, for a batch.

    Args:
        inputs: A, (samples, positions, i): a linear layer's inputs, or the patches that a convolution sees.
        derivatives: D, (samples, positions, o): of the chosen quantity by the layer's outputs.
    """

    inputs: Tensor
    derivatives: Tensor

    def gradient(self) -> Tensor:
        """Gradient of the quantity, summed over samples, by the layer's weights as a matrix: (o, i)."""
        return torch.einsum("npo,npi->oi", self.derivatives, self.inputs)


def layer_io(
    model: nn.Module,
    inputs: Inputs,
    *,
    parameters: Mapping[str, nn.Parameter] | None = None,
    quantity: Callable[[Tensor], Tensor] | None = None,
    outputs: Outputs = None,
    targets: Targets | None = None,
) -> dict[str, LayerIO]:
    """Inputs and output derivatives of the linear and convolutional layers, by the name of their weight.

    The model is put into eval mode meanwhile, as for collecting tangents; select its head first.

    Args:
        model: the network.
        inputs: a batch: a tensor, a tuple (model(*inputs)) or a dict (model(**inputs)).
        parameters: the protected parameters by full name (`learner.parameters`); by default all of the model's. Layers
            whose weight is not among them are left out, and so are other kinds of layers, weights that several
            modules share and convolutions in groups: compare the keys with the names that you need.
        quantity: outputs -> one number per sample, to be differentiated; by default the sum of a sample's outputs.
        outputs: (model, inputs) -> the outputs that are meant, or a dict of such functions, whose results are put side
            by side.
        targets: for those of these functions that need them.

    Raises:
        UnsupportedError: if a layer is called more than once in a forward pass.

    >>> from orthocl.nets import MLP
    >>> model = MLP((4,), hidden=(8,), outputs=3)
    >>> found = layer_io(model, torch.randn(5, 4))
    >>> {name: (tuple(io.inputs.shape), tuple(io.derivatives.shape)) for name, io in found.items()}
    {'1.weight': ((5, 1, 4), (5, 1, 8)), '4.weight': ((5, 1, 8), (5, 1, 3))}
    """
    chosen = dict(model.named_parameters()) if parameters is None else parameters
    recorded = [layer for layer in recorded_layers(model, chosen) if _readable(layer)]
    with differentiable(model, chosen):
        with recording(recorded):
            read = read_outputs(model, inputs, targets, outputs)
        called = [layer for layer in recorded if layer.calls]
        whole = (
            read if isinstance(read, Tensor) else torch.cat([part.flatten(1) for part in read.values()], 1)
        )
        values = whole.flatten(1).sum(1) if quantity is None else quantity(whole)
        results = [_use(layer).place for layer in called]
        found = torch.autograd.grad(values.sum(), results, allow_unused=True)
    return {
        layer.names["weight"]: _layer_io(layer, torch.zeros_like(_use(layer).z) if d is None else d)
        for layer, d in zip(called, found, strict=True)
    }


def _readable(layer: RecordedLayer) -> bool:
    module = layer.module
    plain = isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    return plain and "weight" in layer.names


def _use(layer: RecordedLayer) -> Use:
    """The one call of a layer."""
    if layer.calls != 1 or not layer.uses:
        raise UnsupportedError(
            f"the layer of {layer.names['weight']!r} is called {layer.calls} times in one forward pass: its inputs are "
            "not one batch. Leave its parameters out"
        )
    return layer.uses[0]


def _layer_io(layer: RecordedLayer, d: Tensor) -> LayerIO:
    blocks = layer.read(_use(layer), d[:, None])
    block = blocks[0] if blocks else None
    if not isinstance(block, Patches):
        raise UnsupportedError(f"the inputs of the layer of {layer.names['weight']!r} have no positions")
    return LayerIO(block.patches(slice(None), d.dtype), block.deltas)
