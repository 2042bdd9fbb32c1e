"""The cost model: what a layer's share of the memory costs in each representation, and which one is chosen.

For one layer with p weights, i inputs and o outputs per position, L positions, m rows, batches of B samples
(bytes are numbers x the storage size; madds are multiply-adds):

    representation   numbers stored      one projection (G g and G^T w)   adapter step
    dense            m p                 2 m p                            as projection
    factored (L=1)   m (i + o)           2 m i o                          2 B m (i + o)
    patches          m (maps + L o)      2 m L i o                        as projection

The last layer is factored with one output per row ("gtl"): sorted by output its adapter step takes 2 m i.
The adapter's four products, x A^T and (S alpha) D forwards, dz D^T and (E alpha) A backwards, never touch the
layer's p weights: that is cheaper when B (i + o) < i o. The first layer needs no derivative of its input, and
with a cached input kernel no x A^T either: 2 B m o remain.

The rule: factored whenever a row has one position and the factors are smaller than the gradient; patches
when they are at least `PATCHES_MUST_SAVE` times smaller than dense (they cost L times its arithmetic);
dense otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from orthocl.tangents.blocks import Kind

PATCHES_MUST_SAVE = 4.0


@dataclass(frozen=True)
class LayerShape:
    """Sizes that the cost of a layer depends on.

    Args:
        inputs: numbers of one input position (of one patch for a convolution).
        outputs: numbers of one output position.
        positions: positions per sample; 1 for a linear layer on vectors.
        input_numbers: numbers of the stored input of one sample (the map, not its patches).
        parameters: protected weights and biases.
        groups: groups of a convolution; grouped layers are stored dense.
    """

    inputs: int
    outputs: int
    positions: int
    input_numbers: int
    parameters: int
    groups: int = 1

    def numbers(self, kind: Kind, logits: int = 1) -> float:
        """Numbers stored per row; rows of one sample (`logits` of them) share its input."""
        if kind == "dense":
            return self.parameters
        return self.input_numbers / logits + self.positions * self.outputs

    def projection(self, kind: Kind) -> int:
        """Multiply-adds per row of one projection: G g and G^T w."""
        if kind == "dense":
            return 2 * self.parameters
        return 2 * self.positions * self.inputs * self.outputs

    def adapter(self, batch_size: int, first: bool = False, cached: bool = False) -> int:
        """Multiply-adds per row of one training step with the adapter on a factored layer.

        Args:
            batch_size: samples per step.
            first: whether nothing before the layer is trained: no derivative of its input is needed.
            cached: whether x A^T is looked up.
        """
        return batch_size * (2 * self.outputs + (2 - first - cached) * self.inputs)

    def choose(self, logits: int = 1) -> Kind:
        """The representation that the rule above picks.

        >>> LayerShape(1024, 100, 1, 1024, 102500).choose()
        'factored'
        >>> LayerShape(75, 20, 1024, 3072, 1520).choose()  # first convolution of a LeNet: few weights
        'dense'
        >>> LayerShape(4608, 512, 16, 8192, 2359296).choose()  # late convolution of a ResNet: many weights
        'patches'
        """
        if self.groups > 1:
            return "dense"
        stored = self.numbers("factored", logits)
        if self.positions == 1:
            return "factored" if stored <= self.parameters else "dense"
        return "patches" if stored * PATCHES_MUST_SAVE <= self.parameters else "dense"


def adapter_is_cheaper(shape: LayerShape, batch_size: int) -> bool:
    """Whether a factored layer's step is cheaper with the adapter than by projecting its gradient."""
    return shape.adapter(batch_size) < shape.projection("factored")
