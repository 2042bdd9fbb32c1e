"""Eval mode inside a `with` block, with the earlier modes restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside a `with` block; afterwards every module is in its earlier mode.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     [module.training for module in model]
    [False, False]
    >>> [module.training for module in model]
    [True, False]
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
