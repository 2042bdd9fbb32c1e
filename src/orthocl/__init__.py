"""Continual learning by orthogonal projection.

Your own loop: `attach`. Methods: `OGD`, `OGDPlus`, `PCAOGD`, `AGEM`, `AGEMNT`, `EWC`, `SI`, `MAS`, `StableSGD`,
`GPM`, `SGP`, `KronOGD`, `AdamNSCL`, `SketchOGD`, `ORFit`, `ER`, `DERpp`, `Joint`, `SGD`, for adapters `AdapterOGD`;
combined: `chain`, `partition`. What a memory costs: `plan`. What a fine-tuning lost: `audit`. Data: `streams`. Theory:
`solve_stream`, `generalisation_bound`, `EmpiricalNTK`, `InfiniteWidthNTK`, `linearise`, and the rest in
`orthocl.theory`. Experiments: `compare`, and `orthocl.lab`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orthocl.lab import compare
    from orthocl.methods import (
        AGEM,
        AGEMNT,
        ER,
        EWC,
        GPM,
        MAS,
        METHODS,
        OGD,
        PCAOGD,
        SGD,
        SGP,
        SI,
        AdamNSCL,
        AdapterOGD,
        DERpp,
        Joint,
        KronOGD,
        Learner,
        Method,
        OGDPlus,
        ORFit,
        SketchOGD,
        StableSGD,
        chain,
        make_method,
        partition,
    )
    from orthocl.metrics import METRICS, AccuracyMatrix
    from orthocl.nets import NETS, MultiHead, make_net
    from orthocl.tangents.planner import plan
    from orthocl.theory import EmpiricalNTK, InfiniteWidthNTK, generalisation_bound, linearise, solve_stream
    from orthocl.training import TrainSettings, attach, audit, evaluate, train

__version__ = "0.1.0"

__all__ = [
    "AGEM",
    "AGEMNT",
    "ER",
    "EWC",
    "GPM",
    "MAS",
    "METHODS",
    "METRICS",
    "NETS",
    "OGD",
    "PCAOGD",
    "SGD",
    "SGP",
    "SI",
    "AccuracyMatrix",
    "AdamNSCL",
    "AdapterOGD",
    "DERpp",
    "EmpiricalNTK",
    "InfiniteWidthNTK",
    "Joint",
    "KronOGD",
    "Learner",
    "Method",
    "MultiHead",
    "OGDPlus",
    "ORFit",
    "SketchOGD",
    "StableSGD",
    "TrainSettings",
    "attach",
    "audit",
    "chain",
    "compare",
    "evaluate",
    "generalisation_bound",
    "linearise",
    "make_method",
    "make_net",
    "partition",
    "plan",
    "solve_stream",
    "train",
]

_HOMES = ("methods", "metrics", "nets", "tangents.planner", "theory", "training", "lab.compare")
_PACKAGES = ("integrations", "lab", "methods", "metrics", "nets", "streams", "tangents", "theory", "training")


def __getattr__(name: str) -> object:
    """Names are looked up when they are first used: torch takes seconds to import, and not every command needs it."""
    if name in _PACKAGES:
        return import_module(f"orthocl.{name}")
    if name in __all__:
        for module in (import_module(f"orthocl.{home}") for home in _HOMES):
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module 'orthocl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])
