"""A theory laboratory: results on continual linear regression published since the paper, each as a function.

Everything here is about f(x) = w.x with more weights than samples, fitted to each task without ridge from where the
last task ended: what SGD and OGD do to a linearised network, with features simple enough for closed forms.
"""

from orthocl.theory.laws.alternation import alternating_forgetting, worst_alternating_forgetting
from orthocl.theory.laws.capacity import CapacityLaw, capacity_law, ogd_expected_losses
from orthocl.theory.laws.isotropic import sgd_expected_losses
from orthocl.theory.laws.order import expected_average_loss, typicality_order
from orthocl.theory.laws.rotations import partial_rotation_forgetting, rotation_forgetting

__all__ = [
    "CapacityLaw",
    "alternating_forgetting",
    "capacity_law",
    "expected_average_loss",
    "ogd_expected_losses",
    "partial_rotation_forgetting",
    "rotation_forgetting",
    "sgd_expected_losses",
    "typicality_order",
    "worst_alternating_forgetting",
]
