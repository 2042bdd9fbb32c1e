"""Commuting: which optimizers' steps may be projected as gradients, because they are linear in them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.optim import Optimizer


def why_not_exact(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> str | None:
    """Why an optimizer's steps do not commute with projection, or None if they do.

    >>> layer = nn.Linear(2, 2)
    >>> why_not_exact(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), dict(layer.named_parameters()))
    >>> why_not_exact(torch.optim.Adam(layer.parameters()), dict(layer.named_parameters()))
    'Adam scales each weight by itself'
    """
    if type(optimizer) is not torch.optim.SGD:
        return f"{type(optimizer).__name__} scales each weight by itself"
    protected = {id(parameter) for parameter in parameters.values()}
    groups = [g for g in optimizer.param_groups if any(id(p) in protected for p in g["params"])]
    if any(group["weight_decay"] != 0 for group in groups):
        return "weight decay moves the weights inside the protected span"
    if any(group["maximize"] for group in groups):
        return "the optimizer maximises"
    keys = ("lr", "momentum", "nesterov", "dampening")
    if any(group[key] != groups[0][key] for group in groups for key in keys):
        return "protected parameters have different learning rates or momentum"
    if sum(id(p) in protected for g in groups for p in g["params"]) < len(protected):
        return "some protected parameters are not in the optimizer"
    return None
