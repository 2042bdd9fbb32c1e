"""The checkpoints and progress file of a run, and interrupting it.

A run may be killed at any moment. Checkpoints are written after every task, and within a task whenever enough time has
passed. Writing one changes nothing: when checkpoints are written does not influence a single bit of the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from orthocl.errors import OrthoclError, StoreError
from orthocl.formatting import counted
from orthocl.lab.store.run_lock import Claim
from orthocl.lab.store.store import Store
from orthocl.methods import Learner
from orthocl.storage import write_atomically
from orthocl.streams import Stream
from orthocl.training import Observer, Progress
from orthocl.training.checkpoint import save_checkpoint

if TYPE_CHECKING:
    from orthocl.lab.run.execute import RunOptions


class InterruptedRun(OrthoclError):
    """A run was asked to stop; its checkpoint is on disk."""


class PausedRun(InterruptedRun):
    """A run got as far as `RunOptions.pause_after` says."""


class Checkpointer(Observer):
    """Writes checkpoints and the progress file, and stops the run when asked to."""

    reads_weights: ClassVar[bool] = False

    def __init__(
        self,
        store: Store,
        run: str,
        options: RunOptions,
        stop: Callable[[], bool],
        claim: Claim,
    ):
        self.store, self.run = store, run
        self.options, self.stop, self.claim = options, stop, claim
        self.spent = 0.0
        self.clock = self.saved = time.perf_counter()
        self.curve_points = 0
        self.resumes = 0

    def resumed(self, progress: Progress) -> None:
        """Continue counting time and resumptions from the checkpoint."""
        self.spent = progress.seconds.get("total", 0.0)
        self.resumes = int(progress.seconds.get("resumes", 0)) + 1
        progress.seconds["resumes"] = float(self.resumes)

    def finished(self, progress: Progress) -> Progress:
        """The progress with the total time in it."""
        progress.seconds["total"] = self.spent + time.perf_counter() - self.clock
        return progress

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Rewrite the progress file: after a crash it may be ahead of the checkpoint."""
        self.curve_points = len(progress.curves)
        lines = [{"run": self.run}, {"after_task": 0, "accuracies": progress.accuracies[0]}, *progress.curves]
        lines += [_task_line(progress, number) for number in range(1, len(progress.monitors) + 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        path = self.store.folder(self.run) / "progress.jsonl"
        write_atomically(path, text.encode(), check=self.claim.confirm)

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """Write a checkpoint if it is time."""
        if len(progress.curves) > self.curve_points:
            self.curve_points = len(progress.curves)
            self._append(progress.curves[-1])
        if self.stop():
            self._save(learner, progress)
            raise InterruptedRun(f"run {self.run} was stopped; the same command resumes it")
        if time.perf_counter() - self.saved >= self.options.checkpoint_seconds:
            self._save(learner, progress)

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Note the size of the method's state, and write a checkpoint."""
        progress.monitors[-1]["memory_bytes"] = float(learner.method.peak_bytes())
        self._append(_task_line(progress, len(progress.monitors)))
        self._save(learner, progress)
        pause = self.options.pause_after is not None and progress.task > self.options.pause_after
        if progress.task > len(progress.accuracies[0]):
            return
        if pause:
            raise PausedRun(f"run {self.run} is paused after {counted(progress.task - 1, 'task')}")
        if self.stop():
            raise InterruptedRun(f"run {self.run} was stopped; the same command resumes it")

    def _save(self, learner: Learner, progress: Progress) -> None:
        self.claim.confirm()  # before the work of writing, and again just before the file takes its place
        path = self.store.checkpoint(self.run)
        save_checkpoint(path, learner, self.finished(progress), owner=self.run, check=self.claim.confirm)
        self.saved = time.perf_counter()

    def _append(self, line: dict[str, Any]) -> None:
        self.claim.confirm()
        path = self.store.folder(self.run) / "progress.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def _task_line(progress: Progress, number: int) -> dict[str, Any]:
    return {
        "after_task": number,
        "accuracies": progress.accuracies[number],
        "memorised": progress.memorised[number - 1],
        "monitors": progress.monitors[number - 1],
        "losses": progress.losses[number - 1],
    }
