"""How one layer's share of the tangents is stored."""

from orthocl.tangents.blocks.dense import Block, Dense, Kind, Shape, accurate, inner_products, slices
from orthocl.tangents.blocks.factored import Factored, Outer
from orthocl.tangents.blocks.joining import from_state, join
from orthocl.tangents.blocks.patches import Patches, Unfold

__all__ = [
    "Block",
    "Dense",
    "Factored",
    "Kind",
    "Outer",
    "Patches",
    "Shape",
    "Unfold",
    "accurate",
    "from_state",
    "inner_products",
    "join",
    "slices",
]
