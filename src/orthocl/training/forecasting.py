"""Forecasts while a network is trained: before every task, what it will do to earlier ones; after it, what it did."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from orthocl.errors import SettingsError
from orthocl.methods.base import Method
from orthocl.methods.learner import Learner
from orthocl.streams.base import Stream
from orthocl.theory.fits import Descent, LossName
from orthocl.theory.forecast import (
    FORECAST_RULES,
    Forecast,
    ForecastMemory,
    ForecastRule,
    Reader,
    forecast,
    mean_squared_change,
    share_right,
)
from orthocl.theory.judgement import Pair
from orthocl.training.attach import attach
from orthocl.training.loop import Observer, Progress, TrainSettings, train
from orthocl.training.theory_bridge import LOSSES


@dataclass
class Forecaster(Observer):
    """Watches a run: forecasts every task at its start, and measures what happened.

    Args:
        settings: of the training: rate, epochs and batches determine how far each task is learnt.
        loss: of the training.
        rules: which forecasts to make.
        samples: per task.
        memory_per_task: samples that OGD, OGD+ and GPM remember.
        variant: which outputs of them OGD and OGD+ protect.
        energy: the share of the squared length of a layer's inputs that GPM's bases hold: its threshold.
        test: use test samples of earlier tasks instead of training samples.
        on_done: called with each task's number when it is done.

    After the run, `forecasts` holds all forecasts, and `pairs(rule)` what was expected and what was measured.
    """

    settings: TrainSettings
    loss: LossName = "cross-entropy"
    rules: Sequence[ForecastRule] = FORECAST_RULES
    samples: int = 100
    memory_per_task: int = 100
    variant: Literal["gtl", "all"] = "gtl"
    energy: float = 0.97
    test: bool = False
    on_done: Callable[[int], None] | None = None
    forecasts: list[Forecast] = field(default_factory=list)
    measured: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Begin with an empty memory; a resumed run with that of the tasks learnt so far, at today's weights."""
        self._stream = stream
        self._model: nn.Module = copy.deepcopy(learner.model)
        self._memory = ForecastMemory(self._model, self.memory_per_task, self.variant, self.energy)
        self._done = progress.task - 1
        for number in range(1, self._done + 1):
            self._memory.remember(stream.task(number))
        if self._done and progress.step == 0:
            self._forecast_next()

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Measure the task just learnt, remember it, and forecast the next."""
        self._model.load_state_dict(learner.model.state_dict())
        self._done += 1
        reader = Reader(self._model, self.samples)
        for each in self.forecasts:
            if each.task == self._done and (each.task, each.earlier) not in self.measured:
                task = self._stream.task(each.earlier)
                now = reader.outputs(task, task.test if self.test else task.train)
                self.measured[each.task, each.earlier] = (
                    mean_squared_change(each.before, now),
                    share_right(each.before, each.labels) - share_right(now, each.labels),
                )
        self._memory.remember(self._stream.task(self._done))
        self._forecast_next()
        if self.on_done is not None:
            self.on_done(self._done)

    def _forecast_next(self) -> None:
        if self._done < len(self._stream):
            upcoming = self._stream.task(self._done + 1)
            self.forecasts += forecast(
                self._model,
                [self._stream.task(number) for number in range(1, self._done + 1)],
                upcoming,
                fit=descent_of(self.settings, len(upcoming.train), self.loss),
                memory=self._memory,
                rules=self.rules,
                samples=self.samples,
                test=self.test,
            )

    def pairs(self, rule: ForecastRule) -> list[Pair]:
        """What a rule was expected to do, next to what happened."""
        return [
            Pair(
                each.task,
                each.earlier,
                len(self._stream),
                each.change,
                self.measured[each.task, each.earlier][0],
                each.drop,
                self.measured[each.task, each.earlier][1],
            )
            for each in self.forecasts
            if each.rule == rule
        ]


def descent_of(settings: TrainSettings, samples: int, loss: LossName) -> Descent:
    """The full-batch descent that training with these settings amounts to: as many steps, momentum in the rate."""
    if settings.optimizer != "sgd":
        raise SettingsError(f"forecasts are made for SGD, got optimizer={settings.optimizer!r}")
    steps = settings.epochs * -(-samples // settings.batch_size)
    return Descent(settings.learning_rate / (1 - settings.momentum), steps, loss)


def train_with_forecasts(
    model: nn.Module,
    stream: Stream,
    method: Method,
    forecaster: Forecaster,
    *,
    seed: int = 0,
) -> Progress:
    """Train on a stream while a forecaster watches.

    Args:
        model: the network; trained in place.
        stream: the tasks, classification.
        method: any method.
        forecaster: holds the settings of the training, and the forecasts afterwards.
        seed: of the training.
    """
    settings = forecaster.settings
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.learning_rate, momentum=settings.momentum, nesterov=settings.nesterov
    )
    loss = LOSSES[forecaster.loss]
    learner = attach(method, model, optimizer, loss=loss, batch_norm=settings.batch_norm, seed=seed)
    progress = train(learner, stream, settings, seed=seed, observers=(forecaster,))
    learner.detach()
    return progress
