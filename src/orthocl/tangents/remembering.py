"""What is remembered of a sample: one or a few numbers that the model computes from it.

Paper: section 3, the outputs whose gradients are the vectors v (OGD-GTL, OGD-AVE, OGD-ALL of Farajtabar et al.).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError, UnsupportedError, unknown_name
from orthocl.nets.inputs import Inputs, Targets, tensors
from orthocl.nets.outputs import Outputs, own_targets, read_outputs
from orthocl.nets.positions import log_probabilities, sampled_positions

Variant = Literal["gtl", "ave", "all", "tokens"]
# Positions of a sequence that variant "tokens" remembers, if nothing else is said.
TOKENS = 8


@dataclass(frozen=True)
class Remembering:
    """What is remembered of the samples of a batch.

    Args:
        variant: which of the outputs: "gtl" that of the label, "ave" their mean, "all" every one, "tokens" the
            log-probabilities of the targets at a few positions.
        outputs: which outputs (`orthocl.nets.outputs`); of several named ones each is remembered.
        tokens: positions per sample for variant "tokens".
    """

    variant: Variant = "gtl"
    outputs: Outputs = None
    tokens: int = TOKENS

    def __call__(self, model: nn.Module, inputs: Inputs, targets: Targets) -> Tensor:
        """The numbers to remember, (samples, k)."""
        found = read_outputs(model, inputs, targets, self.outputs)
        return self.of(found, targets)

    def of(self, found: Tensor | dict[str, Tensor], targets: Targets) -> Tensor:
        """The numbers to remember, of outputs."""
        if isinstance(found, Tensor):
            return remembered_outputs(found, own_targets(targets, ""), self.variant, self.tokens)
        parts = [
            remembered_outputs(part, own_targets(targets, name), self.variant, self.tokens)
            for name, part in found.items()
        ]
        return torch.cat(parts, 1)

    def checked(self, model: nn.Module, inputs: Inputs, targets: Targets) -> Tensor:
        """The numbers to remember, after checking the labels and the numbers."""
        found = read_outputs(model, inputs, targets, self.outputs)
        if self.variant == "gtl":
            for name, part in {"": found}.items() if isinstance(found, Tensor) else found.items():
                _check_labels(part, own_targets(targets, name))
        remembered = self.of(found, targets)
        if not bool(remembered.isfinite().all()):
            raise DataError(
                "outputs to remember are not finite: the network has diverged (use a smaller learning rate) or its "
                "inputs hold NaN or infinite values"
            )
        return remembered

    def stand_in(self, found: Tensor | dict[str, Tensor]) -> Targets:
        """Targets of the shape that these outputs need, where there are none: for plans, which only count."""
        if not isinstance(found, Tensor):
            return {name: self._stand_in(part) for name, part in found.items()}
        return self._stand_in(found)

    def _stand_in(self, found: Tensor) -> Tensor:
        shape = found.shape[:-1] if self.variant == "tokens" else found.shape[:1]
        return torch.zeros(shape, dtype=torch.long, device=found.device)


def fitting_variant(targets: Targets) -> Variant:
    """The variant that works for any targets: for methods that look at layers and need some outputs to look through."""
    first = tensors(targets)[0]
    if first.is_floating_point():
        return "all"
    return "gtl" if first.dim() == 1 else "tokens"


def remembered_outputs(outputs: Tensor, targets: Tensor, variant: Variant, tokens: int = TOKENS) -> Tensor:
    """The outputs to remember, (n, k): the label's, the mean, every one, or log-probabilities of target positions."""
    if variant not in get_args(Variant):
        raise unknown_name("variant", variant, get_args(Variant))
    if variant == "tokens":
        return _token_log_probabilities(outputs, targets, tokens)
    if outputs.dim() == 1:
        outputs = outputs[:, None]
    if outputs.dim() != 2:
        raise UnsupportedError(
            f"expected model outputs of shape (samples, outputs), got {tuple(outputs.shape)}: for sequences and images "
            "use variant='tokens' (log-probabilities of a few target positions), or say what to remember with "
            "attach(..., outputs=...); `orthocl.nets.selectors` has ready-made ones"
        )
    if variant == "all":
        return outputs
    if variant == "ave":
        return outputs.mean(1, keepdim=True)
    if outputs.shape[1] == 1:
        return outputs
    if targets.is_floating_point() or targets.dim() != 1:
        raise SettingsError(
            "variant 'gtl' remembers the logit of each sample's label and needs one integer label per "
            f"sample; for {outputs.shape[1]} regression outputs use 'all' or 'ave'"
        )
    return outputs.gather(1, targets[:, None].long())


def _token_log_probabilities(outputs: Tensor, targets: Tensor, tokens: int) -> Tensor:
    if tokens < 1:
        raise SettingsError(f"variant 'tokens' needs at least one position per sample, got tokens={tokens}")
    found, valid = log_probabilities(outputs, targets)
    chosen = sampled_positions(targets.reshape(len(targets), -1), valid, tokens)
    # A sample with fewer targets than that has rows of zeros, which protect nothing and cost no rank.
    return torch.where(valid.gather(1, chosen), found.gather(1, chosen), 0.0)


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    if outputs.dim() != 2 or outputs.shape[1] == 1 or targets.is_floating_point():
        return
    wrong = targets[(targets < 0) | (targets >= outputs.shape[1])]
    if len(wrong):
        raise DataError(
            f"label {int(wrong.flatten()[0])} has no logit: the model has {outputs.shape[1]} outputs, for labels 0 "
            f"to {outputs.shape[1] - 1}. Renumber the classes, or select the head that belongs to them"
        )
