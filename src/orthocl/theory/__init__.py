"""Continual learning as recursive kernel regression, with bounds that are true.

Paper: sections 4 and 5 and their appendices. ERRATA.md lists printed statements that fail and what holds.
"""

from orthocl.theory.bridge import BridgeReport, bridge, early_stopping_ridge
from orthocl.theory.certificate import Certificate, certify
from orthocl.theory.complexity import (
    complexity_proxy,
    complexity_terms,
    rademacher_bound,
    rademacher_estimate,
)
from orthocl.theory.curriculum import Curriculum, Order
from orthocl.theory.curriculum_claims import CurriculumClaims, curriculum_claims
from orthocl.theory.distance import radius_bound, transfer_distance
from orthocl.theory.dynamics import contraction, limit_training_loss, max_learning_rate, outputs_during
from orthocl.theory.empirical import EmpiricalNTK
from orthocl.theory.empirical_loss import empirical_loss, empirical_loss_bound, forgetting_terms
from orthocl.theory.feature_space import FeatureSolution, solve_in_feature_space
from orthocl.theory.generalisation import Bound, BoundSettings, generalisation_bound
from orthocl.theory.independence import shared_sample
from orthocl.theory.infinite_width import InfiniteWidthNTK, TwoLayerNTK
from orthocl.theory.kernels import FunctionKernel, GramKernel, Kernel
from orthocl.theory.linearised import LinearisedModel, linearise
from orthocl.theory.losses import CLIPPED_ABSOLUTE, CLIPPED_SQUARE, Loss, ramp
from orthocl.theory.no_forgetting import Alignment, Drift, forgetting_drift, gradient_alignment
from orthocl.theory.ntk_mlp import WideMLP, descend
from orthocl.theory.overlay import Overlay, overlay
from orthocl.theory.points import Points
from orthocl.theory.printed_inequalities import PrintedCheck, printed_checks
from orthocl.theory.solution import Conditioning, EffectiveKernel, Solution
from orthocl.theory.solve import ground_truth_rows, solve_stream

__all__ = [
    "CLIPPED_ABSOLUTE",
    "CLIPPED_SQUARE",
    "Alignment",
    "Bound",
    "BoundSettings",
    "BridgeReport",
    "Certificate",
    "Conditioning",
    "Curriculum",
    "CurriculumClaims",
    "Drift",
    "EffectiveKernel",
    "EmpiricalNTK",
    "FeatureSolution",
    "FunctionKernel",
    "GramKernel",
    "InfiniteWidthNTK",
    "Kernel",
    "LinearisedModel",
    "Loss",
    "Order",
    "Overlay",
    "Points",
    "PrintedCheck",
    "Solution",
    "TwoLayerNTK",
    "WideMLP",
    "bridge",
    "certify",
    "complexity_proxy",
    "complexity_terms",
    "contraction",
    "curriculum_claims",
    "descend",
    "early_stopping_ridge",
    "empirical_loss",
    "empirical_loss_bound",
    "forgetting_drift",
    "forgetting_terms",
    "generalisation_bound",
    "gradient_alignment",
    "ground_truth_rows",
    "limit_training_loss",
    "linearise",
    "max_learning_rate",
    "outputs_during",
    "overlay",
    "printed_checks",
    "rademacher_bound",
    "rademacher_estimate",
    "radius_bound",
    "ramp",
    "shared_sample",
    "solve_in_feature_space",
    "solve_stream",
    "transfer_distance",
]
