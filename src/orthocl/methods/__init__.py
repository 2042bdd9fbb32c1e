"""Methods: one file each; the registry name is the name on the command line and in tables."""

from orthocl.methods.adam_nscl import AdamNSCL
from orthocl.methods.adapter_ogd import AdapterOGD
from orthocl.methods.agem import AGEM, AGEMNT
from orthocl.methods.base import Gradient, Method
from orthocl.methods.chain import Chain, chain
from orthocl.methods.der import DERpp
from orthocl.methods.er import ER
from orthocl.methods.ewc import EWC
from orthocl.methods.gpm import GPM
from orthocl.methods.joint import Joint
from orthocl.methods.kron_ogd import KronOGD
from orthocl.methods.learner import Learner
from orthocl.methods.mas import MAS
from orthocl.methods.ogd import OGD
from orthocl.methods.ogd_plus import OGDPlus
from orthocl.methods.orfit import ORFit
from orthocl.methods.partition import Partition, partition
from orthocl.methods.pca_ogd import PCAOGD
from orthocl.methods.registry import METHODS, make_method
from orthocl.methods.sgd import SGD
from orthocl.methods.sgp import SGP
from orthocl.methods.si import SI
from orthocl.methods.sketch_ogd import SketchOGD
from orthocl.methods.stable_sgd import StableSGD

__all__ = [
    "AGEM",
    "AGEMNT",
    "ER",
    "EWC",
    "GPM",
    "MAS",
    "METHODS",
    "OGD",
    "PCAOGD",
    "SGD",
    "SGP",
    "SI",
    "AdamNSCL",
    "AdapterOGD",
    "Chain",
    "DERpp",
    "Gradient",
    "Joint",
    "KronOGD",
    "Learner",
    "Method",
    "OGDPlus",
    "ORFit",
    "Partition",
    "SketchOGD",
    "StableSGD",
    "chain",
    "make_method",
    "partition",
]
