"""Outputs: which numbers of what a model returns are meant, whatever it returns.

By default the tensor itself, `.logits`, the entry "logits" of a dict, or the only tensor of a tuple. A selector says
otherwise: (model, inputs) -> tensor, or (model, inputs, targets) -> tensor. A dict of selectors names several outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from orthocl.errors import OrthoclError, SettingsError, UnsupportedError
from orthocl.nets.inputs import Inputs, Targets, call_model, described, take, tensors
from orthocl.nets.modes import evaluating, without_autocast

Selector = Callable[..., Tensor]
Outputs = Selector | Mapping[str, Selector] | None


def read_outputs(
    model: nn.Module, inputs: Inputs, targets: Targets | None = None, outputs: Outputs = None
) -> Tensor | dict[str, Tensor]:
    """The outputs that are meant, for a batch: a tensor, or one for each name.

    >>> import torch
    >>> read_outputs(nn.Linear(2, 3), torch.zeros(4, 2)).shape
    torch.Size([4, 3])
    >>> squares = {"square": lambda model, x: model(x).square()}
    >>> {name: tuple(y.shape) for name, y in read_outputs(nn.Linear(2, 3), torch.zeros(4, 2), None, squares).items()}
    {'square': (4, 3)}
    """
    if outputs is None:
        return plain_output(call_model(model, inputs))
    if isinstance(outputs, Mapping):
        return {
            name: _selected(selector, model, inputs, _own(targets, name), f" {name!r}")
            for name, selector in outputs.items()
        }
    return _selected(outputs, model, inputs, targets, "")


def plain_output(found: object) -> Tensor:
    """The tensor that is meant by what a model returned, if nothing else is said."""
    if isinstance(found, Tensor):
        return found
    logits = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(found, tuple | list) and found:
        first, *others = found
        if isinstance(first, Tensor) and not any(isinstance(one, Tensor) for one in others):
            return first
    raise UnsupportedError(
        "expected the model to return a tensor (samples, outputs), something with `.logits`, a dict with 'logits' or a "
        f"tuple with one tensor, its first entry, got {described(found)}: say what to remember with "
        "attach(..., outputs=lambda model, inputs: ...), a tensor (samples, outputs)"
    )


def check_outputs(outputs: object) -> None:
    """Reject what is not a selector or a dict of selectors."""
    if outputs is None or (callable(outputs) and not isinstance(outputs, nn.Module)):
        return
    if isinstance(outputs, Mapping) and outputs and all(callable(one) for one in outputs.values()):
        return
    raise SettingsError(
        "expected outputs to be a function (model, inputs) -> tensor, or a dict of them by name, got "
        f"{described(dict(outputs) if isinstance(outputs, Mapping) else outputs)}"
    )


def own_targets(targets: Targets, name: str) -> Tensor:
    """The targets of one named output: its own where they are named too, else those of all."""
    found = _own(targets, name)
    if not isinstance(found, Tensor):
        raise SettingsError(
            f"there are no targets for the output {name!r}: targets are named {', '.join(map(repr, targets))}"
        )
    return found


def _own(targets: Targets | None, name: str) -> Targets | None:
    return targets.get(name) if isinstance(targets, dict) else targets


def _selected(
    selector: Selector, model: nn.Module, inputs: Inputs, targets: Targets | None, name: str
) -> Tensor:
    found = selector(model, inputs, targets) if _takes_targets(selector) else selector(model, inputs)
    if not isinstance(found, Tensor):
        raise UnsupportedError(
            f"expected the selector{name} given as outputs= to return a tensor (samples, outputs), got "
            f"{described(found)}"
        )
    return found


def _takes_targets(selector: Selector) -> bool:
    try:
        parameters = inspect.signature(selector).parameters.values()
    except (TypeError, ValueError):  # a function written in C has no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]
    return len(required) >= 3


@torch.no_grad()
def takes(model: nn.Module, inputs: Inputs, outputs: Outputs = None) -> bool:
    """Whether a model can be called with inputs of these types: layers often refuse another precision than their own.

    >>> takes(nn.Linear(2, 1), torch.zeros(3, 2)), takes(nn.Linear(2, 1), torch.zeros(3, 2).double())
    (True, False)
    """
    with evaluating(model), without_autocast():
        try:
            read_outputs(model, take(inputs, slice(0, 1)), None, outputs)
        except RuntimeError:
            return False
        except (TypeError, ValueError, AttributeError, LookupError, OrthoclError):
            return True  # a selector that needs targets, which comes after the model
    return True


@torch.no_grad()
def check_repeatable(
    model: nn.Module, inputs: Inputs, targets: Targets | None = None, outputs: Outputs = None
) -> None:
    """Reject outputs that differ between two evaluations of one batch in eval mode: they have no one gradient."""
    with evaluating(model), without_autocast():
        twice = [tensors(read_outputs(model, inputs, targets, outputs)) for _ in range(2)]
    for first, second in zip(*twice, strict=True):
        # Sums on a GPU may be taken in another order each time.
        rounding = torch.finfo(first.dtype).eps ** 0.5 * float(torch.linalg.vector_norm(first.nan_to_num()))
        if float(torch.linalg.vector_norm((second - first).nan_to_num())) > rounding:
            raise UnsupportedError(
                "two evaluations of one batch gave different outputs, although the model was in eval mode: what is "
                "random cannot be protected. Name an output that is not, with attach(..., outputs=lambda model, "
                "inputs: ...), such as the mean that the model draws from"
            )
