"""Generalisation bounds: Theorem 3 as printed, and forms that hold.

Paper: Theorem 3 (`thm:gen-ogd`). The printed bound fails in five independent ways (ERRATA.md); it is kept
under form="printed" with a list of its inequalities that fail on your data. Proofs of the others: docs/theory.md.

All valid forms hold with probability at least 1 - delta for all tasks t = 1, 2, ... at once, however many there will
be: task t is charged delta / (t (t + 1)).

The sound form, "Theorem 3'". Let the loss be in [0, c] and rho-Lipschitz in the output, S_t an i.i.d. sample
of D_t (nothing is asked about independence between tasks), f_0 and the kernel fixed before the data, and B_0
chosen before the data. Then for every T >= t
    L_{D_t}(f_T) <= L_{S_t}(f_T) + 2 rho j B_0 sqrt(tr k(X_t, X_t)) / n_t
                    + 3 c sqrt(log(2 t (t + 1) j (j + 1) / delta) / (2 n_t)),
with j = max(1, ceil(B / B_0)) and B = ||w_T - w_0||.

The one-ball form. If S_t is independent of the samples of the tasks BEFORE it, then f_{t-1} and kappa_t are fixed
when S_t is drawn. The projectors are nested, so that all later steps of OGD lie in the range of P_t and
f_T = f_{t-1} + <w_T - w_{t-1}, P_t phi>: one ball of radius B = ||w_T - w_{t-1}|| in the space of kappa_t. The bound is
as above with kappa_t for k. For t = 1 it is the sound form; what was learnt before a task costs it nothing.

A bounded kernel. If k(x, x) <= b for all x, the empirical complexity may be replaced by the expected one, which
needs one step of McDiarmid instead of three: c sqrt(log(2 t (t + 1) j (j + 1) / delta) / (2 n_t)), and
2 rho j B_0 sqrt(E k / n_t) with E k from its sample mean by Maurer and Pontil's empirical Bernstein inequality.

For c outputs Maurer's vector contraction replaces 2 rho by 2 sqrt(2) rho and
tr k by tr Theta, with rho the Lipschitz constant in the Euclidean norm of the outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Literal

import torch
from torch import Tensor

from orthocl.checking import check_fields, check_value, checked
from orthocl.errors import DataError, SettingsError, unknown_name
from orthocl.theory.complexity import complexity_proxy
from orthocl.theory.distance import radius_bound, remembers_everything
from orthocl.theory.empirical_loss import empirical_loss_bound, forgetting_terms
from orthocl.theory.hold_out import HeldOut, hold_out_bound
from orthocl.theory.independence import check_independent, near_copies, shared_sample
from orthocl.theory.losses import CLIPPED_SQUARE, LOSSES, MARGINS, Loss, ramp
from orthocl.theory.pac_bayes import PRIORS, Prior, gibbs_bound
from orthocl.theory.printed_inequalities import PrintedCheck, printed_checks
from orthocl.theory.solution import Solution

Form = Literal["sound", "one-ball", "pac-bayes", "hold-out", "printed"]
FORMS = ("sound", "one-ball", "pac-bayes", "hold-out", "printed")
INDEPENDENT_FORMS = ("one-ball", "pac-bayes")
"""Forms that need the sample of a task to be independent of the samples of earlier tasks."""
SMALLEST = 1e-100
"""Of radii and bounds that are to be above zero: below it, numbers computed from them overflow."""


@dataclass(frozen=True, repr=False)
class Bound:
    """A generalisation bound as named terms.

    Args:
        form: which.
        task: the task whose risk is bounded.
        after: after learning which task.
        terms: name -> value; the bound is their sum.
        about: what is bounded, in words.
        checks: for "printed", each printed inequality with both sides on this data.
        details: further numbers, such as the divergence of "pac-bayes".
        hypothesis: what the bound supposes besides samples drawn from the task's distribution; empty if nothing.
    """

    form: Form
    task: int
    after: int
    terms: dict[str, float]
    about: str = ""
    checks: tuple[PrintedCheck, ...] = ()
    details: dict[str, float] | None = None
    hypothesis: str = ""

    @property
    def value(self) -> float:
        """The bound."""
        return sum(self.terms.values())

    def __repr__(self) -> str:
        return f"Bound({self})"

    def __str__(self) -> str:
        terms = " + ".join(f"{value:.4g} {name}" for name, value in self.terms.items())
        supposed = f"if {self.hypothesis}, " if self.hypothesis else ""
        meaning = f"{supposed}{self.about or 'what is bounded'} is at most {self.value:.1%}"
        meaning = meaning if self.value < 1 else "vacuous"
        said = f"{len(self.failures)} printed steps fail here" if self.checks else meaning
        return f"{self.form}, task {self.task} after {self.after}: {terms} = {self.value:.4g}, {said}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{value:.4g}</td></tr>" for name, value in self.terms.items()
        )
        return f"<p>{escape(str(self))}</p><table><tr><th>term</th><th>value</th></tr>{rows}</table>"

    @property
    def deterministic(self) -> float:
        """A bound for f itself, where `value` is about draws of the posterior: twice as much."""
        return 2 * self.value if self.form == "pac-bayes" else self.value

    @property
    def failures(self) -> tuple[PrintedCheck, ...]:
        """Printed inequalities that do not hold on this data."""
        return tuple(check for check in self.checks if not check.holds)


@dataclass(frozen=True)
class BoundSettings:
    """Options of the forms, all to be chosen before the data.

    Args:
        unit_radius: B_0 of "sound" and "one-ball"; the radius is rounded up to a multiple of it.
        empirical: the measured loss, or its closed-form bound (1/n) (sqrt(lam S) + sum sqrt H)^2.
        radius: the distance of the weights itself, or its bound from the dissimilarities.
        kernel_bound: an upper bound of k(x, x) for every input that can occur (for several outputs of their sum).
            When given, one step of McDiarmid replaces three.
        prior: of "pac-bayes": "earlier-tasks" (f_{t-1} in kappa_t); "other-samples", where the prior may use the
            samples of all other tasks and half of the task's own, which needs independence of later samples too and
            holds for one `after`; or "initialisation" (f_0 in k), which needs no independence between tasks.
        independent: pass True to say that the samples of the tasks were drawn independently although they share
            inputs or targets, as draws from a small finite set may. Otherwise that is refused.
    """

    unit_radius: float = 1.0
    empirical: Literal["measured", "closed-form"] = "measured"
    radius: Literal["exact", "dissimilarity"] = "exact"
    kernel_bound: float | None = None
    prior: Prior = "earlier-tasks"
    independent: bool = False

    def __post_init__(self) -> None:
        check_fields(self, besides=("empirical", "radius", "prior"))
        check_value("unit_radius", self.unit_radius, float, minimum=SMALLEST)
        check_value("kernel_bound", self.kernel_bound, float | None, minimum=SMALLEST)
        if self.empirical not in ("measured", "closed-form"):
            raise unknown_name("empirical term", self.empirical, ["measured", "closed-form"])
        if self.radius not in ("exact", "dissimilarity"):
            raise unknown_name("radius", self.radius, ["exact", "dissimilarity"])
        if self.prior not in PRIORS:
            raise unknown_name("prior", self.prior, PRIORS)


@checked()
def generalisation_bound(
    solution: Solution,
    *,
    task: int,
    after: int | None = None,
    delta: float = 0.05,
    form: Form = "sound",
    loss: Loss | str = CLIPPED_SQUARE,
    held_out: HeldOut | None = None,
    settings: BoundSettings | None = None,
) -> Bound:
    """Bound the risk on a task after learning others, with probability 1 - delta over the samples.

    All forms are about the linearised network: for a real one add rho E|f_net - f_linear|. The sample of each task
    is i.i.d. from its distribution; kernel, f_0 and `settings` are chosen before the data.

    - "sound": a loss in [0, c], rho-Lipschitz in the outputs. Tasks may depend on each other.
    - "one-ball": sharper where the task's sample is independent of those before it.
    - "pac-bayes": the 0-1 error of a draw of the posterior (one output, targets +-1); `deterministic` is twice as
      much and about f itself. Needs the same independence, unless settings.prior="initialisation".
    - "hold-out": the 0-1 error of f by Clopper and Pearson, from `held_out` samples that nothing was trained on.
    - "printed": Theorem 3 as in the paper, which is not a bound; its `failures` say which of its inequalities fail.

    The first three hold for all tasks and all `after` at once, "hold-out" for all tasks at the given `after`.
    Independence is checked as far as data can tell: see `shared_sample` and `near_copies`.

    Paper: Theorem 3 (`thm:gen-ogd`).

    Args:
        solution: the closed form.
        task: whose distribution, from 1.
        after: after which task; the last by default.
        delta: the probability that the bound fails.
        form: which, see above.
        loss: for "sound" and "one-ball" a `Loss` or a name: "clipped-square", "clipped-absolute", or "ramp" (the best
            of eight margins, which the bound pays for).
        held_out: for "hold-out", inputs and targets of the task.
        settings: further options.

    Raises:
        DataError: samples that are visibly not independent, or rows that are not samples.

    >>> from orthocl.theory.solve import solve_stream
    >>> x = torch.linspace(-1, 1, 100)[:, None]
    >>> solution = solve_stream(lambda x, z: x @ z.T, [(x, x.sign().flatten())], ridge=1.0)
    >>> sorted(generalisation_bound(solution, task=1).terms)
    ['complexity', 'confidence', 'empirical']
    >>> generalisation_bound(solution, task=1, form="pac-bayes").value < 0.25
    True
    """
    settings = settings or BoundSettings()
    last = solution.last_task(after)
    if not 1 <= solution.check_task(task) <= last:
        raise SettingsError(f"expected a task from 1 to after={last}, got {task}")
    if not 0 < delta < 1:
        raise SettingsError(f"expected 0 < delta < 1, got {delta}")
    if form not in FORMS:
        raise unknown_name("form of the bound", form, FORMS)
    if form == "hold-out":
        value = hold_out_bound(
            solution, task, last, delta / (task * (task + 1)), held_out, settings.independent
        )
        supposed = "the held-out samples are independent of all others"
        return Bound(form, task, last, value, "the 0-1 error of f", hypothesis=supposed)
    _check_samples(solution, task)
    if form in INDEPENDENT_FORMS and not settings.independent and needs_independence(form, settings):
        check_independent(dependence(solution, task, settings), form)
    if form == "pac-bayes":
        return _gibbs(solution, task, last, delta, settings)
    chosen = _losses(loss, solution, task)
    if form == "printed":
        return _printed(solution, task, last, delta, chosen[0])
    level = delta / (task * (task + 1) * len(chosen))
    found = [_uniform(solution, task, last, level, form, each, settings) for each in chosen]
    return min(found, key=lambda bound: bound.value)


def needs_independence(form: str, settings: BoundSettings) -> bool:
    """Whether a form of bound needs the sample of a task to be independent of earlier ones."""
    return form == "one-ball" or (form == "pac-bayes" and settings.prior != "initialisation")


def dependence(solution: Solution, task: int, settings: BoundSettings) -> str | None:
    """What shows that a task's sample is not independent of those that it must be independent of, or None."""
    last = len(solution) if settings.prior == "other-samples" else task - 1
    others = [number for number in range(1, last + 1) if number != task]
    found = shared_sample(
        {number: task_sample(solution, number) for number in others}, task, task_sample(solution, task)
    )
    if found is not None:
        return found
    points = {number: solution.task_points(number) for number in others}
    return near_copies(solution.kernel, points, task, solution.task_points(task))


def _hypothesis(solution: Solution, task: int, form: str, settings: BoundSettings) -> str:
    """What a form supposes about the samples of other tasks."""
    if not needs_independence(form, settings):
        return ""
    if form == "pac-bayes" and settings.prior == "other-samples":
        return "this task's samples are independent of the others'" if len(solution) > 1 else ""
    return "this task's samples are independent of those of the tasks before it" if task > 1 else ""


def task_sample(solution: Solution, task: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a task, one row per input."""
    inputs = solution.task_points(task).inputs
    return inputs, solution.targets[task - 1].reshape(len(inputs), -1)


def _check_samples(solution: Solution, task: int) -> None:
    """Rows of one input are one sample: reject points that have more rows for some inputs than for others."""
    points = solution.task_points(task)
    if points.sample is None:
        return
    count = len(points.inputs)
    each, left = divmod(len(points), count)
    if left or not bool((points.sample == torch.arange(count).repeat_interleave(each)).all()):
        raise DataError(
            f"task {task} has {len(points)} rows for {count} inputs, unequally many for each or out of order: rows of "
            "one input are not independent samples, so a bound needs all rows of an input next to each other"
        )


def _losses(loss: Loss | str, solution: Solution, task: int) -> list[Loss]:
    if isinstance(loss, Loss):
        return [loss]
    if loss == "ramp":
        return [ramp(margin, solution.outputs_per_input(task)) for margin in MARGINS]
    if not isinstance(loss, str) or loss not in LOSSES:
        raise unknown_name("loss", loss, [*LOSSES, "ramp"])
    return [LOSSES[loss]]


def _uniform(
    solution: Solution, task: int, last: int, delta: float, form: Form, loss: Loss, settings: BoundSettings
) -> Bound:
    """The sound and the one-ball form: a ball fixed before the sample, and its Rademacher complexity."""
    samples = solution.samples(task)
    first = 0 if form == "sound" else task - 1
    radius = _radius(solution, first, last, settings)
    shell = max(1, math.ceil(radius / settings.unit_radius))
    several = math.sqrt(2) if solution.outputs_per_input(task) > 1 else 1
    scale = 2 * loss.lipschitz * several * shell * settings.unit_radius
    diagonal = _diagonal(solution, task, form)
    shells = shell * (shell + 1)
    if settings.kernel_bound is None:
        complexity = scale * math.sqrt(float(diagonal.sum())) / samples
        confidence = 3 * loss.bound * math.sqrt(math.log(2 * shells / delta) / (2 * samples))
    else:
        mean = mean_upper_bound(diagonal, settings.kernel_bound, delta / 2)
        complexity = scale * math.sqrt(mean / samples)
        confidence = loss.bound * math.sqrt(math.log(2 * shells / delta) / (2 * samples))
    empirical = _empirical(solution, task, last, loss, settings.empirical)
    terms = {"empirical": empirical, "complexity": complexity, "confidence": confidence}
    supposed = _hypothesis(solution, task, form, settings)
    return Bound(form, task, last, terms, f"the {loss.name} risk of f", hypothesis=supposed)


def _radius(solution: Solution, first: int, last: int, settings: BoundSettings) -> float:
    if settings.radius == "exact":
        return solution.distance_between(first, last)
    if first == 0:
        return radius_bound(solution, last)
    values = [solution.dissimilarity(number) for number in range(first + 1, last + 1)]
    if remembers_everything(solution, last):
        return math.sqrt(sum(values))
    return sum(math.sqrt(value) for value in values)


def _diagonal(solution: Solution, task: int, form: Form) -> Tensor:
    """The trace of Theta(x, x), or of its effective part, at every input of a task."""
    if form == "sound":
        rows = solution.blocks[task - 1]
        values = solution.base_diagonal[rows] * solution.targets[task - 1].shape[1]
    else:
        values = torch.zeros(len(solution.blocks[task - 1]), dtype=torch.float64)
        for step in solution.steps(task):
            values = values + step.effective.diagonal().clamp_min(0) * step.residual.shape[1]
    return values.reshape(solution.samples(task), -1).sum(1)


def mean_upper_bound(values: Tensor, bound: float, delta: float) -> float:
    """An upper bound of the mean of a variable in [0, bound], from a sample, with probability 1 - delta.

    Maurer and Pontil 2009, Theorem 4: mean + sqrt(2 V log(2/delta) / n) + 7 b log(2/delta) / (3 (n - 1)).
    """
    if float(values.max()) > bound * (1 + 1e-9):
        raise SettingsError(
            f"kernel_bound={bound:g} is exceeded by the data: k(x, x) = {float(values.max()):g}. It must hold for "
            "every input that can occur"
        )
    count = len(values)
    if count < 2:
        return bound
    level = math.log(2 / delta)
    spread = math.sqrt(2 * float(values.var()) * level / count)
    return min(bound, float(values.mean()) + spread + 7 * bound * level / (3 * (count - 1)))


def _empirical(solution: Solution, task: int, last: int, loss: Loss, how: str) -> float:
    if how == "measured":
        shape = (solution.samples(task), -1)
        outputs = solution.output_matrix(task, last).reshape(shape)
        return float(loss.function(outputs, solution.targets[task - 1].reshape(shape)).mean())
    if not loss.below_squared:
        raise SettingsError(
            f"the closed-form empirical term bounds the squared error, which loss {loss.name!r} may exceed: "
            'use empirical="measured" or loss="clipped-square"'
        )
    return empirical_loss_bound(solution, task, last)


def _gibbs(solution: Solution, task: int, last: int, delta: float, settings: BoundSettings) -> Bound:
    found = gibbs_bound(solution, task, last, delta / (task * (task + 1)), settings.prior)
    terms = {"empirical": found.empirical, "divergence": found.value - found.empirical}
    details = {
        "kl": found.divergence,
        "samples": float(found.samples),
        "share": found.share,
        "scale": found.scale,
        "noise": found.noise,
    }
    about, supposed = "the 0-1 error of a draw around f", _hypothesis(solution, task, "pac-bayes", settings)
    return Bound("pac-bayes", task, last, terms, about, details=details, hypothesis=supposed)


def _printed(solution: Solution, task: int, last: int, delta: float, loss: Loss) -> Bound:
    samples, final = solution.samples(task), solution.samples(last)
    terms = {"regularisation": solution.ridge**2 / samples * solution.dissimilarity(task)}
    if solution.rule == "sgd" and task < last:
        terms["forgetting"] = sum(forgetting_terms(solution, task, last).values()) / final
    terms["complexity"] = complexity_proxy(solution, last)
    terms["confidence"] = 3 * loss.bound * math.sqrt(math.log(2 / delta) / (2 * final))
    checks = printed_checks(solution, task, last)
    return Bound("printed", task, last, terms, "nothing: it is not a bound", checks)
