"""The linearised network, for training: f(x; w_0) + J(x; w_0) (w - w_0), with w - w_0 as its parameters.

Paper: section 3.3, the linear approximation around initialisation in which all theorems live.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from orthocl.errors import SettingsError


class LinearisedModel(nn.Module):
    """First-order expansion of a network at its present weights; exact to train with any optimizer.

    Its parameters are the displacement w - w_0, one tensor per parameter of the network that requires
    gradients, all zero at first. Made by `linearise`.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        # Kept out of the module tree: the expansion point never learns.
        object.__setattr__(self, "_origin", copy.deepcopy(model).eval())
        learnt = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        if not learnt:
            raise SettingsError("nothing to linearise: no parameter of the model requires gradients")
        self.names = list(learnt)
        self.displacement = nn.ParameterList(torch.zeros_like(value) for value in learnt.values())

    @property
    def origin(self) -> nn.Module:
        """The network at the weights of the expansion."""
        model: nn.Module = self.__dict__["_origin"]
        return model

    def forward(self, inputs: Tensor) -> Tensor:
        """f(x; w_0) + J(x; w_0) (w - w_0)."""
        state = dict(self.origin.named_parameters())
        start = {name: state[name].detach() for name in self.names}
        change = dict(zip(self.names, self.displacement, strict=True))

        def outputs(parameters: dict[str, Tensor]) -> Tensor:
            value: Tensor = functional_call(self.origin, parameters, (inputs,))
            return value

        pair: tuple[Tensor, Tensor] = jvp(outputs, (start,), (change,))  # type: ignore[assignment]
        return pair[0] + pair[1]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LinearisedModel:
        """Moves and casts apply to the expansion point too."""
        self.origin._apply(fn, recurse)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def linearise(model: nn.Module) -> LinearisedModel:
    """The linearised network at the model's present weights, as a module to train.

    Paper: section 3.3.

    >>> from orthocl.nets import MLP
    >>> model = MLP((4,), hidden=(8,), outputs=1)
    >>> x = torch.randn(5, 4)
    >>> torch.equal(linearise(model)(x), model(x))
    True
    """
    return LinearisedModel(model)
