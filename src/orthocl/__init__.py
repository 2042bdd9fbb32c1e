"""Continual learning by orthogonal projection.

Your own loop: `attach`. Methods: `OGD`, `OGDPlus`, `PCAOGD`, `AGEM`, `AGEMNT`, `EWC`, `SI`, `MAS`, `StableSGD`, `SGD`.
"""

from orthocl.methods import (
    AGEM,
    AGEMNT,
    EWC,
    MAS,
    METHODS,
    OGD,
    PCAOGD,
    SGD,
    SI,
    Learner,
    Method,
    OGDPlus,
    StableSGD,
    make_method,
)
from orthocl.metrics import METRICS, AccuracyMatrix
from orthocl.nets import NETS, MultiHead, make_net
from orthocl.training import TrainSettings, attach, evaluate, train

__version__ = "0.1.0"

__all__ = [
    "AGEM",
    "AGEMNT",
    "EWC",
    "MAS",
    "METHODS",
    "METRICS",
    "NETS",
    "OGD",
    "PCAOGD",
    "SGD",
    "SI",
    "AccuracyMatrix",
    "Learner",
    "Method",
    "MultiHead",
    "OGDPlus",
    "StableSGD",
    "TrainSettings",
    "attach",
    "evaluate",
    "make_method",
    "make_net",
    "train",
]
