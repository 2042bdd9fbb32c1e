"""All valid bounds for a task at once, the smallest of them, and what it says in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orthocl.checking import checked
from orthocl.errors import DataError
from orthocl.theory.generalisation import (
    Bound,
    BoundSettings,
    Form,
    dependence,
    generalisation_bound,
)
from orthocl.theory.hold_out import HeldOut
from orthocl.theory.pac_bayes import remembers_by_number
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
        """What the smallest bound of f itself says, under which hypothesis, and what is said of a draw around f."""
        own, best = self.deterministic, self.smallest
        sure = f"{100 * (1 - self.delta):.10g} %"
        if own.deterministic < 1:
            about = "the 0-1 error of f" if own.form == "pac-bayes" else own.about
            extra = f"; a draw around f: at most {best.value:.3g}" if best.form == "pac-bayes" else ""
            value = f"{own.deterministic:.3g} ({own.form}{extra})"
            used = [own, best] if extra else [own]
        elif best.value < 1:
            about, used = best.about, [best]
            value = f"{best.value:.3g} ({best.form}), which certifies nothing about f itself"
        else:
            return f"task {self.task}: no bound is below 1, so nothing is certified"
        clauses = dict.fromkeys(each.hypothesis for each in used if each.hypothesis)
        supposed = f"if {' and '.join(clauses)}, " if clauses else ""
        return (
            f"task {self.task}: {supposed}with probability {sure} over the samples, {about} after task {self.after} is "
            f"at most {value}"
        )


@checked()
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
    is "other-samples" (or "earlier-tasks" where the remembered rows were chosen), unless `settings` say something else.

    >>> import torch
    >>> from orthocl.theory.solve import solve_stream
    >>> x = torch.linspace(-1, 1, 100)[:, None]
    >>> solution = solve_stream(lambda x, z: x @ z.T, [(x, x.sign().flatten())], ridge=1.0)
    >>> [bound.form for bound in certify(solution, task=1).bounds]
    ['sound', 'one-ball', 'pac-bayes']
    """
    last = solution.last_task(after)
    solution.check_task(task)
    if settings is None:
        free = remembers_by_number(solution, task)
        settings = BoundSettings(prior="other-samples" if free else "earlier-tasks")
    found = None if settings.independent else dependence(solution, task, settings)
    possible = _forms(solution, task, held_out is not None, False)
    forms = _forms(solution, task, held_out is not None, found is not None)
    checked = replace(settings, independent=True)
    if found is not None:
        checked = replace(checked, prior="initialisation")
    bounds = [
        generalisation_bound(
            solution,
            task=task,
            after=last,
            delta=delta / len(possible),  # not of those left over: what is left over depends on the samples
            form=form,
            loss="ramp",
            held_out=held_out if form == "hold-out" else None,
            settings=settings if form == "hold-out" else checked,
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
