"""Train a network with the usual loop and compare the theory's numbers with what happened.

Paper: section 6 and Theorem 3's H terms (`thm:gen-ogd`), in practice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from orthocl.methods.base import Method
from orthocl.methods.learner import Learner, Loss
from orthocl.streams.base import Stream
from orthocl.theory.bridge import BridgeReport, bridge
from orthocl.theory.fits import Descent, Fit, LossName, Regularised
from orthocl.theory.forecast import FORECAST_RULES, ForecastRule
from orthocl.theory.ridge import check_ridge
from orthocl.training.attach import attach
from orthocl.training.loop import Observer, Progress, TrainSettings, train


def squared_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error to one-hot targets, averaged over samples."""
    wanted = nn.functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return (outputs - wanted).square().sum(1).mean() / 2


LOSSES: dict[str, Loss] = {"squared": squared_loss, "cross-entropy": nn.functional.cross_entropy}


@dataclass
class Snapshots(Observer):
    """Keeps the weights at initialisation and at the end of every task."""

    states: list[dict[str, Tensor]] = field(default_factory=list)
    on_done: Callable[[int], None] | None = None

    def _keep(self, learner: Learner) -> None:
        self.states.append({name: value.clone() for name, value in learner.model.state_dict().items()})

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """The weights before the first step."""
        self._keep(learner)

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """The weights after a task."""
        self._keep(learner)
        if self.on_done is not None:
            self.on_done(len(self.states) - 1)


def train_with_theory(
    model: nn.Module,
    stream: Stream,
    method: Method,
    settings: TrainSettings,
    *,
    loss: LossName = "squared",
    samples: int = 300,
    ridge: float | None = None,
    seed: int = 0,
    on_task: Callable[[int], None] | None = None,
    on_theory: Callable[[int], None] | None = None,
) -> tuple[BridgeReport, Progress]:
    """Train on a stream, then compare with the closed form at each task's start.

    Args:
        model: the network; trained in place.
        stream: the tasks.
        method: any method; predictions are for its own rule if it is SGD, OGD, OGD+ or GPM, otherwise for plain SGD:
            then they show what was avoided.
        settings: of the training.
        loss: "squared" is the theory's own (half the squared error to one-hot targets); "cross-entropy" is what
            networks are usually trained with, and further from the theory.
        samples: training samples per task for the theory; ideally all of them.
        ridge: predict with Theorem 1's own step and this ridge, instead of with as many steps of descent on the
            training loss.
        seed: of the training.
        on_task: called with each task's number when it is trained.
        on_theory: called with each task's number when it is compared.
    """
    if ridge is not None:
        check_ridge(ridge)
    snapshots = Snapshots(on_done=on_task)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.learning_rate, momentum=settings.momentum, nesterov=settings.nesterov
    )
    learner = attach(method, model, optimizer, loss=LOSSES[loss], batch_norm=settings.batch_norm, seed=seed)
    progress = train(learner, stream, settings, seed=seed, observers=(snapshots,))
    learner.detach()
    tasks = [stream.task(number) for number in range(1, len(stream) + 1)]
    size = len(tasks[0].train)
    steps = settings.epochs * -(-size // settings.batch_size)
    fit: Fit = Descent(settings.learning_rate / (1 - settings.momentum), steps, loss)
    if ridge is not None:
        fit = Regularised(ridge)
    report = bridge(
        model,
        snapshots.states,
        tasks,
        fit=fit,
        rule=rule_of(method),
        memory_per_task=int(getattr(method, "memory_per_task", 100)),
        samples=samples,
        progress=on_theory,
    )
    return report, progress


def rule_of(method: Method) -> ForecastRule:
    """The rule whose forecasts are those of a method: its own, or plain SGD."""
    return next((rule for rule in FORECAST_RULES if rule == method.name), "sgd")
