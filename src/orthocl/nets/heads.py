"""Output heads: one trunk, one head per task (or one for all), chosen by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from orthocl.errors import SettingsError, unknown_name


class MultiHead(nn.Module):
    """A trunk with named linear heads; `forward` uses the selected one.

    The trunk is any module with a `features` attribute: the size of its output.

    >>> import torch
    >>> from orthocl.nets.mlp import MLP
    >>> model = MultiHead(MLP((4,), hidden=(8,)), {"cats": 2, "dogs": 3})
    >>> model.select("dogs")
    >>> model(torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(self, trunk: nn.Module, heads: Mapping[str, int]):
        super().__init__()
        features = getattr(trunk, "features", None)
        if not isinstance(features, int):
            raise SettingsError(
                f"{type(trunk).__name__} has no integer attribute `features` (the size of its output), "
                "which a multi-head network needs: set it in the trunk's __init__"
            )
        if not heads:
            raise SettingsError("a multi-head network needs at least one head: {name: outputs}")
        self.trunk = trunk
        # Head names may hold dots, which module names may not: the order of `names` is the key.
        self.names = list(heads)
        self.heads = nn.ModuleList(nn.Linear(features, outputs) for outputs in heads.values())
        self.selected = self.names[0]

    def add_head(self, head: str, outputs: int) -> nn.Linear:
        """Add a head, for a task that was not foreseen; give its parameters to the optimizer.

        >>> from orthocl.nets.mlp import MLP
        >>> model = MultiHead(MLP((4,), hidden=(8,)), {"cats": 2})
        >>> model.add_head("dogs", 3).out_features
        3
        """
        if head in self.names:
            raise SettingsError(f"there is a head {head!r} already: the heads are {', '.join(self.names)}")
        like = next(self.heads.parameters())
        new = nn.Linear(like.shape[1], outputs, device=like.device, dtype=like.dtype)
        self.names.append(head)
        self.heads.append(new)
        return new

    def select(self, head: str) -> None:
        """Use this head from now on."""
        if head not in self.names:
            raise unknown_name("head", head, self.names)
        self.selected = head

    def head_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of all heads with their full names: they are never projected."""
        return ((f"heads.{name}", parameter) for name, parameter in self.heads.named_parameters())

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of the selected head."""
        output: Tensor = self.heads[self.names.index(self.selected)](self.trunk(inputs))
        return output


def grown_linear(layer: nn.Linear, outputs: int) -> nn.Linear:
    """A layer with more outputs that begins with the weights of another: a head for more classes.

    Put it in the place of the old one between tasks, and give its parameters to the optimizer.

    >>> grown_linear(nn.Linear(4, 2), 5).weight.shape
    torch.Size([5, 4])
    """
    if outputs < layer.out_features:
        raise SettingsError(f"a layer with {layer.out_features} outputs cannot grow to {outputs}")
    bias = layer.bias is not None
    new = nn.Linear(
        layer.in_features, outputs, bias=bias, device=layer.weight.device, dtype=layer.weight.dtype
    )
    with torch.no_grad():
        new.weight[: layer.out_features] = layer.weight
        if bias:
            new.bias[: layer.out_features] = layer.bias
    return new


def find_heads(model: nn.Module) -> MultiHead | None:
    """The multi-head network that a model is, or wraps (as `torch.compile` and DataParallel do), or None."""
    return next((module for module in model.modules() if isinstance(module, MultiHead)), None)


@contextmanager
def use_head(model: nn.Module, head: str) -> Iterator[None]:
    """Select a head inside a `with` block; does nothing on a model that has no heads to select."""
    heads = find_heads(model)
    if heads is None:
        yield
        return
    before = heads.selected
    heads.select(head)
    try:
        yield
    finally:
        heads.select(before)
