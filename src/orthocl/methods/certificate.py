"""The retention certificate: what the latest fine-tuning changed on samples of earlier tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from orthocl.formatting import counted, size_text
from orthocl.methods.adapter_overlap import AdapterOverlap
from orthocl.methods.over_time import OverTime
from orthocl.nets.outputs import Outputs
from orthocl.tangents.retention import (
    Change,
    Comparison,
    Path,
    Probe,
    Read,
    Weights,
    compare,
    every_output,
)

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Retention:
    """What happened to the samples of one probe.

    Args:
        name: of the probe.
        remembered: whether the method has used these samples; `lost_at_most` is then empty.
        samples: their number.
        change: of all outputs.
        protected: of the outputs that the method remembers, where it remembers some.
        worst: largest change of one sample's outputs, relative to the typical size of outputs.
        accuracy_before: share of samples classified correctly; None without labels.
        accuracy_after: likewise.
        flipped: samples whose predicted class changed; None for outputs that are no classes.
        lost: samples that were classified correctly and no longer are.
        lost_at_most: upper limit, at the stated confidence, on the share of such samples among all samples of the kind.
    """

    name: str
    remembered: bool
    samples: int
    change: Change
    protected: Change | None
    worst: float
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    flipped: int | None = None
    lost: int | None = None
    lost_at_most: float | None = None


@dataclass(frozen=True)
class Certificate:
    """What a change of weights did to earlier tasks: `print` it, or take `to_dict()` or `to_json()`.

    Proven for the samples of each probe: change <= bound (see `orthocl.tangents.retention`). Proven for all samples of
    the kind, if the probe was drawn independently of the training: the share lost is at most `lost_at_most`, except
    with probability 1 - confidence, for each probe on its own. Everything else is measured.

    Args:
        method: name of the method, or what made the change.
        probes: one entry per set of samples.
        moved: length of the change of weights, relative to the weights that moved.
        leak: share of the change of the protected weights that lies in the protected space; None if there is none.
        drift: stored tangents against current ones: cosine, relative norm, share outside; empty if there are none.
        stored: bytes that the method keeps.
        unprotected: parameters that moved and that the method does not protect.
        confidence: of `lost_at_most`.
        adapters: how much pairs of low-rank adapters overlap.
        notes: what the reader must know besides, such as overlapping adapters.
        over_time: accuracy on each task after each fit, where earlier weights were kept.
    """

    method: str
    probes: tuple[Retention, ...]
    moved: float
    leak: float | None = None
    drift: Mapping[str, float] = field(default_factory=dict)
    stored: int = 0
    unprotected: tuple[str, ...] = ()
    confidence: float = CONFIDENCE
    adapters: tuple[AdapterOverlap, ...] = ()
    notes: tuple[str, ...] = ()
    over_time: OverTime | None = None

    @property
    def sentence(self) -> str:
        """The result in one sentence, for readers who want no more."""
        labelled = [each for each in self.probes if each.lost is not None]
        named = [each for each in labelled if each.lost_at_most is not None]
        if named:
            worst = max(named, key=lambda each: each.lost_at_most or 0.0)
            lost, samples = sum(each.lost or 0 for each in named), sum(each.samples for each in named)
            return (
                f"Of {counted(samples, 'test sample')} of earlier tasks {_lost(lost)}; with "
                f"{self.confidence:.0%} confidence, at most {worst.lost_at_most or 0.0:.1%} of "
                f"all such samples are lost on the worst task ({worst.name})."
            )
        if labelled:
            lost, samples = sum(each.lost or 0 for each in labelled), sum(each.samples for each in labelled)
            return (
                f"Of {counted(samples, 'remembered sample')} of earlier tasks {_lost(lost)}; name independent test "
                "samples to learn how many others are."
            )
        if not self.probes:
            return "There are no samples of earlier tasks to compare."
        worst_change = max(self.probes, key=lambda each: each.change.measured)
        return f"Outputs for earlier tasks changed by at most {worst_change.change.measured:.1%} ({worst_change.name})."

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "sentence": self.sentence}

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        lines = [f"Retention certificate ({self.method})", self.sentence, ""]
        lines += [_row(each) for each in self.probes]
        lines += ["", f"weights moved by {self.moved:.2%}; the method stores {size_text(self.stored)}"]
        if self.leak is not None:
            lines.append(f"share of the change inside the protected space (leak): {self.leak:.1e}")
        if self.drift:
            found = ", ".join(f"{name} {value:.3f}" for name, value in self.drift.items())
            lines.append(f"stored tangents against current ones: {found}")
        if self.unprotected:
            first = ", ".join(self.unprotected[:3])
            lines.append(f"{counted(len(self.unprotected), 'unprotected parameter')} moved, such as {first}")
        table = [] if self.over_time is None else ["", *self.over_time.lines(self.confidence)]
        return "\n".join([*lines, *self.notes, *table])

    __repr__ = __str__


def _row(one: Retention) -> str:
    change = one.protected or one.change
    what = "protected outputs" if one.protected else "outputs"
    text = (
        f"{one.name} ({counted(one.samples, 'remembered sample' if one.remembered else 'sample')}): {what} changed by "
        f"{_share(change.measured)} (first order {_share(change.first_order)}, curvature {_share(change.curvature)}, "
        f"bound {_share(change.bound)})"
    )
    if one.protected:
        text += f", all outputs by {_share(one.change.measured)}"
    if one.accuracy_before is not None and one.accuracy_after is not None:
        text += f"; accuracy {one.accuracy_before:.1%} -> {one.accuracy_after:.1%}, {one.lost} lost"
    if one.lost_at_most is not None:
        text += f", at most {one.lost_at_most:.1%} of all"
    return text


def _lost(count: int) -> str:
    verb = ("was", "is") if count == 1 else ("were", "are")
    return f"{count:,} {verb[0]} classified correctly by the weights before and {verb[1]} not by those after"


def _share(value: float) -> str:
    return "below 0.01%" if 0 < value < 1e-4 else f"{value:.2%}"


def certify(
    model: nn.Module,
    before: Weights,
    after: Weights,
    probes: Sequence[Probe],
    *,
    method: str = "fine-tuning",
    protected: Read | None = None,
    outputs: Outputs = None,
    confidence: float = CONFIDENCE,
) -> Certificate:
    """Compare two states of a model on samples: the part of the certificate that needs no method.

    Args:
        model: the model; its own weights stay as they are.
        before: its state dict before, or the part of it that may have moved.
        after: the same entries after.
        probes: the samples.
        method: what made the change, for the report.
        protected: (model, inputs, targets) -> what the method remembers, for probes of remembered samples.
        outputs: which outputs are compared, as for `attach`.
        confidence: of the limits on what was lost.
    """
    path = Path.between(model, before, after)
    size = sum(float(part.double().square().sum()) for part in path.start.values()) ** 0.5
    rows = []
    for probe in probes:
        kept = None
        if protected is not None and probe.remembered and probe.targets is not None:
            kept = compare(model, path, probe, protected).change()
        found = compare(model, path, probe, partial(every_output, outputs=outputs))
        rows.append(_retention(found, probe, kept, confidence))
    return Certificate(method, tuple(rows), moved=path.length / max(size, 1e-300), confidence=confidence)


def _retention(found: Comparison, probe: Probe, protected: Change | None, confidence: float) -> Retention:
    rows = (found.after - found.before).norm(dim=1)
    typical = max(float(found.before.square().sum(1).mean().sqrt()), 1e-300)
    worst = float(rows.max()) / typical
    plain = Retention(probe.name, probe.remembered, len(probe), found.change(), protected, worst)
    labels = probe.targets
    if not are_classes(found.before, labels) or not isinstance(labels, Tensor):
        return plain
    then, now, right = found.before.argmax(1), found.after.argmax(1), labels.to(found.before.device)
    lost = int(((then == right) & (now != right)).sum())
    return replace(
        plain,
        accuracy_before=float((then == right).double().mean()),
        accuracy_after=float((now == right).double().mean()),
        flipped=int((then != now).sum()),
        lost=lost,
        lost_at_most=None if probe.remembered else upper_limit(lost, len(right), confidence),
    )


def are_classes(outputs: Tensor, labels: object) -> bool:
    """Whether the outputs are one logit for each class, and the labels classes."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() != 1:
        return False
    return outputs.shape[1] > int(labels.max()) and outputs.shape[1] > 1


def upper_limit(count: int, samples: int, confidence: float = CONFIDENCE) -> float:
    """The exact binomial upper limit (Clopper and Pearson, one-sided) on a share, from `count` of `samples`.

    The largest p with P(at most `count` of `samples`) >= 1 - confidence.

    >>> round(upper_limit(0, 100), 4), upper_limit(100, 100)
    (0.0295, 1.0)
    """
    if count >= samples:
        return 1.0
    low, high = count / samples, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, samples, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(count: int, samples: int, share: float) -> float:
    """P(at most `count` of `samples`) if each has probability `share`, 0 < share < 1."""
    if not 0.0 < share < 1.0:
        return float(share <= 0.0)
    k = torch.arange(count + 1, dtype=torch.float64)
    logs = (
        math.lgamma(samples + 1)
        - torch.lgamma(k + 1)
        - torch.lgamma(samples - k + 1)
        + k * math.log(share)
        + (samples - k) * math.log1p(-share)
    )
    return float(logs.logsumexp(0).exp())
