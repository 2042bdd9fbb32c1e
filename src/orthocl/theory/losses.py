"""Bounded Lipschitz losses for the bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orthocl.checking import check_value, checked
from orthocl.errors import SettingsError

MARGINS = tuple(2.0**-power for power in range(8))
"""Margins among which loss="ramp" chooses; the bound pays for the choice."""


@dataclass(frozen=True)
class Loss:
    """A bounded Lipschitz loss.

    Args:
        name: what tables call it.
        function: (outputs (n, c), targets (n, c)) -> (n,) values in [0, bound].
        bound: c.
        lipschitz: rho, in the Euclidean norm of the outputs.
        below_squared: whether the loss never exceeds ||u - y||^2: the closed-form empirical term needs it.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    bound: float
    lipschitz: float
    below_squared: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SettingsError(
                f"a loss needs a function (outputs, targets) -> values, got {self.function!r}"
            )
        for name, value in (("bound", self.bound), ("lipschitz", self.lipschitz)):
            check_value(f"{name} of the loss {self.name!r}", value, float, minimum=1e-100)


CLIPPED_SQUARE = Loss(
    "clipped-square", lambda u, y: (u - y).square().sum(1).clamp(max=1), 1.0, 2.0, below_squared=True
)
"""min(1, ||u - y||^2): at least the sign's 0-1 error for y = +-1, half the argmax error for one-hot y."""

CLIPPED_ABSOLUTE = Loss("clipped-absolute", lambda u, y: (u - y).norm(dim=1).clamp(max=1), 1.0, 1.0)
"""min(1, ||u - y||)."""


@checked(besides=("margin",))
def ramp(margin: float, outputs: int = 1) -> Loss:
    """The ramp loss min(1, max(0, 1 - m / margin)): at least the 0-1 error, of Lipschitz constant 1 / margin.

    m is y u for one output with targets +-1. For several outputs with one-hot targets it is the right output minus
    the largest of the others, and the Lipschitz constant is sqrt(2) / margin.

    >>> ramp(0.5).function(torch.tensor([[1.0], [0.25], [-2.0]]), torch.ones(3, 1)).tolist()
    [0.0, 0.5, 1.0]
    """
    if not isinstance(margin, int | float) or not (margin > 0 and math.isfinite(margin)):
        raise SettingsError(f"expected a margin above zero, got {margin}")

    def function(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape[1] == 1:
            clear = outputs[:, 0] * targets[:, 0].sign()
        else:
            right = targets.argmax(1, keepdim=True)
            others = outputs.scatter(1, right, -torch.inf).amax(1)
            clear = outputs.gather(1, right)[:, 0] - others
        return (1 - clear / margin).clamp(0, 1)

    steepness = (math.sqrt(2) if outputs > 1 else 1.0) / margin
    return Loss(f"ramp {margin:g}", function, 1.0, steepness)


LOSSES = {loss.name: loss for loss in (CLIPPED_SQUARE, CLIPPED_ABSOLUTE)}
