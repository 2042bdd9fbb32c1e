"""Tangents of remembered outputs as per-layer factors, and orthogonal projection that never forms them."""

from orthocl.tangents.adapter import Adapter, why_not_exact
from orthocl.tangents.factors import Variant, collect
from orthocl.tangents.rows import Tangents
from orthocl.tangents.subspace import Subspace

__all__ = ["Adapter", "Subspace", "Tangents", "Variant", "collect", "why_not_exact"]
