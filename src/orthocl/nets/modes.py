"""Eval mode and full precision inside a `with` block, with the earlier modes restored."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
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


@contextmanager
def without_autocast() -> Iterator[None]:
    """No autocast inside a `with` block, not even where the model itself enters it, as accelerate makes it do.

    Gradients of single samples can only be compared with those of a batch in the precision of the weights.

    >>> with without_autocast(), torch.autocast("cpu", dtype=torch.bfloat16):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    entered: list[tuple[torch.autocast, bool]] = []
    enter = torch.autocast.__enter__

    def enter_disabled(context: torch.autocast) -> torch.autocast:
        entered.append((context, context._enabled))
        context._enabled = False
        enter(context)  # type: ignore[no-untyped-call]
        return context

    torch.autocast.__enter__ = enter_disabled  # type: ignore[method-assign]
    try:
        with ExitStack() as disabled:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    disabled.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]
        for context, enabled in reversed(entered):  # the same object may be entered again and again
            context._enabled = enabled


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """No word of torch on operations that `vmap` takes one sample at a time: nobody but torch can change that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
        yield


class _EvalModeHooks:
    """Hooks that run a module in eval mode, whatever its mode otherwise."""

    training = True

    def before(self, module: nn.Module, _: Any) -> None:
        self.training, module.training = module.training, False

    def after(self, module: nn.Module, *_: Any) -> None:
        module.training = self.training


def run_in_eval_mode(module: nn.Module) -> list[Callable[[], None]]:
    """Run a module in eval mode, whatever its mode otherwise; returns what ends it."""
    hooks = _EvalModeHooks()
    return [
        module.register_forward_pre_hook(hooks.before).remove,
        module.register_forward_hook(hooks.after, always_call=True).remove,
    ]
