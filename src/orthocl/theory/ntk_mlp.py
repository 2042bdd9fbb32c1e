"""Fully connected ReLU networks in the NTK parameterisation, and full-batch descent on any network.

Paper: section 3.3; the infinitely wide limit of `WideMLP` is `InfiniteWidthNTK`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from orthocl.checking import checked
from orthocl.errors import SettingsError, TrainingError
from orthocl.tangents import Subspace, collect
from orthocl.theory.recursion import Rule


class _Scale(nn.Module):
    """x -> (x * scale, bias): what a linear layer in the NTK parameterisation sees."""

    def __init__(self, scale: float, bias: float):
        super().__init__()
        self.scale, self.bias = scale, bias

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        return x if self.bias == 0 else torch.cat([x, x.new_full((len(x), 1), self.bias)], 1)


class WideMLP(nn.Sequential):
    """A ReLU network in the NTK parameterisation: standard normal weights, scaled in the forward pass.

    The bias of a layer is the weight of a constant input sqrt(bias_variance), so that every layer is a plain
    `nn.Linear` and has factored tangents. Weights are float64.

    Args:
        features: numbers per input.
        width: units per hidden layer.
        depth: hidden layers.
        outputs: outputs.
        weight_variance: s_w.
        bias_variance: s_b.
        seed: of the weights.

    >>> WideMLP(3, width=16, depth=2, outputs=2)(torch.zeros(5, 3, dtype=torch.float64)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        features: int,
        width: int,
        depth: int = 1,
        outputs: int = 1,
        weight_variance: float = 2.0,
        bias_variance: float = 0.0,
        seed: int = 0,
    ):
        if min(features, width, depth, outputs) < 1:
            raise SettingsError("expected at least one feature, unit, hidden layer and output")
        generator = torch.Generator().manual_seed(seed)
        bias = math.sqrt(bias_variance)
        layers: list[nn.Module] = [nn.Flatten()]
        fan = features
        for layer in range(depth + 1):
            linear = nn.Linear(
                fan + (bias > 0), outputs if layer == depth else width, bias=False, dtype=torch.float64
            )
            with torch.no_grad():
                linear.weight.normal_(generator=generator)
            layers += [_Scale(math.sqrt(weight_variance / fan), bias), linear]
            if layer < depth:
                layers.append(nn.ReLU())
            fan = width
        super().__init__(*layers)
        self.features = outputs


@checked(besides=("ridge",))
def descend(
    model: nn.Module,
    tasks: Sequence[tuple[Tensor, Tensor]],
    *,
    rule: Rule = "sgd",
    ridge: float = 0.0,
    steps: int = 1000,
    learning_rate: float | None = None,
    after_task: Callable[[int], None] | None = None,
) -> None:
    """Train a network on tasks in turn by full-batch (projected) gradient descent on the paper's loss.

    The loss is sum_i ||f(x_i) - y_i||^2 + ridge ||w - w_{t-1}||^2. OGD projects every gradient off the
    tangents of all outputs of all earlier samples, taken when their task ended.

    Paper: section 3, loss and update rule.

    Args:
        model: a network with outputs (n,) or (n, c); its weights are changed.
        tasks: (inputs, targets), targets shaped like the outputs.
        rule: "sgd" or "ogd".
        ridge: lam.
        steps: per task.
        learning_rate: by default 0.9 of the largest stable one at the start of each task.
        after_task: called with each task's number when it is learnt.

    Raises:
        TrainingError: when the loss is no longer finite.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = list(parameters.values())
    subspace = Subspace(parameters)
    model.eval()
    for number, (x, y) in enumerate(tasks, start=1):
        tangents = collect(model, x, _no_labels(x), parameters=parameters, variant="all")
        start = [weight.detach().clone() for weight in weights]
        largest = float(torch.linalg.eigvalsh(tangents.gram())[-1])
        rate = 0.9 / (largest + ridge) if learning_rate is None else learning_rate
        for _ in range(steps):
            value = (model(x).reshape(y.shape) - y).square().sum()
            if not bool(value.isfinite()):
                raise TrainingError(
                    f"the loss of task {number} is no longer finite: take a learning rate below {rate:.3g}"
                )
            gradient = torch.autograd.grad(value, weights)
            update = [
                g + 2 * ridge * (w.detach() - w0) for g, w, w0 in zip(gradient, weights, start, strict=True)
            ]
            if rule == "ogd" and subspace.rank:
                update = subspace.outside(update)
            with torch.no_grad():
                for weight, change in zip(weights, update, strict=True):
                    weight.sub_(rate * change)
        if rule == "ogd" and number < len(tasks):
            subspace.append(
                collect(model, x, _no_labels(x), parameters=parameters, variant="all"), owner=number
            )
        if after_task is not None:
            after_task(number)


def _no_labels(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.long)
