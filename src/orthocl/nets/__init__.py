"""Networks of the experiments, and output heads for any network."""

from orthocl.nets.alexnet import AlexNet
from orthocl.nets.bird_classifier import BirdClassifier
from orthocl.nets.heads import MultiHead, find_heads, grown_linear, use_head
from orthocl.nets.lenet import LeNet
from orthocl.nets.mlp import MLP
from orthocl.nets.registry import NETS, make_net

__all__ = [
    "MLP",
    "NETS",
    "AlexNet",
    "BirdClassifier",
    "LeNet",
    "MultiHead",
    "find_heads",
    "grown_linear",
    "make_net",
    "use_head",
]
