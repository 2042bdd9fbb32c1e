"""Methods: one file each; the registry name is the name on the command line and in tables."""

from orthocl.methods.agem import AGEM, AGEMNT
from orthocl.methods.base import Gradient, Method
from orthocl.methods.chain import Chain, chain
from orthocl.methods.ewc import EWC
from orthocl.methods.learner import Learner
from orthocl.methods.mas import MAS
from orthocl.methods.ogd import OGD
from orthocl.methods.ogd_plus import OGDPlus
from orthocl.methods.partition import Partition, partition
from orthocl.methods.pca_ogd import PCAOGD
from orthocl.methods.registry import METHODS, make_method
from orthocl.methods.replay import Replay
from orthocl.methods.sgd import SGD
from orthocl.methods.si import SI
from orthocl.methods.stable_sgd import StableSGD

__all__ = [
    "AGEM",
    "AGEMNT",
    "EWC",
    "MAS",
    "METHODS",
    "OGD",
    "PCAOGD",
    "SGD",
    "SI",
    "Chain",
    "Gradient",
    "Learner",
    "Method",
    "OGDPlus",
    "Partition",
    "Replay",
    "StableSGD",
    "chain",
    "make_method",
    "partition",
]
