"""All valid bounds for a task at once, the smallest of them, and what it says in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orthocl.errors import DataError
from orthocl.theory.generalisation import (
    Bound,
    BoundSettings,
    Form,
    generalisation_bound,
    samples_beside,
)
from orthocl.theory.hold_out import HeldOut
from orthocl.theory.independence import shared_sample
from orthocl.theory.solution import Solution


@dataclass(frozen=True)
class Certificate:
    """Bounds of one task that hold all at once.

    Args:
        task: from 1.
        after: after which task.
        delta: the probability that any of them fails, for any task.
        bounds: one per valid form.
        dependent: why forms that need independent samples were left out; empty if they were not.
    """

    task: int
    after: int
    delta: float
    bounds: tuple[Bound, ...]
    dependent: str = ""

    @property
    def smallest(self) -> Bound:
        """The smallest, whichever predictor it is about."""
        return min(self.bounds, key=lambda bound: bound.value)

    @property
    def deterministic(self) -> Bound:
        """The smallest that is about f itself."""
        return min(self.bounds, key=lambda bound: bound.deterministic)

    def sentence(self) -> str:
        """What the smallest bound says."""
        best = self.smallest
        if best.value >= 1:
            return f"task {self.task}: no bound is below 1, so nothing is certified"
        sure = f"{100 * (1 - self.delta):.4g} %"
        extra = ""
        if best.form == "pac-bayes":
            extra = f" (of f itself: at most {min(1.0, self.deterministic.deterministic):.3g})"
        return (
            f"task {self.task}: with probability {sure} over the samples, {best.about} after task {self.after} is at "
            f"most {best.value:.3g} ({best.form}){extra}"
        )


def certify(
    solution: Solution,
    *,
    task: int,
    after: int | None = None,
    delta: float = 0.05,
    held_out: HeldOut | None = None,
    settings: BoundSettings | None = None,
) -> Certificate:
    """All forms of bound that are valid here, each at its share of delta so that they hold together.

    "sound" and "one-ball" take the ramp loss, which is at least the 0-1 error. Where the tasks' samples visibly
    depend on each other, "one-ball" is left out and the prior of "pac-bayes" starts at initialisation; otherwise it
    is "other-samples" unless `settings` say something else.

    >>> import torch
    >>> from orthocl.theory.solve import solve_stream
    >>> x = torch.linspace(-1, 1, 100)[:, None]
    >>> solution = solve_stream(lambda x, z: x @ z.T, [(x, x.sign().flatten())], ridge=1.0)
    >>> [bound.form for bound in certify(solution, task=1).bounds]
    ['sound', 'one-ball', 'pac-bayes']
    """
    settings = settings or BoundSettings(prior="other-samples")
    last = solution.last_task(after)
    found = None
    if not settings.independent:
        found = shared_sample(*samples_beside(solution, task, settings))
    forms = _forms(solution, task, held_out is not None, found is not None)
    if found is not None:
        settings = replace(settings, prior="initialisation")
    bounds = [
        generalisation_bound(
            solution,
            task=task,
            after=last,
            delta=delta / len(forms),
            form=form,
            loss="ramp",
            held_out=held_out if form == "hold-out" else None,
            settings=settings,
        )
        for form in forms
    ]
    if not bounds:
        raise DataError(f"no form of bound applies to task {task}")
    return Certificate(task, last, delta, tuple(bounds), found or "")


def _forms(solution: Solution, task: int, held_out: bool, dependent: bool) -> Sequence[Form]:
    forms: list[Form] = ["sound"]
    if not dependent:
        forms.append("one-ball")
    if solution.outputs_per_input(task) == 1:
        forms.append("pac-bayes")
    if held_out:
        forms.append("hold-out")
    return forms
