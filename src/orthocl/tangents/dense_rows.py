"""Explicit per-sample gradients: for parameters that `layers` does not cover."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from orthocl.tangents.blocks.dense import WORKSPACE, Dense

Remember = Callable[[Tensor, Tensor], Tensor]


def per_sample_gradients(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    parameters: Mapping[str, nn.Parameter],
    remember: Remember,
) -> list[Dense]:
    """One dense block per parameter, rows sample-major.

    `torch.func` differentiates a few samples at a time; a model that it cannot transform (data-dependent
    control flow, in-place tricks) is differentiated one sample at a time instead.
    """
    numbers = sum(parameter.numel() for parameter in parameters.values())
    step = max(1, WORKSPACE // numbers)
    pieces: list[list[Tensor]] = []
    for start in range(0, len(inputs), step):
        x, y = inputs[start : start + step], targets[start : start + step]
        try:
            pieces.append(_transformed(model, x, y, parameters, remember))
        except (RuntimeError, NotImplementedError):
            pieces.append(_one_by_one(model, x, y, parameters, remember))
    return [
        Dense((name,), (tuple(parameter.shape),), torch.cat([piece[place] for piece in pieces]))
        for place, (name, parameter) in enumerate(parameters.items())
    ]


def _transformed(
    model: nn.Module, x: Tensor, y: Tensor, parameters: Mapping[str, nn.Parameter], remember: Remember
) -> list[Tensor]:
    values = {name: parameter.detach() for name, parameter in parameters.items()}

    def remembered(changed: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, changed, (sample[None],))
        return remember(outputs, target[None])[0]

    jacobians = vmap(jacrev(remembered), in_dims=(None, 0, 0))(values, x, y)
    return [jacobians[name].detach().flatten(0, 1).flatten(1) for name in parameters]


def _one_by_one(
    model: nn.Module, x: Tensor, y: Tensor, parameters: Mapping[str, nn.Parameter], remember: Remember
) -> list[Tensor]:
    leaves = list(parameters.values())
    rows: list[list[Tensor]] = []
    for sample, target in zip(x, y, strict=True):
        for output in remember(model(sample[None]), target[None])[0]:
            found = torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
            rows.append(
                [
                    (
                        torch.zeros_like(leaf)
                        if part is None
                        else part.to_dense()
                        if part.is_sparse
                        else part
                    ).flatten()
                    for leaf, part in zip(leaves, found, strict=True)
                ]
            )
    return [torch.stack(column) for column in zip(*rows, strict=True)]
