"""Retention certificates in the laboratory: what the last task of a run changed on all earlier ones.

`certificate.json` is written to the run's folder when the last task is learnt; the report page shows it as a card. The
weights before that task lie beside it until then, so that a resumed run is certified as well. Certificates have no
influence on the run or its record.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from orthocl.errors import OrthoclError
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunObserver
from orthocl.methods.learner import Learner
from orthocl.storage import read_state, write_atomically, write_state
from orthocl.streams.base import Stream
from orthocl.training import Progress

FILE = "certificate.json"
BEFORE = "before_last_task.safetensors"


class CertificateObserver(RunObserver):
    """Keeps the weights before the last task, and certifies what came of them."""

    def on_run(self, run: str, settings: RunSettings, folder: Path) -> None:
        """A run begins or is resumed."""
        self._run, self._folder = run, folder

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Note which tasks there are; a run may be resumed where its last task begins."""
        self._stream = stream
        if progress.step == 0:
            self.on_task(learner, progress)

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Keep the weights, or certify them."""
        learnt = len(progress.accuracies) - 1  # the first row is of the untrained network
        before = self._folder / BEFORE
        if learnt == len(self._stream) - 1:
            write_state(before, dict(learner.model.state_dict()), owner=self._run)
        elif learnt == len(self._stream) > 1 and before.exists():
            write_atomically(self._folder / FILE, self._certificate(learner, before).encode())
            before.unlink()

    def _certificate(self, learner: Learner, before: Path) -> str:
        earlier = {task.name: task for task in list(self._stream)[:-1]}
        with torch.random.fork_rng(devices=[]):
            try:
                weights = read_state(before, owner=self._run)
                return learner.certificate(earlier, before=weights).to_json()
            except OrthoclError as error:
                return json.dumps({"sentence": f"No certificate: {error}"})
