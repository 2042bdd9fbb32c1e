"""The cost model: what a layer's share of the memory costs in each representation, and which one is chosen.

For one layer with p weights, i inputs and o outputs per position, L positions, m rows, batches of B samples
(bytes are numbers x the storage size; madds are multiply-adds):

    representation   numbers stored      one projection (G g and G^T w)   adapter step
    dense            m p                 2 m p                            as projection
    factored (L=1)   m (i + o)           2 m i o                          2 B m (i + o)
    patches          m (maps + L o)      2 m L i o                        as projection
    compressed       m r k + i k + o r   2 m r k + 2 i o min(k, r) + ...  as projection

The last layer is factored with one output per row ("gtl"): sorted by output its adapter step takes 2 m i.
The adapter's four products, x A^T and (S alpha) D forwards, dz D^T and (E alpha) A backwards, never touch the
layer's p weights: that is cheaper when B (i + o) < i o. The first layer needs no derivative of its input, and
with a cached input kernel no x A^T either: 2 B m o remain.

Time is not arithmetic alone: all that is stored is read once in each of the two products, and a processor performs
about `READ` multiply-adds while it reads one number. The rule, one for every layer: the representation with the
smallest product of time and numbers stored. So one that is x times slower is chosen only if it is more than x times
smaller. (Patches are considered only where they are `PATCHES_MUST_SAVE` times smaller than dense rows. Bases grow with
every task, and cores with them, until they outgrow two vectors a row: what can be factored is never compressed.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from orthocl.tangents.blocks import Block, Compressed, Factored, Kind, Patches, Summed
from orthocl.tangents.last_layer import OneOutputRows, by_output

# Multiply-adds that take as long as reading one number from memory: an assumption about processors, not measured here.
READ = 16
PATCHES_MUST_SAVE = 4
# Sparse rows of an embedding must be this many times smaller than dense ones, which are faster to use.
SPARSE_MUST_SAVE = 2

Step = Literal["adapter", "by output", "directly"]
Core = tuple[int, int]
"""Directions kept of a layer's inputs, k, and of its output derivatives, r."""


@dataclass(frozen=True)
class LayerShape:
    """Sizes that the cost of a layer depends on.

    Args:
        inputs: numbers of one input position (of one patch for a convolution).
        outputs: numbers of one output position.
        positions: positions per sample; 1 for a linear layer on vectors.
        input_numbers: numbers of the stored input of one sample (the map, not its patches).
        parameters: protected weights and biases.
        groups: groups of a convolution, each with its own `inputs` and `outputs`; such layers are stored dense
            or compressed.
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
        return self.input_numbers / logits + self.positions * self.outputs * self.groups

    def projection(self, kind: Kind) -> int:
        """Multiply-adds per row of one projection: G g and G^T w."""
        if kind == "dense":
            return 2 * self.parameters
        return 2 * self.positions * self.inputs * self.outputs * self.groups

    def adapter(self, batch_size: int, first: bool = False, cached: bool = False) -> int:
        """Multiply-adds per row of one training step with the adapter on a factored layer.

        Args:
            batch_size: samples per step.
            first: whether nothing before the layer is trained: no derivative of its input is needed.
            cached: whether x A^T is looked up.
        """
        return batch_size * (2 * self.outputs + (2 - first - cached) * self.inputs)

    def core_numbers(self, core: Core) -> int:
        """Numbers per row of a compressed layer."""
        k, r = core
        return self.groups * r * (k + (self.parameters > self.groups * self.inputs * self.outputs))

    def basis_numbers(self, core: Core) -> int:
        """Numbers of a compressed layer's two bases, whatever the number of rows."""
        return self.groups * (self.inputs * core[0] + self.outputs * core[1])

    def basis_projection(self, core: Core) -> int:
        """Multiply-adds of going into the two bases and back, whatever the number of rows."""
        k, r = core
        small, rest = (k, r * self.outputs * k) if k <= r else (r, r * self.inputs * k)
        return 2 * self.groups * (self.inputs * self.outputs * small + rest)

    def price(
        self, kind: Kind, rows: int, logits: int = 1, core: Core | None = None, batch_size: int | None = None
    ) -> float:
        """Time x numbers of a layer's share of `rows` tangents: the criterion for choosing a representation.

        Args:
            kind: the representation.
            rows: tangents.
            logits: rows of one sample.
            core: sizes of the bases, for "compressed".
            batch_size: samples per step if factored layers can be adapted, None if not.
        """
        if kind == "compressed":
            k_r = core or (self.inputs, self.outputs)
            stored: float = rows * self.core_numbers(k_r) + self.basis_numbers(k_r)
            madds: float = self.basis_projection(k_r) + 2 * rows * self.core_numbers(k_r)
        else:
            stored, madds = rows * self.numbers(kind, logits), rows * self.projection(kind)
            if kind == "factored" and batch_size is not None:
                madds = min(madds, rows * self.adapter(batch_size))
        return stored * (madds + 2 * READ * stored)

    def choose(
        self, logits: int = 1, rows: int = 1, core: Core | None = None, batch_size: int | None = None
    ) -> Kind:
        """The representation that the rule above picks; without `core` among the exact ones.

        >>> LayerShape(1024, 100, 1, 1024, 102500).choose()
        'factored'
        >>> LayerShape(75, 20, 1024, 3072, 1520).choose()  # first convolution of a LeNet: few weights
        'dense'
        >>> LayerShape(4608, 512, 16, 8192, 2359296).choose()  # late convolution of a ResNet: many weights
        'patches'
        >>> LayerShape(4608, 512, 16, 8192, 2359296).choose(rows=500, core=(300, 60))
        'compressed'
        >>> LayerShape(1024, 100, 1, 1024, 102500).choose(rows=600, core=(9, 9))  # small now, but not for long
        'factored'
        """
        kinds: list[Kind] = ["dense"]
        if self.groups == 1 and self.positions == 1:
            kinds.insert(0, "factored")
        elif self.groups == 1 and self.numbers("patches", logits) * PATCHES_MUST_SAVE <= self.parameters:
            kinds.insert(0, "patches")
        if core is not None and kinds[0] != "factored":
            kinds.append("compressed")
        return min(kinds, key=lambda kind: self.price(kind, rows, logits, core, batch_size))


def sparse_rows_are_smaller(numbers: float, parameters: int) -> bool:
    """Whether an embedding's tangents are kept as the rows that they touch."""
    return SPARSE_MUST_SAVE * numbers <= parameters


def adapter_is_cheaper(shape: LayerShape, batch_size: int) -> bool:
    """Whether a factored layer's step is cheaper with the adapter than by projecting its gradient."""
    return shape.adapter(batch_size) < shape.projection("factored")


def step_of(
    block: Block, module: nn.Module | None, batch_size: int, dtype: torch.dtype
) -> tuple[Step, OneOutputRows | None]:
    """How the adapter path moves a layer: with an adapter, by output, or directly.

    Args:
        block: the layer's tangents.
        module: the layer.
        batch_size: samples per step.
        dtype: type of the parameters.

    Returns:
        The way, and the rows sorted by output where that way is chosen.
    """
    if not isinstance(block, Factored):
        return "directly", None
    sorted_rows = by_output(block, dtype)
    if sorted_rows is not None:
        return "by output", sorted_rows
    return step_on(module, block.parameters, batch_size), None


def step_on(module: nn.Module | None, parameters: int, batch_size: int) -> Step:
    """How the adapter path moves a factored layer whose tangents have several outputs each."""
    if type(module) is not nn.Linear or module is None:
        return "directly"
    shape = LayerShape(module.in_features, module.out_features, 1, module.in_features, parameters)
    return "adapter" if adapter_is_cheaper(shape, batch_size) else "directly"


def projection_madds(block: Block) -> tuple[int, int]:
    """Multiply-adds of one projection (G g and G^T w) with a block: per row, and whatever the number of rows."""
    if isinstance(block, Compressed):
        inputs, outputs = block.input_basis.shape[1], block.output_basis.shape[1]
        groups = len(block.input_basis)
        shape = LayerShape(inputs, outputs, 1, inputs, block.parameters, groups)
        return 2 * shape.core_numbers(block.ranks), shape.basis_projection(block.ranks)
    if isinstance(block, Patches):
        inputs, outputs = block.width
        return 2 * block.positions * inputs * outputs * block.groups, 0
    if isinstance(block, Summed):
        return sum(projection_madds(part)[0] for part in block.parts), 0
    if block.kind == "rows":
        values: Tensor = block.tensors()["values"]
        return 2 * values.shape[1] * values.shape[2], 0
    return 2 * block.parameters, 0
