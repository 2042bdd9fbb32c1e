"""The accuracy matrix of a run and every metric on it, by name."""

from orthocl.metrics.accuracy_matrix import AccuracyMatrix
from orthocl.metrics.named import METRICS, compute, memorised_variation, over_parameterisation

__all__ = ["METRICS", "AccuracyMatrix", "compute", "memorised_variation", "over_parameterisation"]
