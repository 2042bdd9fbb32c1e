"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from torch import nn

from orthocl.errors import unknown_name
from orthocl.nets.bird_classifier import BirdClassifier
from orthocl.nets.heads import MultiHead
from orthocl.nets.lenet import LeNet
from orthocl.nets.mlp import MLP

NETS: dict[str, Callable[..., nn.Module]] = {"mlp": MLP, "lenet": LeNet, "bird-classifier": BirdClassifier}


def make_net(
    name: str,
    input_shape: Sequence[int],
    heads: Mapping[str, int],
    settings: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
) -> nn.Module:
    """A network for a stream: with its single output layer, or as the trunk of a `MultiHead` for several heads.

    Args:
        name: one of `NETS`.
        input_shape: shape of one sample.
        heads: head name -> outputs.
        settings: arguments of the network, such as {"hidden": [100, 100]}.
        seed: seed of the initial weights, which leaves torch's random state alone; None draws the weights from
            torch's generator, so that `torch.manual_seed` decides.

    >>> type(make_net("mlp", (4,), {"1": 2, "2": 2}, {"hidden": [8]})).__name__
    'MultiHead'
    """
    if name not in NETS:
        raise unknown_name("net", name, NETS)
    known = [key for key in signature(NETS[name]).parameters if key not in ("input_shape", "outputs")]
    for key in settings or {}:
        if key not in known:
            raise unknown_name(f"setting of net {name!r}", key, known)
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        if len(heads) == 1:
            return NETS[name](input_shape, outputs=next(iter(heads.values())), **(settings or {}))
        return MultiHead(NETS[name](input_shape, **(settings or {})), heads)
