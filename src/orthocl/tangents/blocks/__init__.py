"""How one layer's share of the tangents is stored."""

from orthocl.tangents.blocks.compressed import Compressed, extended
from orthocl.tangents.blocks.dense import Block, Dense, Kind, Shape, accurate, inner_products, slices
from orthocl.tangents.blocks.factored import Factored, Outer
from orthocl.tangents.blocks.joining import added, from_state, join
from orthocl.tangents.blocks.patches import Patches, Unfold
from orthocl.tangents.blocks.rows import Rows
from orthocl.tangents.blocks.summed import Summed

__all__ = [
    "Block",
    "Compressed",
    "Dense",
    "Factored",
    "Kind",
    "Outer",
    "Patches",
    "Rows",
    "Shape",
    "Summed",
    "Unfold",
    "accurate",
    "added",
    "extended",
    "from_state",
    "inner_products",
    "join",
    "slices",
]
