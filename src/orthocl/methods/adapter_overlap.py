"""Do adapters of different tasks share directions? Measured on the weights, whatever a training loss has printed.

O-LoRA and its relatives ask the down-projections A of the tasks to be orthogonal, A_1 A_2^T = 0, by a loss. A loss that
is summed over the wrong names is 0.0 for any weights; the cosines of the angles between the subspaces cannot be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

_DOWN = re.compile(r"^(?P<module>.*?)\.?(?P<kind>[A-Za-z]*lora[A-Za-z]*)_A(?P<rest>(\.[^.]+)*)$")


@dataclass(frozen=True)
class AdapterOverlap:
    """How much two adapters of the same weight overlap.

    Args:
        module: the adapted layer.
        first: name of one adapter.
        second: name of the other.
        shared: mean squared cosine of the angles between the subspaces of inputs they read: 0 orthogonal, 1 the same.
        largest: largest cosine of those angles.
        by_chance: what `shared` is for random subspaces of these sizes.
        updates: cosine of the angle between the updates B_1 A_1 and B_2 A_2.
        loss: sum of |A_1 A_2^T|, what O-LoRA's loss is meant to be.
    """

    module: str
    first: str
    second: str
    shared: float
    largest: float
    by_chance: float
    updates: float
    loss: float


@dataclass(frozen=True)
class _Adapter:
    name: str
    down: Tensor
    up: Tensor | None


def adapter_overlaps(
    after: Mapping[str, Tensor], before: Mapping[str, Tensor] | None = None
) -> list[AdapterOverlap]:
    """Every pair of adapters of the same layer in some weights, and each against what it was before.

    Args:
        after: weights with adapters named as by PEFT (lora_A, lora_B, with or without adapter names).
        before: earlier weights; an adapter that was trained already and has changed counts as two.
    """
    found: list[AdapterOverlap] = []
    new, old = _adapters(after), _adapters(before or {})
    for module, adapters in new.items():
        pairs = list(combinations(adapters, 2))
        earlier = {each.name: each for each in old.get(module, [])}
        for now in adapters:
            then = earlier.get(now.name)
            trained = then is not None and then.up is not None and bool(then.up.abs().max() > 0)
            if then is not None and trained and not torch.equal(then.down, now.down):
                named = _Adapter(f"{now.name} before", then.down, then.up)
                pairs.append((named, _Adapter(f"{now.name} after", now.down, now.up)))
        found += [_overlap(module, *pair) for pair in pairs if pair[0].down.shape[1] == pair[1].down.shape[1]]
    return found


def without_new_adapters(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights before, with the adapters that only `after` has added as adapters that do nothing: B = 0."""
    complete = dict(before)
    for name, value in after.items():
        match = _DOWN.match(name)
        up = _up(name)
        if match and name not in before and up in after:
            complete[name] = value
            complete.setdefault(up, torch.zeros_like(after[up]))
    return complete


def summary(overlaps: list[AdapterOverlap]) -> str:
    """One sentence about all pairs."""
    if not overlaps:
        return "There are no pairs of adapters to compare."
    mean = sum(each.shared for each in overlaps) / len(overlaps)
    chance = sum(each.by_chance for each in overlaps) / len(overlaps)
    worst = max(overlaps, key=lambda each: each.shared)
    loss = sum(each.loss for each in overlaps)
    return (
        f"Adapters of {len(overlaps)} pairs share {mean:.1%} of their input directions (random ones {chance:.1%}), "
        f"most in {worst.module} ({worst.first}, {worst.second}: {worst.shared:.1%}, largest cosine "
        f"{worst.largest:.3f}); the orthogonality loss sum |A1 A2^T| is {loss:.4g}."
    )


def _up(name: str) -> str:
    match = _DOWN.match(name)
    return "" if match is None else f"{name[: match.end('kind')]}_B{match['rest']}"


def _adapters(weights: Mapping[str, Tensor]) -> dict[str, list[_Adapter]]:
    found: dict[str, list[_Adapter]] = {}
    for name, value in weights.items():
        match = _DOWN.match(name)
        if match and value.dim() == 2:
            rest = match["rest"].removesuffix(".weight").lstrip(".")
            label = ".".join(part for part in (match["kind"], rest) if part)
            found.setdefault(match["module"], []).append(
                _Adapter(label, value.detach().double(), _double(weights.get(_up(name))))
            )
    return found


def _double(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().double()


def _overlap(module: str, first: _Adapter, second: _Adapter) -> AdapterOverlap:
    bases = [_row_space(each.down) for each in (first, second)]
    cosines = (
        torch.linalg.svdvals(bases[0].t() @ bases[1]) if all(b.shape[1] for b in bases) else torch.zeros(1)
    )
    small, large = sorted(basis.shape[1] for basis in bases)
    cross = first.down @ second.down.t()
    updates = 0.0
    if first.up is not None and second.up is not None:
        # <B1 A1, B2 A2> = trace(B1^T B2 (A2 A1^T)): no product of full size is needed.
        inner = float(((first.up.t() @ second.up) * cross).sum())
        sizes = [
            float(((e.up.t() @ e.up) * (e.down @ e.down.t())).sum())
            for e in (first, second)
            if e.up is not None
        ]
        updates = inner / max((sizes[0] * sizes[1]) ** 0.5, 1e-300)
    return AdapterOverlap(
        module,
        first.name,
        second.name,
        shared=float(cosines.square().sum()) / max(1, small),
        largest=min(1.0, float(cosines.max())),
        by_chance=large / first.down.shape[1],
        updates=updates,
        loss=float(cross.abs().sum()),
    )


def _row_space(down: Tensor) -> Tensor:
    """An orthonormal basis of the rows' span, (inputs, rank)."""
    _, values, vectors = torch.linalg.svd(down, full_matrices=False)
    kept: Tensor = vectors[values > 1e-10 * values.max().clamp(min=1e-300)]
    return kept.t()
