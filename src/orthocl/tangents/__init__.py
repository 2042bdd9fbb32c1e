"""Tangents of remembered outputs as per-layer factors, and orthogonal projection that never forms them."""

from orthocl.tangents.adapter import Adapter
from orthocl.tangents.collect import Variant, collect
from orthocl.tangents.drift import Drift, drift
from orthocl.tangents.layer_io import LayerIO, layer_io
from orthocl.tangents.memory_plan import Plan
from orthocl.tangents.planner import plan
from orthocl.tangents.projector import Projector
from orthocl.tangents.retention import Probe
from orthocl.tangents.subspace import Subspace
from orthocl.tangents.tangents import Tangents

__all__ = [
    "Adapter",
    "Drift",
    "LayerIO",
    "Plan",
    "Probe",
    "Projector",
    "Subspace",
    "Tangents",
    "Variant",
    "collect",
    "drift",
    "layer_io",
    "plan",
]
