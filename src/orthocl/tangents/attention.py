"""Reading nn.MultiheadAttention, which uses its weights without calling any layer.

While its projections are watched, its forward pass is written out with the same weights. The result is compared with
its own, call by call; where they differ its own is used, nothing is recorded, and the check of all rows sends its
parameters to the per-sample fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

IN_PROJECTION = ("in_proj_weight", "in_proj_bias")
AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True)
class Use:
    """One use of a layer: samples x (n, ...), outputs z, and which of the weight's rows made them.

    Args:
        x: inputs.
        z: outputs, part of the graph, or their shape and type alone.
        start: the weight's first row that was used.
        rows: all rows of the weight, or None if all were used.
        returned: what the layer returned to its caller.
        parts: names of the weight and bias that were used, of a module that uses several.
        edge: where the outputs are in the graph, if `z` is not.
    """

    x: Tensor
    z: Tensor
    start: int = 0
    rows: int | None = None
    returned: Tensor | None = None
    parts: tuple[str, ...] = ()
    edge: GradientEdge | None = None

    @property
    def place(self) -> GradientEdge:
        """Where the outputs are in the graph."""
        return get_gradient_edge(self.z) if self.edge is None else self.edge

    def padded(self, d: Tensor) -> Tensor:
        """Derivatives with respect to all of the weight's outputs: zero for those that were not used."""
        if self.rows is None:
            return d
        return functional.pad(d, (self.start, self.rows - self.start - d.shape[-1]))


def readable_attention(module: nn.Module) -> bool:
    """Whether an attention's packed projections can be watched."""
    return (
        type(module) is nn.MultiheadAttention
        and module.in_proj_weight is not None
        and module.bias_k is None
        and not module.add_zero_attn
    )


def watch_projections(
    module: nn.MultiheadAttention, note: Callable[[Use], None], *, compared: bool = True
) -> Callable[[], None]:
    """Report every use of the packed input projection to `note`; returns a function that stops it.

    Args:
        module: the attention.
        note: told which inputs met which rows of the weight.
        compared: whether the result is compared with the module's own.
    """
    own = module.forward

    def forward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **settings: Any) -> Any:
        uses: list[Use] = []
        if query.dim() != 3 or args:
            return own(query, key, value, *args, **settings)
        found = _written_out(module, query, key, value, uses, **settings)
        if compared:
            with torch.no_grad():
                expected = own(query, key, value, **settings)
            if not same(found[0], expected[0]):
                return own(query, key, value, **settings)
        for use in uses:
            note(use)
        return found

    module.__dict__["forward"] = forward

    def end() -> None:
        del module.__dict__["forward"]

    return end


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether two results are equal up to the rounding of their type."""
    if found.shape != expected.shape or found.is_meta:
        return found.shape == expected.shape
    tolerance = AGREEMENT.get(found.dtype, 1e-2)
    difference = (found.detach() - expected).norm()
    return bool(difference <= tolerance * expected.norm() + 1e-30)


def _written_out(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    uses: list[Use],
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The forward pass by its definition, without dropout (eval mode)."""
    same, width = query is key and key is value, module.embed_dim
    inputs = [part if module.batch_first else part.transpose(0, 1) for part in (query, key, value)]
    bias = module.in_proj_bias
    if same:
        z = functional.linear(inputs[0], module.in_proj_weight, bias)
        uses.append(Use(inputs[0], z, parts=IN_PROJECTION))
        q, k, v = z.chunk(3, -1)
    else:
        projected = []
        for place, x in enumerate(inputs):
            rows = slice(place * width, (place + 1) * width)
            z = functional.linear(x, module.in_proj_weight[rows], None if bias is None else bias[rows])
            uses.append(Use(x, z, place * width, 3 * width, parts=IN_PROJECTION))
            projected.append(z)
        q, k, v = projected
    samples, length, _ = q.shape
    heads = (part.unflatten(2, (module.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
    q, k, v = heads
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    for mask in (_mask(attn_mask, scores, module.num_heads), _padding(key_padding_mask, scores)):
        scores = scores if mask is None else scores + mask
    weights = torch.softmax(scores, -1)
    mixed = (weights @ v).transpose(1, 2).reshape(samples, length, width)
    output = module.out_proj(mixed)
    if not module.batch_first:
        output = output.transpose(0, 1)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def _mask(mask: Tensor | None, scores: Tensor, heads: int) -> Tensor | None:
    if mask is None:
        return None
    found = _additive(mask, scores)
    return found if found.dim() == 2 else found.unflatten(0, (-1, heads))


def _padding(mask: Tensor | None, scores: Tensor) -> Tensor | None:
    return None if mask is None else _additive(mask, scores)[:, None, None]


def _additive(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, float("-inf"))
