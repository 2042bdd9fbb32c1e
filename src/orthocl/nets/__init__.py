"""Networks of the experiments, and output heads for any network."""

from orthocl.nets.heads import MultiHead, use_head
from orthocl.nets.lenet import LeNet
from orthocl.nets.mlp import MLP

__all__ = ["MLP", "LeNet", "MultiHead", "use_head"]
