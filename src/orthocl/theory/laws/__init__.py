"""A theory laboratory: results on continual linear regression published since the paper, each as a function.

Everything here is about f(x) = w.x with more weights than samples, fitted to each task without ridge from where the
last task ended: what SGD and OGD do to a linearised network, with features simple enough for closed forms.
"""

from orthocl.theory.laws.alternation import (
    alternating_forgetting,
    mean_alternating_forgetting,
    worst_alternating_forgetting,
)
from orthocl.theory.laws.capacity import CapacityLaw, capacity_law, ogd_expected_losses
from orthocl.theory.laws.isotropic import sgd_expected_losses
from orthocl.theory.laws.latent_order import (
    best_latent_order,
    latent_final_error,
    peripheral_first,
    unlike_neighbours,
)
from orthocl.theory.laws.order import expected_average_loss, typicality_order
from orthocl.theory.laws.rotations import partial_rotation_forgetting, rotation_forgetting

__all__ = [
    "CapacityLaw",
    "alternating_forgetting",
    "best_latent_order",
    "capacity_law",
    "expected_average_loss",
    "latent_final_error",
    "mean_alternating_forgetting",
    "ogd_expected_losses",
    "partial_rotation_forgetting",
    "peripheral_first",
    "rotation_forgetting",
    "sgd_expected_losses",
    "typicality_order",
    "unlike_neighbours",
    "worst_alternating_forgetting",
]
