"""The quadratic penalty that EWC, SI and MAS share: sum of importance * (w - centre)^2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def quadratic_penalty(
    parameters: Sequence[Tensor], importance: Sequence[Tensor], centre: Sequence[Tensor], strength: float
) -> Tensor:
    """Strength * sum importance * (w - centre)^2, with its gradient computed in the same pass.

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> penalty = quadratic_penalty([w], [torch.tensor([2.0])], [torch.tensor([1.0])], strength=0.5)
    >>> penalty.backward(); penalty.item(), w.grad.item()
    (4.0, 4.0)
    """
    value: Tensor = _Quadratic.apply(strength, len(parameters), *parameters, *importance, *centre)  # type: ignore[no-untyped-call]
    return value


def add_quadratic(
    importance: Sequence[Tensor], centre: Sequence[Tensor], new: Sequence[Tensor], at: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """One quadratic whose gradient is that of the sum of two: importances add, the centre is their mean.

    F (w-a)^2 + G (w-b)^2 = (F+G) (w - (F a + G b)/(F+G))^2 + const. Where both vanish the centre does not matter.
    """
    total = [f + g for f, g in zip(importance, new, strict=True)]
    mean = [
        torch.where(t > 0, a + (b - a) * (g / torch.where(t > 0, t, 1)), b)
        for t, g, a, b in zip(total, new, centre, at, strict=True)
    ]
    return total, mean


def importances_are_old(method: str) -> str:
    """What weights that were changed between two tasks mean to a penalty."""
    return (
        f"the importances that {method} keeps were measured at the earlier weights. Change weights inside the block, "
        "before it ends"
    )


class _Quadratic(torch.autograd.Function):
    """Value and gradient in one pass.

    Plain autograd would be shorter, but it adds the gradient up from two halves, which rounds differently in about one
    entry of six: recorded results of EWC, SI and MAS would no longer be reproduced to the bit.
    """

    @staticmethod
    def forward(ctx: Any, strength: float, count: int, *tensors: Tensor) -> Tensor:
        parameters, importance, centre = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        difference = torch._foreach_sub(parameters, centre)
        weighted = torch._foreach_mul(difference, importance)
        ctx.weighted, ctx.strength, ctx.count = weighted, strength, count
        ctx.save_for_backward(*tensors)
        parts = [torch.dot(d.reshape(-1), w.reshape(-1)) for d, w in zip(difference, weighted, strict=True)]
        return strength * torch.stack(parts).sum()

    @staticmethod
    def backward(ctx: Any, *output: Tensor) -> tuple[Tensor | None, ...]:
        scale = 2 * ctx.strength * output[0]
        weighted = ctx.weighted
        if torch.is_grad_enabled():  # a graph of the gradient is wanted, for derivatives of it
            values = [ctx.saved_tensors[start :: ctx.count] for start in range(ctx.count)]
            weighted = [(parameter - centre) * importance for parameter, importance, centre in values]
        gradient = (
            [part * scale for part in weighted]
            if scale.requires_grad
            else torch._foreach_mul(weighted, scale)
        )
        return (None, None, *gradient, *([None] * (2 * ctx.count)))
