"""Explicit per-sample gradients: for parameters that `layers` does not cover."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from orthocl.errors import warn
from orthocl.formatting import counted, size_text
from orthocl.nets.inputs import Inputs, Targets, each_tensor, sample_count, take
from orthocl.nets.modes import quiet_vmap
from orthocl.tangents.blocks.dense import WORKSPACE, Dense

Remember = Callable[[nn.Module, Inputs, Targets], Tensor]
# Samples of the plain training step that prices are given in.
TYPICAL_BATCH = 32
_WARNED: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def plain_steps(samples: int, outputs: int) -> float:
    """About how many plain training steps it takes to differentiate some outputs of each sample on its own.

    A backward pass takes twice the time of a forward pass, and each output needs one.

    >>> plain_steps(96, 1), plain_steps(96, 4)
    (3.0, 9.0)
    """
    return samples * (1 + 2 * outputs) / (3 * TYPICAL_BATCH)


def warn_of_price(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], samples: int, outputs: int
) -> None:
    """Say, once for each model, which parameters are differentiated sample by sample, and what that will take.

    Args:
        model: the network.
        parameters: those parameters, by name.
        samples: samples to be differentiated.
        outputs: remembered outputs of each of them.
    """
    known = _WARNED.setdefault(model, set())
    if parameters.keys() <= known:
        return
    known.update(parameters)
    names = list(parameters)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
    warn(
        f"gradients of {', '.join(map(repr, names[:3]))}{more} cannot be read off one backward pass (a weight that is "
        f"used without its layer, or not at all). Those of {counted(samples, 'sample')} are computed one by one and "
        f"stored whole, which takes {size_text(size * samples * outputs)} and about as long as "
        f"{plain_steps(samples, outputs):.2g} plain steps of {TYPICAL_BATCH} samples. If that is too much, leave these "
        "parameters unprotected",
    )


class _Remembered(nn.Module):
    """A model and what is remembered of it as one module, so that its weights can be replaced in a call."""

    def __init__(self, model: nn.Module, remember: Remember):
        super().__init__()
        self.model, self.remember = model, remember

    def forward(self, inputs: Inputs, targets: Targets) -> Tensor:
        return self.remember(self.model, inputs, targets)


def per_sample_gradients(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets,
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
    for start in range(0, sample_count(inputs), step):
        rows = slice(start, start + step)
        x, y = take(inputs, rows), take(targets, rows)
        try:
            pieces.append(_transformed(model, x, y, parameters, remember))
        except (RuntimeError, NotImplementedError):
            pieces.append(_one_by_one(model, x, y, parameters, remember))
    return [
        Dense((name,), (tuple(parameter.shape),), torch.cat([piece[place] for piece in pieces]))
        for place, (name, parameter) in enumerate(parameters.items())
    ]


def _transformed(
    model: nn.Module, x: Inputs, y: Targets, parameters: Mapping[str, nn.Parameter], remember: Remember
) -> list[Tensor]:
    values = {name: parameter.detach() for name, parameter in parameters.items()}
    whole = _Remembered(model, remember)

    def remembered(changed: dict[str, Tensor], sample: Inputs, target: Targets) -> Tensor:
        named = {f"model.{name}": value for name, value in changed.items()}
        found: Tensor = functional_call(whole, named, (_batch(sample), _batch(target)))
        return found[0]

    with quiet_vmap():
        jacobians = vmap(jacrev(remembered), in_dims=(None, 0, 0))(values, x, y)
    return [jacobians[name].detach().flatten(0, 1).flatten(1) for name in parameters]


def _one_by_one(
    model: nn.Module, x: Inputs, y: Targets, parameters: Mapping[str, nn.Parameter], remember: Remember
) -> list[Tensor]:
    leaves = list(parameters.values())
    rows: list[list[Tensor]] = []
    for number in range(sample_count(x)):
        one = slice(number, number + 1)
        for output in remember(model, take(x, one), take(y, one))[0]:
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


def _batch(sample: Inputs) -> Inputs:
    return each_tensor(sample, lambda part: part[None])
