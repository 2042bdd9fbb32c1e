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

from orthocl.checking import check_value
from orthocl.errors import DataError, SettingsError
from orthocl.formatting import counted, size_text
from orthocl.methods.adapter_overlap import AdapterOverlap
from orthocl.methods.over_time import OverTime
from orthocl.nets.inputs import tensors
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

    Proven for all samples of the kind, if the probe was drawn independently of the training and is used once: the share
    lost is at most `lost_at_most`, except with probability 1 - confidence, for all probes `together` or for each on its
    own. Everything else is measured: the terms of a change explain it and limit nothing else.

    Args:
        method: name of the method, or what made the change.
        probes: one entry per set of samples.
        moved: length of the change of weights, relative to the weights that moved.
        leak: share of the change of the protected weights that lies in the protected space; None if there is none.
        drift: stored tangents against current ones: cosine, relative norm, share outside; empty if there are none.
        stored: bytes that the method keeps.
        unprotected: parameters that moved and that the method does not protect.
        confidence: of `lost_at_most`.
        together: whether the limits of all probes hold at once with that confidence, or each on its own.
        protects: what `leak` is measured against, where that is less than all the tangents of the remembered samples.
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
    together: bool = True
    protects: str = ""
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
                f"Of {counted(samples, 'test sample')} of earlier tasks {_lost(lost)}; if they were drawn "
                f"independently of the training, at most {worst.lost_at_most or 0.0:.1%} of all such samples are lost "
                f"on the worst task ({worst.name}), with {percent(self.confidence)} confidence."
            )
        if labelled:
            lost, samples = sum(each.lost or 0 for each in labelled), sum(each.samples for each in labelled)
            return (
                f"Of {counted(samples, 'sample')} of earlier tasks {_lost(lost)}; name independent test samples to "
                "learn how many others are."
            )
        if not self.probes:
            return "There are no samples of earlier tasks to compare."
        worst_change = max(self.probes, key=lambda each: each.change.measured)
        return f"Outputs for earlier tasks changed by at most {worst_change.change.measured:.1%} ({worst_change.name})."

    @property
    def limits(self) -> str:
        """What the limits of the rows say together; empty if there are none."""
        count = sum(each.lost_at_most is not None for each in self.probes)
        if not count:
            return ""
        sure = f"{percent(self.confidence)} confidence"
        if self.together or count == 1:
            return f"the limits on what was lost hold with {sure}, all rows together"
        return f"each limit on what was lost holds with {sure} on its own, not all rows together"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "sentence": self.sentence, "limits": self.limits}

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        lines = [f"Retention certificate ({self.method})", self.sentence, ""]
        lines += [_row(each) for each in self.probes]
        if self.limits:
            lines.append(self.limits)
        lines += ["", f"weights moved by {self.moved:.2%}; the method stores {size_text(self.stored)}"]
        if self.leak is not None:
            against = f", measured against {self.protects}" if self.protects else ""
            lines.append(f"share of the change inside the protected space (leak): {self.leak:.1e}{against}")
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
        f"remainder {_share(change.remainder)})"
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
    together: bool = True,
) -> Certificate:
    """Compare two states of a model on samples: the part of the certificate that needs no method.

    Args:
        model: the model; its own weights stay as they are.
        before: its state dict before, or the part of it that may have moved.
        after: the same entries after.
        probes: the samples. No limit is given for a probe that holds a remembered sample of another one.
        method: what made the change, for the report.
        protected: (model, inputs, targets) -> what the method remembers, for probes of remembered samples.
        outputs: which outputs are compared, as for `attach`.
        confidence: of the limits on what was lost, at least 0.5 and below 1.
        together: whether they hold for all probes at once, each at (1 - confidence) / their number, or each on its own.

    Raises:
        SettingsError: a confidence that is none.
        DataError: what cannot be computed is not certified: weights, samples or outputs that are not finite numbers,
            labels that no output belongs to.
    """
    check_confidence(confidence)
    path = Path.between(model, before, after)
    size = sum(float(part.double().square().sum()) for part in path.start.values()) ** 0.5
    copies = _copies(probes)
    rows = []
    for probe in probes:
        kept = None
        if protected is not None and probe.remembered and probe.targets is not None:
            kept = compare(model, path, probe, protected).change()
        found = compare(model, path, probe, partial(every_output, outputs=outputs))
        rows.append(_retention(found, probe, kept))
    return Certificate(
        method,
        _limited(rows, copies, confidence, together),
        moved=path.length / max(size, 1e-300),
        confidence=confidence,
        together=together,
        notes=tuple(
            f"no limit for {probe.name}: {counted(count, 'sample')} of it are among those that the method keeps"
            for probe, count in zip(probes, copies, strict=True)
            if count
        ),
    )


def check_confidence(confidence: float) -> None:
    """Reject a confidence that is no probability, or that says less than a coin."""
    check_value("confidence", confidence, float)
    if not 0.5 <= confidence < 1:
        raise SettingsError(f"confidence is a probability of at least 0.5 and below 1, got {confidence}")


def percent(share: float) -> str:
    """A probability as a percentage, not rounded up to certainty.

    >>> percent(0.95), percent(0.9999)
    ('95%', '99.99%')
    """
    return f"{100 * share:.10g}%"


def _copies(probes: Sequence[Probe]) -> list[int]:
    """For each probe of samples said to be independent, how many are among the remembered ones."""
    known = {key for probe in probes if probe.remembered for key in _keys(probe)}
    return [
        0 if probe.remembered or not known else sum(key in known for key in _keys(probe)) for probe in probes
    ]


def _keys(probe: Probe) -> list[bytes]:
    """The bytes of the inputs of each sample."""
    parts = [part.detach().cpu().reshape(len(probe), -1).contiguous() for part in tensors(probe.inputs)]
    return [
        b"".join(part[row].view(torch.uint8).numpy().tobytes() for part in parts) for row in range(len(probe))
    ]


def _limited(
    rows: Sequence[Retention], copies: Sequence[int], confidence: float, together: bool
) -> tuple[Retention, ...]:
    """The rows with their limits on what was lost: those of independent samples with labels."""
    named = [
        each.lost is not None and not each.remembered and not known
        for each, known in zip(rows, copies, strict=True)
    ]
    level = 1 - (1 - confidence) / max(1, sum(named)) if together else confidence
    return tuple(
        replace(each, lost_at_most=upper_limit(each.lost or 0, each.samples, level)) if limit else each
        for each, limit in zip(rows, named, strict=True)
    )


def _retention(found: Comparison, probe: Probe, protected: Change | None) -> Retention:
    rows = (found.after - found.before).norm(dim=1)
    typical = max(float(found.before.square().sum(1).mean().sqrt()), 1e-300)
    worst = float(rows.max()) / typical
    plain = Retention(probe.name, probe.remembered, len(probe), found.change(), protected, worst)
    labels = _classes(found.before, probe)
    if labels is None:
        return plain
    then, now, right = found.before.argmax(1), found.after.argmax(1), labels.to(found.before.device)
    return replace(
        plain,
        accuracy_before=float((then == right).double().mean()),
        accuracy_after=float((now == right).double().mean()),
        flipped=int((then != now).sum()),
        lost=int(((then == right) & (now != right)).sum()),
    )


def are_classes(outputs: Tensor, labels: object) -> bool:
    """Whether the outputs are one logit for each class, and the labels numbers of classes."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        return False
    return labels.dim() == 1 and outputs.shape[1] > 1


def _classes(outputs: Tensor, probe: Probe) -> Tensor | None:
    """The labels, if they are classes and the outputs one logit for each class.

    Raises:
        DataError: labels that no output belongs to: none of these samples could be lost.
    """
    labels = probe.targets
    if not isinstance(labels, Tensor) or not are_classes(outputs, labels):
        return None
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= outputs.shape[1]:
        raise DataError(
            f"the labels of {probe.name!r} range from {lowest} to {highest}, but the model has outputs for 0 to "
            f"{outputs.shape[1] - 1} only: leave out samples of other classes, or give targets=None to compare outputs "
            "without labels"
        )
    return labels


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
