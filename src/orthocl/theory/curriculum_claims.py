"""The claims of the paper's curriculum paragraph, on your two tasks.

Paper: section 5.3, "Implications for Curriculum Learning".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orthocl.checking import checked
from orthocl.errors import DataError, SettingsError
from orthocl.theory.curriculum import Curriculum
from orthocl.theory.joint_tasks import TaskData
from orthocl.theory.kernels import KernelLike
from orthocl.theory.recursion import Rule


@dataclass(frozen=True)
class CurriculumClaims:
    """What two tasks, learnt alternately or in blocks, do to R_T.

    Args:
        rule: "sgd" or "ogd".
        ridge: lam.
        alternating: R_T of A B A B.
        blocked: R_T of A A B B.
        repeat: S of a task right after itself; "identical tasks: S = 0".
        repeat_cost: what the repeat adds to R_T.
    """

    rule: Rule
    ridge: float
    alternating: float
    blocked: float
    repeat: float
    repeat_cost: float

    @property
    def verdict(self) -> str:
        """Whether "alternating leads to a larger bound than blocks" holds here, in words."""
        margin = 1e-9 * max(self.alternating, self.blocked, 1e-300)
        if abs(self.alternating - self.blocked) <= margin:
            return "says nothing: both orders cost the same"
        if self.alternating > self.blocked:
            return "holds: alternating costs more"
        return "fails: alternating costs less"


@checked(besides=("ridge",))
def curriculum_claims(
    kernel: KernelLike,
    tasks: Sequence[TaskData],
    *,
    rule: Rule = "sgd",
    ridge: float = 0.0,
    memory: int | None = None,
) -> CurriculumClaims:
    """Check the paper's edge case, ABAB against AABB, on two tasks.

    >>> import torch
    >>> point = torch.tensor([[1.0]])
    >>> tasks = [(point, torch.tensor([1.0])), (torch.tensor([[0.2]]), torch.tensor([2.7]))]
    >>> curriculum_claims(lambda x, z: x @ z.T, tasks, rule="sgd", ridge=1.0).verdict
    'fails: alternating costs less'
    """
    if not isinstance(tasks, Sequence):
        raise DataError(f"expected a list of two tasks (inputs, targets), got {str(tasks)[:60]}")
    if len(tasks) != 2:
        raise SettingsError(f"the claim is about two tasks, got {len(tasks)}")
    curriculum = Curriculum(kernel, tasks, rule=rule, ridge=ridge, memory=memory)
    twice = curriculum.learn([1, 1]).steps[1]
    return CurriculumClaims(
        rule,
        ridge,
        curriculum.complexity([1, 2, 1, 2]),
        curriculum.complexity([1, 1, 2, 2]),
        twice.dissimilarity,
        curriculum.complexity_terms([1, 1])[1],
    )
