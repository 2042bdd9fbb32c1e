"""What methods keep for each weight, when the model grows between tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from orthocl.tangents.growing import padded


def grown_list(
    kept: Sequence[Tensor],
    parameters: Mapping[str, nn.Parameter],
    earlier: Mapping[str, tuple[int, ...]],
    axis: int = 0,
) -> list[Tensor]:
    """Tensors aligned with the earlier parameters, as tensors aligned with the present ones, zero where these are new.

    Args:
        kept: one tensor for each of `earlier`, in its order; or none at all.
        parameters: the protected parameters now.
        earlier: names and shapes of those before.
        axis: where the shape of the parameter begins in the shape of its tensor.
    """
    if not kept:
        return []
    old = dict(zip(earlier, kept, strict=True))
    front = kept[0].shape[:axis]
    return [
        padded(old[name], p.shape, axis) if name in old else p.detach().new_zeros(*front, *p.shape)
        for name, p in parameters.items()
    ]


def grown_centre(
    kept: Sequence[Tensor], parameters: Mapping[str, nn.Parameter], earlier: Mapping[str, tuple[int, ...]]
) -> list[Tensor]:
    """As `grown_list`, but with the present weights where these are new."""
    if not kept:
        return []
    old = dict(zip(earlier, kept, strict=True))
    found = []
    for name, parameter in parameters.items():
        centre = parameter.detach().clone()
        if name in old:
            centre[tuple(slice(0, size) for size in old[name].shape)] = old[name]
        found.append(centre)
    return found
