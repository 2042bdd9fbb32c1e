"""A price list: what protecting a network costs by OGD, OGD+, compressed OGD and GPM, from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from orthocl.tangents import layers
from orthocl.tangents.attention import readable_attention
from orthocl.tangents.planner import plan, protected_parameters
from orthocl.tangents.recurrent import readable_recurrent
from orthocl.tangents.survey import estimated_core

ENERGIES = (1.0, 0.999, 0.99)
# The share of the inputs' energy that GPM's authors keep.
GPM_THRESHOLD = 0.97


@dataclass(frozen=True)
class Price:
    """What one way of protecting a network costs.

    Args:
        way: its name.
        nbytes: memory with `rows` tangents (GPM: with bases of the estimated size).
        madds: multiply-adds a step besides those of plain training.
        most: tangents that fit into the card's memory; None where tangents are not kept.
    """

    way: str
    nbytes: int
    madds: int
    most: int | None


def price_list(
    model: nn.Module,
    example_input: Tensor,
    *,
    rows: int,
    card: int,
    parameters: Mapping[str, nn.Parameter] | None = None,
    batch_size: int = 32,
) -> list[Price]:
    """Prices of a memory of `rows` tangents, and how many of them fit into a card's memory.

    Args:
        model: the network; it may be on torch's meta device.
        example_input: one input.
        rows: tangents in total.
        card: bytes that may be used.
        parameters: the protected parameters; by default all that are trained, except output heads.
        batch_size: samples per step.

    >>> from orthocl.nets import MLP
    >>> import torch
    >>> found = price_list(MLP((1, 32, 32), outputs=10), torch.zeros(1, 1, 32, 32), rows=1000, card=10**9)
    >>> [price.way for price in found]
    ['OGD, dense', 'OGD', 'OGD+', 'OGD, energy 0.999', 'OGD, energy 0.99', 'GPM']
    """
    protected = protected_parameters(model) if parameters is None else dict(parameters)
    sample = example_input[0].numel() * example_input.element_size()
    found: list[Price] = []
    for energy in ENERGIES:
        planned = plan(
            model,
            example_input,
            tasks=1,
            memory_per_task=rows,
            batch_size=batch_size,
            parameters=protected,
            budget=card,
            energy=energy,
        )
        cost, most = planned.costs["project"], planned.largest_memory()
        if energy == 1.0:
            dense = planned.costs["dense"]
            found.append(Price("OGD, dense", dense.nbytes, dense.madds, card * rows // max(1, dense.nbytes)))
            found.append(Price("OGD", cost.nbytes, cost.madds, most))
            # OGD+ keeps the samples too.
            with_samples = int(most * cost.nbytes / (cost.nbytes + sample * rows))
            found.append(Price("OGD+", cost.nbytes + sample * rows, cost.madds, with_samples))
        else:
            found.append(Price(f"OGD, energy {energy}", cost.nbytes, cost.madds, most))
    return [*found, _gpm(model, protected, rows)]


def _gpm(model: nn.Module, protected: Mapping[str, nn.Parameter], rows: int) -> Price:
    """Bases of the inputs of every layer, at their estimated sizes."""
    item = next(iter(protected.values())).element_size()
    owners = {id(weight): module for module in model.modules() for weight in module.parameters(False)}
    numbers = madds = 0
    for parameter in protected.values():
        owner = owners[id(parameter)]
        multiplies = layers.supported(owner) or readable_attention(owner) or readable_recurrent(owner)
        if multiplies and parameter.dim() > 1 and not isinstance(owner, nn.Embedding):
            outputs, inputs = parameter.shape[0], prod(parameter.shape[1:])
            k, _ = estimated_core(inputs, outputs, rows * 10**6, GPM_THRESHOLD)
            numbers += inputs * k
            madds += 2 * inputs * outputs * k
    return Price("GPM", numbers * item, madds, None)
