"""Outputs that have a class at each of several positions: words of a sequence, pixels of an image."""

from __future__ import annotations

import torch
from torch import Tensor

from orthocl.errors import DataError, SettingsError

# Targets that are this are left out, as in torch's cross-entropy.
IGNORED = -100
_BITS = 2**32 - 1


def log_probabilities(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of the target at each position, (n, positions), and which positions have a target.

    Outputs are (n, positions..., classes), as those of language models, or (n, classes, positions...), as those of
    segmentation networks: the shape of the targets tells.
    """
    if targets.is_floating_point() or outputs.dim() < 2:
        raise SettingsError(
            "log-probabilities of targets need integer targets and a row of logits for each position, got targets of "
            f"type {targets.dtype} and outputs of shape {tuple(outputs.shape)}: use variant 'all' or outputs=..."
        )
    if outputs.shape[:-1] != targets.shape:
        if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
            raise SettingsError(
                f"expected one target for each position, outputs (samples, positions, classes), got outputs of shape "
                f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}{_virtual(outputs, targets)}"
            )
        outputs = outputs.movedim(1, -1)
    outputs, targets = outputs.reshape(len(outputs), -1, outputs.shape[-1]), targets.reshape(len(targets), -1)
    valid = valid_positions(targets, outputs.shape[-1])
    labels = torch.where(valid, targets, 0).long()
    found = outputs.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    return found, valid


def sampled_positions(targets: Tensor, valid: Tensor, count: int) -> Tensor:
    """Positions, (n, count), in a random order that depends on the sample alone: the same at every later time.

    Positions with a target come first. Padding at the end of a sequence does not change the choice.
    """
    place = torch.arange(1, targets.shape[1] + 1, device=targets.device)
    content = torch.where(valid, (targets.long() + 1) * place, 0).sum(1, keepdim=True)
    scores = (content * 7919 + place * 104729) & _BITS
    for _ in range(3):  # an integer hash: neighbouring positions and sentences have nothing in common
        scores = ((scores ^ (scores >> 16)) * 73244475) & _BITS
    order = torch.where(valid, scores, _BITS + place)
    return order.topk(min(count, targets.shape[1]), dim=1, largest=False).indices


def valid_positions(targets: Tensor, classes: int) -> Tensor:
    """Which positions have a target."""
    valid = targets != IGNORED
    if not torch._C._functorch.is_batchedtensor(targets):  # inside vmap the same targets come one by one
        odd = targets[valid & ((targets < 0) | (targets >= classes))]
        if odd.numel():
            raise DataError(
                f"target {int(odd[0])} has no logit: the model has {classes} outputs at each position, for targets 0 "
                f"to {classes - 1}. If your loss leaves it out (ignore_index={int(odd[0])}), mark such positions with "
                f"{IGNORED}: attach(..., batch=lambda batch: (x, y.masked_fill(y == {int(odd[0])}, {IGNORED})))"
            )
    return valid


def _virtual(outputs: Tensor, targets: Tensor) -> str:
    """What may have come before the words, if there are more positions than targets."""
    more = outputs.shape[1] - targets.shape[1] if outputs.dim() == 3 and targets.dim() == 2 else 0
    if more <= 0:
        return ""
    return (
        f": the model adds {more} positions, as prompt tuning does with its virtual tokens. Leave them out with "
        f"attach(..., outputs=lambda model, inputs: model(**inputs).logits[:, {more}:])"
    )
