"""Generalisation bounds: Theorem 3 as printed, and a version that is true.

Paper: Theorem 3 (`thm:gen-ogd`). The printed bound fails in five independent ways (ERRATA.md); it is kept
under form="printed" with a list of its inequalities that fail on your data.

The sound form, "Theorem 3'". Let the loss be in [0, c] and rho-Lipschitz in the output, S_t an i.i.d. sample
of D_t (nothing is asked about independence between tasks), f_0 and the kernel fixed before the data, and B_0
chosen before the data. With probability at least 1 - delta, for all t <= T at once,
    L_{D_t}(f_T) <= L_{S_t}(f_T) + 2 rho j B_0 sqrt(tr k(X_t, X_t)) / n_t
                    + 3 c sqrt(log(2 T j (j + 1) / delta) / (2 n_t)),
with j = max(1, ceil(B / B_0)) and B = ||w_T - w_0||.
Proof. G_j = {f_0 + <u, phi>: ||u|| <= j B_0} does not depend on the data, and its Rademacher complexity on
S_t is at most j B_0 sqrt(tr k(X_t, X_t)) / n_t (Jensen). Apply the standard theorem (two-sided form with the
empirical complexity) to G_j and S_t at level delta / (T j (j + 1)); these levels sum to delta over j and t.
f_T lies in G_j for the j above.

The sequential form says more when each task's sample is independent of the samples of the tasks BEFORE it. Then
f_{t-1} and kappa_t are fixed when S_t is drawn, and f_T = f_{t-1} + (a step in the space of kappa_t) + (a step in the
space of k), of lengths B = ||w_t - w_{t-1}|| and B' = ||w_T - w_t||. What was learnt before task t costs nothing:
    2 rho (j B_0 sqrt(tr kappa_t(X_t, X_t)) + j' B_0 sqrt(tr k(X_t, X_t))) / n_t,   B^2 <= S_t,
with j = max(1, ceil(B / B_0)), j' = ceil(B' / B_0) and log(2 T j (j + 1) (j' + 1) (j' + 2) / delta) in the confidence
term (1 / (j (j + 1)) over j >= 1 and 1 / ((j' + 1) (j' + 2)) over j' >= 0 each sum to 1). For the last task j' = 0 and
the complexity is that task's own term of the printed R_T, up to 2 rho: this is what remains of the paper's message.

For c outputs Maurer's vector contraction replaces 2 rho by 2 sqrt(2) rho and
tr k by tr Theta, with rho the Lipschitz constant in the Euclidean norm of the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from orthocl.errors import SettingsError, unknown_name
from orthocl.theory.complexity import complexity_proxy
from orthocl.theory.distance import radius_bound
from orthocl.theory.empirical_loss import empirical_loss_bound, forgetting_terms
from orthocl.theory.printed_inequalities import PrintedCheck, printed_checks
from orthocl.theory.solution import Solution

Form = Literal["sound", "sequential", "printed"]
FORMS = ("sound", "sequential", "printed")


@dataclass(frozen=True)
class Loss:
    """A bounded Lipschitz loss.

    Args:
        name: what tables call it.
        function: (outputs (n, c), targets (n, c)) -> (n,) values in [0, bound].
        bound: c.
        lipschitz: rho, in the Euclidean norm of the outputs.
        below_squared: whether the loss never exceeds ||u - y||^2: the closed-form empirical term needs it.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    bound: float
    lipschitz: float
    below_squared: bool = False


CLIPPED_SQUARE = Loss(
    "clipped-square", lambda u, y: (u - y).square().sum(1).clamp(max=1), 1.0, 2.0, below_squared=True
)
"""min(1, ||u - y||^2): at least the sign's 0-1 error for y = +-1, half the argmax error for one-hot y."""

CLIPPED_ABSOLUTE = Loss("clipped-absolute", lambda u, y: (u - y).norm(dim=1).clamp(max=1), 1.0, 1.0)
"""min(1, ||u - y||)."""

LOSSES = {loss.name: loss for loss in (CLIPPED_SQUARE, CLIPPED_ABSOLUTE)}


@dataclass(frozen=True)
class Bound:
    """A generalisation bound as named terms.

    Args:
        form: "sound", "sequential" or "printed".
        task: the task whose risk is bounded.
        after: after learning which task.
        terms: name -> value; the bound is their sum.
        checks: for "printed", each printed inequality with both sides on this data.
    """

    form: Form
    task: int
    after: int
    terms: dict[str, float]
    checks: tuple[PrintedCheck, ...] = ()

    @property
    def value(self) -> float:
        """The bound."""
        return sum(self.terms.values())

    @property
    def failures(self) -> tuple[PrintedCheck, ...]:
        """Printed inequalities that do not hold on this data."""
        return tuple(check for check in self.checks if not check.holds)


def generalisation_bound(
    solution: Solution,
    *,
    task: int,
    after: int | None = None,
    delta: float = 0.05,
    form: Form = "sound",
    loss: Loss | str = CLIPPED_SQUARE,
    unit_radius: float = 1.0,
    empirical: Literal["measured", "closed-form"] = "measured",
    radius: Literal["exact", "dissimilarity"] = "exact",
) -> Bound:
    """Bound the risk on a task after learning others, with probability 1 - delta over the samples.

    form="sound" assumes: a loss in [0, c], rho-Lipschitz in the outputs; the sample of each task i.i.d. from
    its distribution (tasks may depend on each other); kernel, f_0 and `unit_radius` chosen before the data;
    and the linearised network: for a real one add rho E|f_net - f_linear|. It then holds for all tasks up to
    `after` at once. form="sequential" assumes besides that each task's sample is independent of those before it,
    and charges a task only for its own step and for later ones. form="printed" is Theorem 3 as in the paper, which
    is not a bound; its `failures` say which of its inequalities fail here.

    Paper: Theorem 3 (`thm:gen-ogd`).

    Args:
        solution: the closed form.
        task: whose distribution, from 1.
        after: after which task; the last by default.
        delta: the probability that the bound fails.
        form: "sound", "sequential" or "printed".
        loss: a `Loss` or its name: "clipped-square" or "clipped-absolute".
        unit_radius: B_0; the radius is rounded up to a multiple of it.
        empirical: the measured loss, or its closed-form bound (1/n) (sqrt(lam S) + sum sqrt H)^2.
        radius: ||w_T - w_0|| itself, or its bound from the dissimilarities.

    >>> import torch
    >>> from orthocl.theory.solve import solve_stream
    >>> x = torch.linspace(-1, 1, 100)[:, None]
    >>> solution = solve_stream(lambda x, z: x @ z.T, [(x, x.sign().flatten())], ridge=1.0)
    >>> sorted(generalisation_bound(solution, task=1).terms)
    ['complexity', 'confidence', 'empirical']
    """
    last = solution.last_task(after)
    if not 1 <= task <= last:
        raise SettingsError(f"expected a task from 1 to after={last}, got {task}")
    if not 0 < delta < 1 or unit_radius <= 0:
        raise SettingsError(f"expected 0 < delta < 1 and unit_radius > 0, got {delta} and {unit_radius}")
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise unknown_name("loss", loss, LOSSES)
        loss = LOSSES[loss]
    if form == "printed":
        return _printed(solution, task, last, delta, loss)
    if form not in FORMS:
        raise unknown_name("form of the bound", form, FORMS)
    outputs = solution.targets[0].shape[1] * solution.kernel.outputs
    scale = 2 * loss.lipschitz * (math.sqrt(2) if outputs > 1 else 1) / solution.samples(task)
    shape = _sequential if form == "sequential" else _whole
    complexity, shells = shape(solution, task, last, unit_radius, radius == "exact")
    level = math.log(2 * last * shells / delta) / (2 * solution.samples(task))
    terms = {"empirical": _empirical(solution, task, last, loss, empirical)}
    terms |= {name: scale * value for name, value in complexity.items()}
    terms["confidence"] = 3 * loss.bound * math.sqrt(level)
    return Bound(form, task, last, terms)


def _whole(
    solution: Solution, task: int, last: int, unit: float, exact: bool
) -> tuple[dict[str, float], int]:
    """The radius of all that was learnt, times the lengths of the tangents; and the union's factor."""
    length = solution.distance_from_initialisation(last) if exact else radius_bound(solution, last)
    shell = max(1, math.ceil(length / unit))
    return {"complexity": shell * unit * math.sqrt(solution.base_trace(task))}, shell * (shell + 1)


def _sequential(
    solution: Solution, task: int, last: int, unit: float, exact: bool
) -> tuple[dict[str, float], int]:
    """The radius of the task's own step in its effective kernel, and of all later ones in the plain kernel."""
    own, later = solution.distance(task), solution.distance_between(task, last)
    if not exact:
        values = [math.sqrt(solution.dissimilarity(number)) for number in range(task, last + 1)]
        own, later = values[0], sum(values[1:])
    shell, beyond = max(1, math.ceil(own / unit)), math.ceil(later / unit)
    terms = {
        "own step": shell * unit * math.sqrt(solution.effective_trace(task)),
        "later steps": beyond * unit * math.sqrt(solution.base_trace(task)),
    }
    return terms, shell * (shell + 1) * (beyond + 1) * (beyond + 2)


def _empirical(solution: Solution, task: int, last: int, loss: Loss, how: str) -> float:
    if how == "measured":
        shape = (solution.samples(task), -1)
        outputs = solution.output_matrix(task, last).reshape(shape)
        return float(loss.function(outputs, solution.targets[task - 1].reshape(shape)).mean())
    if how != "closed-form":
        raise unknown_name("empirical term", how, ["measured", "closed-form"])
    if not loss.below_squared:
        raise SettingsError(
            f"the closed-form empirical term bounds the squared error, which loss {loss.name!r} may exceed: "
            'use empirical="measured" or loss="clipped-square"'
        )
    return empirical_loss_bound(solution, task, last)


def _printed(solution: Solution, task: int, last: int, delta: float, loss: Loss) -> Bound:
    samples, final = solution.samples(task), solution.samples(last)
    terms = {"regularisation": solution.ridge**2 / samples * solution.dissimilarity(task)}
    if solution.rule == "sgd" and task < last:
        terms["forgetting"] = sum(forgetting_terms(solution, task, last).values()) / final
    terms["complexity"] = complexity_proxy(solution, last)
    terms["confidence"] = 3 * loss.bound * math.sqrt(math.log(2 / delta) / (2 * final))
    return Bound("printed", task, last, terms, printed_checks(solution, task, last))
