"""What a learner needs for its certificate: where the latest task began."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

if TYPE_CHECKING:
    from orthocl.methods.certificate import Certificate
    from orthocl.methods.halfway import Halfway
    from orthocl.methods.learner import Learner


def changeable(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all that training can change: the trainable weights and the statistics."""
    kept: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    kept |= {n: b for n, b in model.named_buffers() if b.is_floating_point()}
    return {name: value.detach().clone() for name, value in kept.items()}


class Certifiable:
    """Keeps what the latest task could change as it was before, and compares."""

    started_from: Mapping[str, Tensor] = MappingProxyType({})
    latest_task: int | None = None

    def note_start(self, model: nn.Module, task: int, halfway: Halfway | None = None) -> None:
        """Keep the trainable weights and the statistics, before a task begins.

        Args:
            model: the model.
            task: number of the task.
            halfway: where the task was when its state was saved, if it has begun before.
        """
        now = changeable(model)
        self.started_from = now if halfway is None else halfway.start_for(now)
        self.latest_task = task

    def certificate(
        self,
        probes: Mapping[str, Any] | None = None,
        *,
        before: Mapping[str, Tensor] | None = None,
        samples: int = 512,
        confidence: float = 0.95,
        together: bool = True,
    ) -> Certificate:
        """What the latest task changed on earlier ones: outputs, accuracy, what was lost at most, bytes, drift.

        Args:
            probes: name -> independent samples of an earlier task: (inputs, targets), a data set, a loader, a Task of
                a stream (its test samples) or a Probe. The name may be that of a head. The method's own remembered
                samples are compared in any case.
            before: a state dict to compare with, such as one saved when the first task was finished; by default the
                weights at the start of the latest task.
            samples: at most so many of each probe, drawn at random.
            confidence: of the limits on what was lost, at least 0.5 and below 1.
            together: whether they hold for all probes at once, or each on its own.

        Raises:
            DataError: weights, samples or outputs that are not finite numbers, or labels that no output belongs to.
        """
        from orthocl.methods.learner_certificate import learner_certificate

        learner = cast("Learner", self)
        return learner_certificate(
            learner, probes, before=before, samples=samples, confidence=confidence, together=together
        )
