"""Ready-made selectors: what to remember of sequences, images and models with several outputs.

Each is, or makes, a function for `attach(..., outputs=...)`. `docs/what-to-remember.md` says which to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orthocl.errors import SettingsError, UnsupportedError
from orthocl.nets.inputs import Inputs, call_model, described
from orthocl.nets.outputs import Selector, plain_output
from orthocl.nets.positions import log_probabilities


def last_token(model: nn.Module, inputs: Inputs) -> Tensor:
    """Logits at the last word of each sequence, (samples, words): for models that answer with the next word.

    The last word is the last one that the "attention_mask" of dict inputs leaves; without a mask the last position.

    >>> model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    >>> last_token(model, torch.tensor([[0, 1, 2]])).shape
    torch.Size([1, 5])
    """
    outputs = plain_output(call_model(model, inputs))
    if outputs.dim() != 3:
        raise UnsupportedError(
            f"the last token needs outputs of shape (samples, positions, words), got {tuple(outputs.shape)}"
        )
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    if mask is None:
        return outputs[:, -1]
    places = torch.arange(1, outputs.shape[1] + 1, device=mask.device)
    last = ((mask != 0) * places).argmax(1)
    return outputs.gather(1, last[:, None, None].expand(-1, 1, outputs.shape[2]))[:, 0]


def sequence_log_likelihood(model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
    """The log-likelihood of the whole target sequence, (samples, 1): the sum over its words.

    >>> model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    >>> words = torch.tensor([[0, 1, 2], [2, 3, 4]])
    >>> sequence_log_likelihood(model, words, words).shape
    torch.Size([2, 1])
    """
    found, valid = log_probabilities(plain_output(call_model(model, inputs)), targets)
    return torch.where(valid, found, 0.0).sum(1, keepdim=True)


def sampled_pixels(count: int, seed: int = 0) -> Selector:
    """Every channel of the outputs at `count` pixels, (samples, channels x count): for dense regression.

    The pixels are drawn once for each size of the outputs and are the same for all samples. Use it with
    variant="all". Where each pixel has a class, variant="tokens" remembers the log-probabilities of the classes.

    Args:
        count: pixels; all of them if the outputs have fewer.
        seed: for the draw.

    >>> sampled_pixels(3)(nn.Conv2d(1, 2, 1), torch.zeros(4, 1, 8, 8)).shape
    torch.Size([4, 6])
    """
    if count < 1:
        raise SettingsError(f"expected at least one pixel to remember, got {count}")

    def pixels(model: nn.Module, inputs: Inputs) -> Tensor:
        outputs = plain_output(call_model(model, inputs))
        if outputs.dim() < 3:
            raise UnsupportedError(
                f"sampled pixels need outputs of shape (samples, channels, height, width), got {tuple(outputs.shape)}"
            )
        flat = outputs.flatten(2)
        order = torch.randperm(flat.shape[2], generator=torch.Generator().manual_seed(seed))
        return flat[:, :, order[:count].sort().values.to(flat.device)].flatten(1)

    return pixels


def entry(key: str | int) -> Callable[[nn.Module, Inputs], Tensor]:
    """One entry of what a model returns, flattened to (samples, outputs): by name, attribute or position in a tuple.

    For models with several outputs, `outputs={"boxes": entry("boxes"), "classes": entry("logits")}`.
    """

    def chosen(model: nn.Module, inputs: Inputs) -> Tensor:
        found: Any = call_model(model, inputs)
        if isinstance(key, int):
            part = found[key] if isinstance(found, tuple | list) and len(found) > key else None
        else:
            part = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
        if not isinstance(part, Tensor):
            raise UnsupportedError(f"the model returned no tensor {key!r}, but {described(found)}")
        return part.flatten(1) if part.dim() > 1 else part[:, None]

    return chosen
