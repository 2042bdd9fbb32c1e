"""Table 3: properties of SGD, OGD, OGD+, A-GEM and A-GEM-NT, declared by their classes and measured on a tiny network.

Paper: Table 3 (`tab:disc-comp`), appendix A.1. Its caption names A-GEM-NT, its print has no row for it. It needs no
runs: every property is measured on three tasks of ten samples, in a second.

Measured, with T the map from a gradient to the gradient that is used instead:
  span         rank of the space that T removes, while the second task is learnt: 0 none, 1 a direction per sample
               batch, else one direction per remembered sample.
  update rate  whether that space turns from one step to the next ("gradient step"), or only between tasks ("task").
  transfer     the share of the gradient r of the old samples that T keeps when a step agrees with them (g = r) and when
               it opposes them (g = -r). Keeping all of the first and nothing of the second is transfer by design.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from orthocl.methods import METHODS, Method, make_method
from orthocl.methods.learner import Learner
from orthocl.paper.claims import Answer, Finding, Verdict, conclude
from orthocl.paper.evidence import Evidence
from orthocl.paper.page import Page, WordTable
from orthocl.paper.published import published_item
from orthocl.streams.base import Stream
from orthocl.testing.tiny_problem import attached, model_for, problem

NAME = "table-3"
ROWS = ("sgd", "ogd", "ogd+", "a-gem", "a-gem-nt")
COLUMNS = ("Span", "Update rate", "Backward Transfer")
SAME = 1e-8
"""Distance below which two spaces are equal, in float64."""


@dataclass(frozen=True)
class Properties:
    """The words of one row."""

    span: str
    update_rate: str
    backward_transfer: str

    def words(self) -> tuple[str, str, str]:
        """In the order of the columns."""
        return self.span, self.update_rate, self.backward_transfer


@dataclass(frozen=True)
class Measured:
    """What was measured of one method.

    Args:
        rank: of the space that is removed from gradients while the second task is learnt.
        samples: samples remembered by then.
        within: distance of that space from itself one step later.
        between: its distance from the space of the third task.
        lost: how far it is from lying in the space of the third task: 0 if directions are only added.
        agreeing: share of a gradient that agrees with old samples which is kept.
        opposing: share of one that opposes them which is kept.
    """

    rank: int
    samples: int
    within: float
    between: float
    lost: float
    agreeing: float
    opposing: float

    def properties(self) -> Properties:
        """As words of the table."""
        if self.rank == 0:
            return Properties("None", "None", "No")
        span = "Sample" if self.rank == 1 < self.samples else "Full"
        rate = "Gradient step" if self.within > SAME else "Task" if self.between > SAME else "None"
        if self.agreeing > 1 - SAME and self.opposing < SAME:
            return Properties(span, rate, "Yes")
        partly = SAME < self.agreeing < 1 - SAME
        return Properties(span, rate, "Unclear" if partly else "No")


def declared(name: str) -> Properties:
    """The properties that the class of a method declares.

    >>> declared("a-gem").words()
    ('Sample', 'Gradient step', 'Yes')
    """
    kind = METHODS[name]
    if kind.projects:
        return Properties("Full", "Task", "Unclear")
    if kind.transform is Method.transform:
        return Properties("None", "None", "No")
    return Properties("Sample", "Gradient step", "Yes" if getattr(kind, "transfer", False) else "No")


@cache
def measure(name: str) -> Measured:
    """Measure a method on a tiny network in float64; always the same, so once is enough."""
    stream = problem()
    settings = {"memory_per_task": len(stream.task(1).train)} if name != "sgd" else {}
    if METHODS[name].projects:
        settings = {**settings, "engine": "project"}  # type: ignore[dict-item]
    with torch.random.fork_rng(devices=[]):
        learner = attached(make_method(name, settings), model_for(stream, torch.float64))
        with learner.learning(stream.task(1)):
            _steps(learner, stream, 1, 10)
        with learner.learning(stream.task(2)):
            first = removed_space(learner)
            agreeing, opposing = _kept_shares(learner, stream)
            _steps(learner, stream, 2, 1)
            second = removed_space(learner)
            _steps(learner, stream, 2, 9)
        with learner.learning(stream.task(3)):
            third = removed_space(learner)
            _steps(learner, stream, 3, 1)
    learner.detach()
    lost = float(torch.linalg.matrix_norm(first - third @ (third.T @ first), 2)) if first.numel() else 0.0
    return Measured(
        first.shape[1],
        len(stream.task(1).train),
        space_distance(first, second),
        space_distance(first, third),
        lost,
        agreeing,
        opposing,
    )


def table_3(evidence: Evidence, comparable: bool = True) -> Page:
    """Table 3: printed, declared and measured words, and the measurements."""
    printed = {(cell.method, cell.column): cell.text for cell in published_item(NAME).cells}
    measured = {name: measure(name) for name in ROWS}
    words: list[tuple[str, ...]] = [("algorithm", "property", "print", "declared", "measured")]
    for name in ROWS:
        for column, said, found in zip(
            COLUMNS, declared(name).words(), measured[name].properties().words(), strict=True
        ):
            words.append((name, column, printed.get((name, column), "no row"), said, found))
    numbers: list[tuple[str, ...]] = [
        ("algorithm", "rank", "turns in a step", "turns in a task", "lost", "agreeing", "opposing")
    ]
    numbers += [(name, *_number_words(found)) for name, found in measured.items()]
    return Page(
        NAME,
        "Table 3: properties of the algorithms",
        published_item(NAME).caption,
        words=(WordTable("Properties", tuple(words)), WordTable("Measurements", tuple(numbers))),
        verdicts=(verdict(words[1:]),),
        notes=(
            "OGD and OGD+ have the same words in the print. They differ in what becomes of the space at the end of a "
            "task: OGD only adds to it (lost = 0), OGD+ takes the old directions anew and loses part of what they "
            "were.",
        ),
    )


def verdict(rows: list[tuple[str, ...]]) -> Verdict:
    """Whether the printed words are those measured."""
    findings = []
    for name in ROWS:
        own = [row for row in rows if row[0] == name and row[2] != "no row"]
        wrong = [f"{row[1]} is {row[4]}, printed {row[2]}" for row in own if row[2] != row[4]]
        answer: Answer = "no" if wrong else "yes"
        if own:
            findings.append(Finding(name, answer, "; ".join(wrong)))
    return conclude("The printed properties are those measured", "appendix A.1", findings)


def removed_space(learner: Learner) -> Tensor:
    """An orthonormal basis, as columns, of what the method takes out of gradients at this moment."""
    shapes = [parameter.shape for parameter in learner.parameters.values()]
    sizes = [shape.numel() for shape in shapes]
    columns = []
    for position in range(sum(sizes)):
        for sign in (1.0, -1.0):  # A-GEM acts on one of the two only
            unit = torch.zeros(sum(sizes), dtype=torch.float64)
            unit[position] = sign
            parts = [part.reshape(shape) for part, shape in zip(unit.split(sizes), shapes, strict=True)]
            changed = _kept(learner, parts)
            columns.append(unit - torch.cat([part.detach().reshape(-1) for part in changed]))
    left, values, _ = torch.linalg.svd(torch.stack(columns, 1), full_matrices=False)
    basis: Tensor = left[:, values > 1e-9 * max(1.0, float(values[0]))]
    return basis


def _kept(learner: Learner, parts: list[Tensor]) -> list[Tensor]:
    """What a method leaves of a gradient: what it makes of it, less the part that it protects."""
    changed = list(learner.method.transform(learner, parts))
    if not (learner.method.projects and learner.method.protects):
        return changed
    inside = learner.method.inside(learner, changed)
    return [whole - part for whole, part in zip(changed, inside, strict=True)]


def space_distance(left: Tensor, right: Tensor) -> float:
    """Norm of the difference of the projectors on two spaces: 0 if equal, 1 if a direction of one is missing."""
    if not left.numel() and not right.numel():
        return 0.0
    return float(torch.linalg.matrix_norm(left @ left.T - right @ right.T, 2))


def _kept_shares(learner: Learner, stream: Stream) -> tuple[float, float]:
    """Shares of the old samples' gradient that are kept when a step agrees with it and when it opposes it."""
    inputs, targets = stream.task(1).train.samples(torch.arange(len(stream.task(1).train)))
    loss = learner.loss(learner.model(inputs.double()), targets)
    parameters = list(learner.parameters.values())
    reference = [part.detach() for part in torch.autograd.grad(loss, parameters)]
    size = sum(float((part * part).sum()) for part in reference)
    shares = []
    for sign in (1.0, -1.0):
        changed = _kept(learner, [sign * part for part in reference])
        kept = sum(float((sign * a * b).sum()) for a, b in zip(changed, reference, strict=True))
        shares.append(kept / size)
    return shares[0], shares[1]


def _steps(learner: Learner, stream: Stream, task: int, count: int) -> None:
    train = stream.task(task).train
    inputs, targets = train.samples(torch.arange(len(train)))
    for _ in range(count):
        learner.optimizer.zero_grad()
        (learner.loss(learner.model(inputs.double()), targets) + learner.penalty()).backward()
        learner.optimizer.step()


def _number_words(found: Measured) -> tuple[str, ...]:
    return (
        f"{found.rank} of {found.samples} samples",
        *(f"{abs(value) if abs(value) < 5e-4 else value:.3f}" for value in (found.within, found.between)),
        *(f"{abs(value) if abs(value) < 5e-4 else value:.3f}" for value in (found.lost, found.agreeing)),
        f"{abs(found.opposing) if abs(found.opposing) < 5e-4 else found.opposing:.3f}",
    )
