"""Elastic Weight Consolidation.

Reference: Kirkpatrick et al. Overcoming catastrophic forgetting in neural networks. PNAS 2017. Online form: Schwarz
et al. Progress & Compress. ICML 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from orthocl.errors import SettingsError
from orthocl.methods.base import Method, no_complex_weights
from orthocl.methods.growing import grown_centre, grown_list
from orthocl.methods.importance import mean_of_gradients
from orthocl.methods.learner import Learner
from orthocl.methods.memory import draw
from orthocl.methods.quadratic import add_quadratic, importances_are_old, quadratic_penalty
from orthocl.nets.positions import IGNORED, log_probabilities, valid_positions


@dataclass
class EWC(Method):
    """Penalty (strength / 2) * sum_k sum_i F_k,i (w_i - w*_k,i)^2 over finished tasks k, F the Fisher diagonal.

    The sum over tasks is kept as one quadratic, so a step costs the same after any number of tasks.

    Args:
        strength: lambda, the weight of the penalty.
        online: one running Fisher (decayed by `decay`) centred on the latest weights, instead of a sum over tasks.
        decay: gamma of the online form.
        fisher: whose label the Fisher uses: the "predicted" class (as the authors of the paper), a class "sampled"
            from the model's distribution (the definition), or the "label" of the data (the empirical Fisher).
        fisher_samples: training samples used for the estimate; None for all.
        fisher_batch: gradients are averaged over this many samples before squaring. 1 is the diagonal Fisher; the
            authors' code used the training batch, which makes it smaller by about that factor.
    """

    name: ClassVar[str] = "ewc"

    strength: float = 100.0
    online: bool = False
    decay: float = 1.0
    fisher: Literal["predicted", "sampled", "label"] = "predicted"
    fisher_samples: int | None = 1024
    fisher_batch: int = 1
    minimum: ClassVar[Mapping[str, float]] = {
        "strength": 0,
        "decay": 0,
        "fisher_samples": 0,
        "fisher_batch": 1,
    }
    importance: list[Tensor] = field(default_factory=list, init=False, repr=False)
    centre: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def check_settings(self) -> None:
        """As for every method; in addition, `decay` belongs to the online form only."""
        super().check_settings()
        if self.decay != 1.0 and not self.online:
            raise SettingsError(
                "decay of ewc only has an effect with online=True: set that, or leave decay out"
            )

    def refusal(self, learner: Learner) -> str | None:
        """Refuse complex weights."""
        return no_complex_weights(learner)

    def penalty(self, learner: Learner) -> Tensor | None:
        """The quadratic around the weights of finished tasks."""
        if not self.importance:
            return None
        parameters = list(learner.parameters.values())
        return quadratic_penalty(parameters, self.importance, self.centre, self.strength / 2)

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """New weights have no importance for earlier tasks."""
        self.importance = grown_list(self.importance, learner.parameters, earlier)
        self.centre = grown_centre(self.centre, learner.parameters, earlier)

    def weights_changed(self, learner: Learner) -> str | None:
        """The samples are not kept: the Fisher information stays that of the earlier weights."""
        return importances_are_old(self.name) if self.importance else None

    def end_task(self, learner: Learner) -> None:
        """Add the task's Fisher diagonal at its final weights."""
        new = self.estimate(learner)
        here = [p.detach().clone() for p in learner.parameters.values()]
        if not self.importance:
            self.importance, self.centre = new, here
        elif self.online:
            self.importance = [self.decay * old + add for old, add in zip(self.importance, new, strict=True)]
            self.centre = here
        else:
            self.importance, self.centre = add_quadratic(self.importance, self.centre, new, here)

    def estimate(self, learner: Learner) -> list[Tensor]:
        """Diagonal of the Fisher information of the current task."""
        count = len(learner.current_task.train) if self.fisher_samples is None else self.fisher_samples
        piece = draw(learner, count)

        def log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
            if targets.is_floating_point():  # regression: unit-variance Gaussian around the outputs
                noise = torch.randn(outputs.shape, generator=learner.generator, dtype=outputs.dtype)
                goal = targets if self.fisher == "label" else outputs.detach() + noise.to(outputs.device)
                return -0.5 * (outputs - goal.view_as(outputs)).square().reshape(len(outputs), -1).sum(1)
            if targets.dim() > 1:  # sequences and images: a class at each position
                return _log_likelihood_of_positions(outputs, targets, self.fisher, learner.generator)
            log = outputs.log_softmax(-1)
            if self.fisher == "predicted":
                targets = log.argmax(-1)
            elif self.fisher == "sampled":
                chances = log.detach().exp().cpu()
                targets = torch.multinomial(chances, 1, generator=learner.generator)[:, 0].to(log.device)
            return log.gather(-1, targets[:, None])[:, 0]

        return mean_of_gradients(learner, piece, log_likelihood, torch.square, batch=self.fisher_batch)


def _log_likelihood_of_positions(
    outputs: Tensor, targets: Tensor, fisher: str, generator: torch.Generator
) -> Tensor:
    """The sum over the positions that have a target, each with the class that the Fisher uses there."""
    if fisher != "label":
        classes = outputs if outputs.shape[:-1] == targets.shape else outputs.movedim(1, -1)
        chances = classes.detach().softmax(-1).flatten(0, -2).cpu()
        drawn = (
            chances.argmax(-1)
            if fisher == "predicted"
            else torch.multinomial(chances, 1, generator=generator)
        )
        valid = valid_positions(targets, classes.shape[-1])
        targets = torch.where(valid, drawn.view(targets.shape).to(targets), IGNORED)
    found, valid = log_probabilities(outputs, targets)
    return torch.where(valid, found, 0.0).sum(1)
