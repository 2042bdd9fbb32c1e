"""Continual learning as recursive kernel regression, with bounds that hold.

Paper: sections 4 and 5 and their appendices. ERRATA.md lists printed statements that fail and what holds.
"""

from orthocl.theory.bridge import BridgeReport, bridge
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
from orthocl.theory.fits import Descent, Regularised, early_stopping_ridge, forgetting_vector
from orthocl.theory.forecast import FORECAST_RULES, Forecast, ForecastMemory, forecast
from orthocl.theory.generalisation import Bound, BoundSettings, generalisation_bound
from orthocl.theory.independence import shared_sample
from orthocl.theory.infinite_width import InfiniteWidthNTK, TwoLayerNTK
from orthocl.theory.judgement import Judgement, Pair, judge, partial_rank_correlation
from orthocl.theory.kernels import FunctionKernel, GramKernel, Kernel
from orthocl.theory.linearised import LinearisedModel, linearise
from orthocl.theory.losses import CLIPPED_ABSOLUTE, CLIPPED_SQUARE, Loss, ramp
from orthocl.theory.no_forgetting import Alignment, OutputDrift, forgetting_drift, gradient_alignment
from orthocl.theory.ntk_mlp import WideMLP, descend
from orthocl.theory.overlap import TangentDrift, overlap, principal_cosines, tangent_drift
from orthocl.theory.overlay import Overlay, overlay
from orthocl.theory.points import Points
from orthocl.theory.printed_inequalities import PrintedCheck, printed_checks
from orthocl.theory.solution import Conditioning, EffectiveKernel, Solution
from orthocl.theory.solve import ground_truth_rows, solve_stream

__all__ = [
    "CLIPPED_ABSOLUTE",
    "CLIPPED_SQUARE",
    "FORECAST_RULES",
    "Alignment",
    "Bound",
    "BoundSettings",
    "BridgeReport",
    "Certificate",
    "Conditioning",
    "Curriculum",
    "CurriculumClaims",
    "Descent",
    "EffectiveKernel",
    "EmpiricalNTK",
    "FeatureSolution",
    "Forecast",
    "ForecastMemory",
    "FunctionKernel",
    "GramKernel",
    "InfiniteWidthNTK",
    "Judgement",
    "Kernel",
    "LinearisedModel",
    "Loss",
    "Order",
    "OutputDrift",
    "Overlay",
    "Pair",
    "Points",
    "PrintedCheck",
    "Regularised",
    "Solution",
    "TangentDrift",
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
    "forecast",
    "forgetting_drift",
    "forgetting_terms",
    "forgetting_vector",
    "generalisation_bound",
    "gradient_alignment",
    "ground_truth_rows",
    "judge",
    "limit_training_loss",
    "linearise",
    "max_learning_rate",
    "outputs_during",
    "overlap",
    "overlay",
    "partial_rank_correlation",
    "principal_cosines",
    "printed_checks",
    "rademacher_bound",
    "rademacher_estimate",
    "radius_bound",
    "ramp",
    "shared_sample",
    "solve_in_feature_space",
    "solve_stream",
    "tangent_drift",
    "transfer_distance",
]
