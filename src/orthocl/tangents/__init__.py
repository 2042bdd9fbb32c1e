"""Tangents of remembered outputs as per-layer factors, and orthogonal projection that never forms them."""

from orthocl.tangents.factors import Tangents, Variant, collect
from orthocl.tangents.subspace import Subspace

__all__ = ["Subspace", "Tangents", "Variant", "collect"]
