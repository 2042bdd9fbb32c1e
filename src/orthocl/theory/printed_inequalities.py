"""Printed inequalities of the paper, both sides on your data.

Paper: the lemmas behind Theorem 3 (`thm:gen-ogd`). ERRATA.md has the counterexamples and the corrections.
"""

from __future__ import annotations

from dataclasses import dataclass

from orthocl.checking import checked
from orthocl.theory.complexity import complexity_proxy, rademacher_lower_bound
from orthocl.theory.empirical_loss import empirical_loss, printed_empirical_bound
from orthocl.theory.solution import Solution


@dataclass(frozen=True)
class PrintedCheck:
    """One printed inequality `actual <= printed`.

    Args:
        label: the label in the paper.
        claim: in words.
        actual: the left side.
        printed: the right side.
    """

    label: str
    claim: str
    actual: float
    printed: float

    @property
    def holds(self) -> bool:
        """Whether it holds on this data, up to rounding."""
        return self.actual <= self.printed * (1 + 1e-9) + 1e-12


@checked()
def printed_checks(solution: Solution, task: int, after: int | None = None) -> tuple[PrintedCheck, ...]:
    """The printed inequalities that can be decided from a sample, for one task after another.

    - the RKHS-norm lemma ||f_t||^2 <= S_t (true);
    - the empirical-loss lemma (fails when eigenvalues of K + lam I are below 1, and for SGD by its missing
      cross terms);
    - the Rademacher lemma read as a bound on the sample of `task`, with the appendix's factor 2 (fails when
      other tasks' kernels are larger here than on their own samples). The left side is a lower bound of the
      complexity of the class the proof uses.
    - "if two successive tasks are identical, S = 0": not decidable here, see `curriculum`.
    """
    last = solution.last_task(after)
    lemma = "lem:ogd-train-gen-bounds" if solution.rule == "ogd" else "lem:sgd-train-gen-bounds"
    return (
        PrintedCheck(
            "lem:bound-kernel-norm",
            f"the squared norm of the increment of task {task} is at most S_{task}",
            solution.distance(task) ** 2,
            solution.dissimilarity(task),
        ),
        PrintedCheck(
            lemma,
            f"the mean squared error on task {task} after task {last} is at most its printed bound",
            empirical_loss(solution, task, last),
            printed_empirical_bound(solution, task, last),
        ),
        PrintedCheck(
            "lem:rademacher-kernels",
            f"the Rademacher complexity on the sample of task {task} is at most 2 R_{last}",
            rademacher_lower_bound(solution, task, last),
            2 * complexity_proxy(solution, last),
        ),
    )
