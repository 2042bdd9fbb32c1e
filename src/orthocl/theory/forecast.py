"""Forecasts: what learning the next task will do to earlier ones, before it is learnt.

Paper: Theorem 3's H terms (`thm:gen-ogd`), at the weights of a real network and for the losses it is trained with.

At the weights where a task starts the network is linearised. The task is learnt in the kernel of the rule,
    kappa = J P J^T,
with P = I for SGD; off the tangents stored at the end of each task for OGD; off the same tangents at the present
weights for OGD+; and, for GPM, off the span of the inputs that each layer had in earlier tasks (Saha, Garg and Roy:
Gradient Projection Memory, ICLR 2021), where a bias is the weight of a further input of 1, as in `methods.gpm`.
Outputs on earlier tasks then move by kappa(x, X) a. For a
model that is linear in its weights all of this is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from orthocl.checking import checked
from orthocl.errors import SettingsError, UnsupportedError, unknown_name
from orthocl.nets import MultiHead, use_head
from orthocl.streams.base import Split, Task
from orthocl.tangents import Tangents, collect
from orthocl.tangents.blocks.dense import Block
from orthocl.tangents.blocks.factored import Factored
from orthocl.tangents.cholesky import GrowingCholesky
from orthocl.theory.feature_space import extend_basis
from orthocl.theory.fits import Fit

ForecastRule = Literal["sgd", "ogd", "ogd+", "gpm"]
FORECAST_RULES: tuple[ForecastRule, ...] = ("sgd", "ogd", "ogd+", "gpm")


@dataclass(frozen=True)
class Forecast:
    """What one rule is expected to do to one earlier task.

    Args:
        task: the task to be learnt.
        earlier: the earlier task.
        rule: how it is learnt.
        before: outputs on the earlier task's samples now.
        after: outputs expected when the task has been learnt.
        labels: of these samples.
    """

    task: int
    earlier: int
    rule: ForecastRule
    before: Tensor
    after: Tensor
    labels: Tensor

    @property
    def change(self) -> float:
        """The expected mean squared change of the outputs of a sample, H / n."""
        return mean_squared_change(self.before, self.after)

    @property
    def drop(self) -> float:
        """The expected loss of accuracy."""
        return share_right(self.before, self.labels) - share_right(self.after, self.labels)


class Reader:
    """Outputs and tangents of the first samples of tasks, at the present weights of a model.

    Args:
        model: the network; read in eval mode, its mode is restored.
        samples: per task.
        chunk: samples per forward pass.
    """

    def __init__(self, model: nn.Module, samples: int = 100, chunk: int = 256):
        if samples < 1:
            raise SettingsError(f"expected at least one sample, got {samples}")
        self.model = model
        self.samples = samples
        self.chunk = chunk
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        heads = {name for name, _ in model.head_parameters()} if isinstance(model, MultiHead) else set()
        self.shared = {name: p for name, p in self.parameters.items() if name not in heads}

    def data(self, task: Task, split: Split | None = None) -> tuple[Tensor, Tensor]:
        """Inputs, in the model's type, and labels."""
        if task.kind != "classification":
            raise UnsupportedError(
                f"forecasts are made for classification, task {task.number} is {task.kind}"
            )
        chosen = split or task.train
        inputs, labels = chosen.samples(torch.arange(min(self.samples, len(chosen))))
        return inputs.to(next(iter(self.parameters.values())).dtype), labels.long()

    def outputs(self, task: Task, split: Split | None = None) -> Tensor:
        """Outputs on the samples of a task, float64."""
        mode = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), use_head(self.model, task.head):
                values: Tensor = self.model(self.data(task, split)[0])
        finally:
            self.model.train(mode)
        return values.double()

    def tangents(
        self,
        task: Task,
        every: bool,
        shared: bool = False,
        rows: int | None = None,
        split: Split | None = None,
    ) -> Tangents:
        """Tangents of the samples of a task: of all logits, or of the one of their label."""
        inputs, labels = self.data(task, split)
        mode = self.model.training
        self.model.eval()
        try:
            with use_head(self.model, task.head):
                return collect(
                    self.model,
                    inputs[:rows],
                    labels[:rows],
                    parameters=self.shared if shared else self.parameters,
                    variant="all" if every else "gtl",
                    chunk=self.chunk,
                )
        finally:
            self.model.train(mode)


class ForecastMemory:
    """What the rules would remember: call `remember` at the end of each task, at the weights of that moment.

    Args:
        model: the network.
        per_task: samples remembered per task (the first ones).
        variant: "gtl" protects the logit of the label, "all" every logit.
        energy: the share of the squared length of a layer's inputs that GPM's bases must hold.
        chunk: samples per forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        per_task: int = 100,
        variant: Literal["gtl", "all"] = "gtl",
        energy: float = 0.97,
        chunk: int = 256,
    ):
        if not 0 < energy <= 1 or per_task < 0:
            raise SettingsError(f"expected 0 < energy <= 1 and per_task >= 0, got {energy} and {per_task}")
        self.reader = Reader(model, max(1, per_task), chunk)
        self.per_task = per_task
        self.every = variant == "all"
        self.energy = energy
        self.tasks: list[Task] = []
        self.stored: list[Tangents] = []
        self.bases: dict[tuple[str, ...], Tensor] = {}

    def remember(self, task: Task) -> None:
        """Remember a task that has just been learnt."""
        self.tasks.append(task)
        if self.per_task == 0:
            return
        tangents = self.reader.tangents(task, self.every, shared=True)
        self.stored.append(tangents)
        for block in tangents.blocks:
            if isinstance(block, Factored):
                self._extend(block)

    def _extend(self, block: Factored) -> None:
        inputs = _with_ones(block)
        basis = self.bases.get(block.names, inputs.new_zeros(inputs.shape[1], 0))
        total = float(inputs.square().sum())
        rest = inputs - (inputs @ basis) @ basis.T
        _, lengths, directions = torch.linalg.svd(rest, full_matrices=False)
        held = total - float(lengths.square().sum()) + lengths.square().cumsum(0)
        held = torch.cat([held.new_tensor([total - float(lengths.square().sum())]), held])
        needed = int((held < self.energy * total * (1 - 1e-12)).sum())
        self.bases[block.names] = extend_basis(basis, directions[:needed], 1e-9)

    def renewed(self) -> list[Tangents]:
        """The remembered tangents at the present weights, as OGD+ has them."""
        if self.per_task == 0:
            return []
        return [self.reader.tangents(task, self.every, shared=True) for task in self.tasks]

    def off_inputs(self, tangents: Tangents) -> Tangents:
        """Tangents with the part that GPM protects removed from the inputs of every layer, biases among the weights."""
        blocks: list[Block] = []
        for block in tangents.blocks:
            if not isinstance(block, Factored):
                raise UnsupportedError(
                    f"GPM is forecast for fully connected layers, the parameters {list(block.names)} belong to "
                    "another kind: leave 'gpm' out of the rules"
                )
            inputs = _with_ones(block)
            basis = self.bases.get(block.names)
            if basis is not None:
                inputs = inputs - (inputs @ basis) @ basis.T
            shape = (block.deltas.shape[1], inputs.shape[1])
            blocks.append(Factored(block.names[:1], (shape,), inputs, block.deltas.double(), block.source))
        names, shapes = [block.names[0] for block in blocks], [block.shapes[0] for block in blocks]
        return Tangents(names, shapes, blocks)


def _with_ones(block: Factored) -> Tensor:
    """The inputs of a layer; with a bias, a further input of 1 whose weight it is."""
    inputs = block.inputs.double()
    return torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1) if block.bias else inputs


class _Kernels:
    """kappa of every rule between the upcoming task and any other, at the present weights."""

    def __init__(self, reader: Reader, memory: ForecastMemory, upcoming: Task, rules: Sequence[ForecastRule]):
        self.reader = reader
        self.memory = memory
        self.upcoming = upcoming
        self.own = reader.tangents(upcoming, every=True)
        self.split_heads = len(reader.shared) < len(reader.parameters)
        self.own_shared = reader.tangents(upcoming, every=True, shared=True) if self.split_heads else self.own
        self.factors: dict[str, tuple[GrowingCholesky, Tangents, Tensor]] = {}
        if "ogd" in rules and memory.stored:
            self.factors["ogd"] = self._factor(memory.stored)
        if "ogd+" in rules and memory.stored:
            self.factors["ogd+"] = self._factor(memory.renewed())

    def _factor(self, pieces: list[Tangents]) -> tuple[GrowingCholesky, Tangents, Tensor]:
        kept = Tangents.concatenate(pieces)
        gram = kept.gram()
        factor = GrowingCholesky()
        scale = float(gram.diagonal().max())
        rows = factor.extend(gram[:0], gram, scale, 1e-10)
        chosen = kept.select(rows)
        return factor, chosen, factor.solve_lower(chosen.gram(self.own_shared))

    def of(
        self, rules: Sequence[ForecastRule], theirs: Tangents, theirs_shared: Tangents
    ) -> Iterator[tuple[ForecastRule, Tensor]]:
        """kappa(x, X) of each rule, for the tangents of some points."""
        plain = theirs.gram(self.own)
        for rule in rules:
            if rule == "gpm":
                # The protected part, subtracted from the plain kernel: heads are free.
                shared = theirs_shared.gram(self.own_shared) if self.split_heads else plain
                free = self.memory.off_inputs(theirs_shared).gram(self.memory.off_inputs(self.own_shared))
                yield rule, plain - shared + free
            elif rule in self.factors:
                factor, chosen, whitened = self.factors[rule]
                left = whitened if theirs is self.own else factor.solve_lower(chosen.gram(theirs_shared))
                yield rule, plain - left.T @ whitened
            else:
                yield rule, plain


@checked()
def forecast(
    model: nn.Module,
    earlier: Sequence[Task],
    upcoming: Task,
    *,
    fit: Fit,
    memory: ForecastMemory,
    rules: Sequence[ForecastRule] = FORECAST_RULES,
    samples: int = 100,
    test: bool = False,
    chunk: int = 256,
) -> list[Forecast]:
    """Expected outputs on earlier tasks if the next task is learnt now, for each rule.

    Args:
        model: the network at the weights where the task starts; nothing is changed.
        earlier: the earlier tasks to forecast.
        upcoming: the task to be learnt.
        fit: how long and with which loss it is learnt: `Descent` or `Regularised`.
        memory: what the rules remember of earlier tasks.
        rules: which.
        samples: per task; for the upcoming task ideally all that it is trained on.
        test: use test samples of the earlier tasks instead of training samples.
        chunk: samples per forward pass.

    Returns:
        One forecast per rule and earlier task.
    """
    for rule in rules:
        if rule not in FORECAST_RULES:
            raise unknown_name("rule", rule, FORECAST_RULES)
    reader = Reader(model, samples, chunk)
    kernels = _Kernels(reader, memory, upcoming, rules)
    start = reader.outputs(upcoming)
    wanted = nn.functional.one_hot(reader.data(upcoming)[1], start.shape[1]).double()
    weights: Mapping[ForecastRule, Tensor] = {
        rule: fit.coefficients(kernel, start, wanted)
        for rule, kernel in kernels.of(rules, kernels.own, kernels.own_shared)
    }
    found = []
    for task in earlier:
        split = task.test if test else task.train
        theirs = reader.tangents(task, every=True, split=split)
        theirs_shared = (
            reader.tangents(task, every=True, shared=True, split=split) if kernels.split_heads else theirs
        )
        before, labels = reader.outputs(task, split), reader.data(task, split)[1]
        for rule, kernel in kernels.of(rules, theirs, theirs_shared):
            moved = (kernel @ weights[rule]).reshape(before.shape)
            found.append(Forecast(upcoming.number, task.number, rule, before, before + moved, labels))
    return found


def mean_squared_change(before: Tensor, after: Tensor) -> float:
    """The mean over samples of the squared change of their outputs."""
    return float((after - before).square().sum()) / len(before)


def share_right(outputs: Tensor, labels: Tensor) -> float:
    """The share of samples whose largest output is that of their label."""
    return float((outputs.argmax(1) == labels).double().mean())
