"""Reporter: the observer through which a run reports its position, whichever executor runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunObserver, total_steps
from orthocl.methods import Learner
from orthocl.streams import Stream
from orthocl.training import Progress

REPORT_SECONDS = 0.25

Tell = Callable[..., None]
"""Takes the fields of an event by name: always `run` and `kind`, then what that kind of event has."""


class Reporter(RunObserver):
    """Reports the position of a run, a few times a second."""

    reads_weights: ClassVar[bool] = False

    def __init__(self, tell: Tell, run: str, settings: RunSettings):
        self.tell, self.run, self.settings = tell, run, settings
        self.steps: list[int] = []
        self.accuracy: float | None = None
        self.next = 0.0

    def on_run(self, run: str, settings: RunSettings, folder: Path) -> None:
        """The run begins."""
        self.tell(run=self.run, kind="started")

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Count the steps of each task."""
        samples = [len(task.train) for task in stream]
        self.steps = total_steps(self.settings, samples, learner.method.batch_size)
        self._measure(progress)
        self._send(progress, None)

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """Send the position, unless it was sent a moment ago."""
        now = time.monotonic()
        if now >= self.next:
            self.next = now + REPORT_SECONDS
            self._send(progress, loss)

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Send the accuracy so far."""
        self._measure(progress)
        self._send(progress, None)

    def _measure(self, progress: Progress) -> None:
        learnt = len(progress.accuracies) - 1
        if learnt:
            self.accuracy = sum(progress.accuracies[-1][:learnt]) / learnt

    def _send(self, progress: Progress, loss: float | None) -> None:
        task = min(progress.task, len(self.steps))
        done = progress.task > len(self.steps)
        self.tell(
            run=self.run,
            kind="progress",
            task=task,
            tasks=len(self.steps),
            step=self.steps[task - 1] if done else progress.step,
            steps=self.steps[task - 1],
            loss=loss,
            accuracy=self.accuracy,
        )
