"""The closed form compared with trained networks as they grow wider.

Paper: Theorem 1 (`thm:conv`) is about the linearised network; this measures how far real ones are from it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from orthocl.checking import checked
from orthocl.theory.empirical import EmpiricalNTK
from orthocl.theory.infinite_width import InfiniteWidthNTK
from orthocl.theory.ntk_mlp import WideMLP, descend
from orthocl.theory.points import Points
from orthocl.theory.recursion import Rule
from orthocl.theory.solve import solve_stream


@dataclass(frozen=True)
class Overlay:
    """A trained network and its closed form, at one width.

    Args:
        width: units per hidden layer.
        trained: outputs at the probe points after each task, from the trained network, (T, n).
        predicted: the same from the closed form with the network's own kernel at initialisation.
        infinite: the same with the infinitely wide kernel and the network's f_0.
        kernel_error: relative Frobenius distance of the network's kernel to the infinitely wide one.
    """

    width: int
    trained: Tensor
    predicted: Tensor
    infinite: Tensor
    kernel_error: float

    @property
    def error(self) -> float:
        """Root mean squared difference between the trained network and its own closed form."""
        return float((self.trained - self.predicted).square().mean().sqrt())

    @property
    def infinite_error(self) -> float:
        """Root mean squared difference between the trained network and the infinitely wide closed form."""
        return float((self.trained - self.infinite).square().mean().sqrt())


@checked(besides=("ridge", "bias_variance"))
def overlay(
    tasks: Sequence[tuple[Tensor, Tensor]],
    probes: Tensor,
    *,
    widths: Sequence[int] = (64, 256, 1024),
    depth: int = 1,
    rule: Rule = "ogd",
    ridge: float = 0.1,
    steps: int = 1000,
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Overlay]:
    """Train networks of growing width by full-batch descent and compare them with the closed form.

    Args:
        tasks: (inputs, scalar targets).
        probes: where outputs are compared.
        widths: units per hidden layer.
        depth: hidden layers.
        rule: "sgd" or "ogd".
        ridge: lam.
        steps: of descent per task.
        weight_variance: s_w.
        bias_variance: s_b.
        seed: of the weights.
        progress: called with (width, task) when a task is learnt.
    """
    tasks = [(x.double(), y.double()) for x, y in tasks]
    probes = probes.double()
    features = probes[0].numel()
    limit = InfiniteWidthNTK(depth, weight_variance, bias_variance)
    found = []
    for width in widths:
        model = WideMLP(features, width, depth, 1, weight_variance, bias_variance, seed)
        start = copy.deepcopy(model)
        kernel = EmpiricalNTK(model, "scalar")
        own = solve_stream(kernel, tasks, rule=rule, ridge=ridge)
        wide = solve_stream(limit, tasks, rule=rule, ridge=ridge, initial=partial(_initial, start))
        trained: list[Tensor] = []

        def record(
            task: int, model: WideMLP = model, width: int = width, into: list[Tensor] = trained
        ) -> None:
            into.append(_outputs(model, probes))
            if progress is not None:
                progress(width, task)

        descend(model, tasks, rule=rule, ridge=ridge, steps=steps, after_task=record)
        matrix, limiting = kernel.gram(tasks[0][0]), limit.gram(tasks[0][0])
        found.append(
            Overlay(
                width,
                torch.stack(trained),
                torch.stack(own.trajectory(probes)[1:]),
                torch.stack(wide.trajectory(probes)[1:]),
                float((matrix - limiting).norm() / limiting.norm()),
            )
        )
    return found


def _initial(model: WideMLP, points: Points) -> Tensor:
    return _outputs(model, points.row_inputs())


def _outputs(model: WideMLP, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        values: Tensor = model(inputs)
    return values.flatten()
