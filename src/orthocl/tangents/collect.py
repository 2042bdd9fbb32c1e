"""Tangents: gradients of remembered outputs, kept as per-layer factors.

Paper: section 3, the vectors v (OGD-GTL, OGD-AVE, OGD-ALL of Farajtabar et al.).

One forward and one backward pass of the SUM of the remembered outputs give every layer's input and output
derivative for the whole batch, because in eval mode no layer mixes samples: row n of the sum's derivative is
d f_n / d z_n. One further backward pass of a randomly weighted sum, with respect to the weights, then checks
every row at once: weighted rows must add up to autograd's result. A layer that fails (weights shared between
calls, tied, or used without calling the layer) gets explicit per-sample gradients; a model whose samples do mix is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError, UnsupportedError, unknown_name
from orthocl.nets.modes import evaluating
from orthocl.tangents import layers
from orthocl.tangents.blocks import Block, Patches, added
from orthocl.tangents.compress import Compression, compress
from orthocl.tangents.dense_rows import per_sample_gradients
from orthocl.tangents.recording import RecordedLayer, readable_layers, recorded_layers, recording
from orthocl.tangents.tangents import Tangents, norm

__all__ = [
    "Collector",
    "RecordedLayer",
    "Tangents",
    "Variant",
    "collect",
    "differentiable",
    "read_layers",
    "recorded_layers",
    "recording",
    "remembered_outputs",
]

Variant = Literal["gtl", "ave", "all"]
# Disagreement with autograd above which a layer's rows are not trusted: relative to the layer's gradient, and
# (for gradients that are zero up to rounding) relative to the whole gradient.
AGREEMENT = {torch.float64: (1e-7, 1e-12), torch.float32: (2e-3, 3e-5)}
CHUNK = 256
# Fewer where all positions of all samples are processed together.
COMPRESSED_CHUNK = 128


def remembered_outputs(outputs: Tensor, targets: Tensor, variant: Variant) -> Tensor:
    """The outputs to remember, (n, k): the ground-truth logit, the mean logit or every logit."""
    if variant not in get_args(Variant):
        raise unknown_name("variant", variant, get_args(Variant))
    if not isinstance(outputs, Tensor):
        raise UnsupportedError(
            f"expected the model to return one tensor (samples, outputs), got a {type(outputs).__name__}: wrap it in a "
            "module that returns only the outputs to remember"
        )
    if outputs.dim() == 1:
        outputs = outputs[:, None]
    if outputs.dim() != 2:
        raise UnsupportedError(
            f"expected model outputs of shape (samples, outputs), got {tuple(outputs.shape)}"
        )
    if variant == "all":
        return outputs
    if variant == "ave":
        return outputs.mean(1, keepdim=True)
    if outputs.shape[1] == 1:
        return outputs
    if targets.is_floating_point() or targets.dim() != 1:
        raise SettingsError(
            "variant 'gtl' remembers the logit of each sample's label and needs one integer label per "
            f"sample; for {outputs.shape[1]} regression outputs use 'all' or 'ave'"
        )
    return outputs.gather(1, targets[:, None].long())


def _checked(outputs: Tensor, targets: Tensor, variant: Variant) -> Tensor:
    """The remembered outputs of a batch, after checking the labels and the numbers."""
    if variant == "gtl" and isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] > 1:
        wrong = targets[(targets < 0) | (targets >= outputs.shape[1])]
        if not targets.is_floating_point() and len(wrong):
            raise DataError(
                f"label {int(wrong.flatten()[0])} has no logit: the model has {outputs.shape[1]} outputs, for labels 0 "
                f"to {outputs.shape[1] - 1}. Renumber the classes, or select the head that belongs to them"
            )
    remembered = remembered_outputs(outputs, targets, variant)
    if not bool(remembered.isfinite().all()):
        raise DataError(
            "outputs to remember are not finite: the network has diverged (use a smaller learning rate) or its inputs "
            "hold NaN or infinite values"
        )
    return remembered


@dataclass(frozen=True)
class _Truth:
    """A randomly weighted sum of all rows, by autograd: what the rows of every block must add up to."""

    weights: Tensor
    gradient: Mapping[str, Tensor]
    rounding: float

    @staticmethod
    def of(parameters: Mapping[str, nn.Parameter], remembered: Tensor, weights: Tensor) -> _Truth:
        """One backward pass with respect to the weights."""
        parts = torch.autograd.grad(
            (remembered * weights).sum(), list(parameters.values()), allow_unused=True
        )
        gradient = {
            name: torch.zeros_like(leaf) if part is None else part.to_dense() if part.is_sparse else part
            for (name, leaf), part in zip(parameters.items(), parts, strict=True)
        }
        whole = AGREEMENT.get(weights.dtype, (2e-2, 1e-3))[1]
        return _Truth(weights, gradient, whole * float(norm([*gradient.values(), weights])))

    def agrees(self, block: Block) -> bool:
        """Whether a block's weighted rows add up to the gradient, up to rounding."""
        own = AGREEMENT.get(self.weights.dtype, (2e-2, 1e-3))[0]
        for name, found in zip(block.names, block.combine(self.weights.flatten()), strict=True):
            truth = self.gradient[name]
            difference, size = norm([found - truth]), norm([found]) + norm([truth])
            if not float(difference) <= own * float(size) + self.rounding:
                return False
        return True


@dataclass
class Collector:
    """What collecting tangents of one model needs to know from batch to batch."""

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    variant: Variant
    explicit: set[str] = field(default_factory=set)  # parameters that need per-sample gradients
    rules: Compression = field(default_factory=Compression)
    known: Mapping[tuple[str, ...], Block] = field(default_factory=dict)

    def layers(self) -> list[RecordedLayer]:
        """Supported modules that own protected parameters."""
        found = readable_layers(self.model, self.parameters)
        covered = {name for layer in found for name in layer.names.values()} - self.explicit
        self.explicit |= self.parameters.keys() - covered
        return [layer for layer in found if set(layer.names.values()) <= covered]

    def chunk(self, x: Tensor, y: Tensor) -> Tangents:
        """Tangents of one batch."""
        found, truth = self.confirmed(self.layers(), x, y)
        logits = truth.weights.shape[1]
        if self.rules.exact:
            found = [layers.represented(block, logits) for block in found]
        believed = [block for block in found if truth.agrees(block)]
        self.explicit |= self.parameters.keys() - {name for block in believed for name in block.names}
        blocks: Sequence[Block] = [*believed, *self._per_sample(x, y, truth)]
        errors = None
        if not self.rules.exact:
            blocks, errors = compress(blocks, self.rules, self.known, logits)
        shapes = [tuple(parameter.shape) for parameter in self.parameters.values()]
        return Tangents(list(self.parameters), shapes, blocks, errors)

    def confirmed(self, recorded: list[RecordedLayer], x: Tensor, y: Tensor) -> tuple[list[Block], _Truth]:
        """Blocks of one batch as they come, and what their rows must add up to."""
        with recording(recorded):
            remembered = _checked(self.model(x), y, self.variant)
        found = self.sums(recorded, remembered)
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(remembered.shape, generator=generator, dtype=torch.float64).to(remembered)
        return found, _Truth.of(self.parameters, remembered, weights)

    def sums(self, recorded: list[RecordedLayer], remembered: Tensor) -> list[Block]:
        """Blocks of all recorded layers as they come, all uses of a weight added up, zeros for silent layers."""
        found = added(self._read_off(recorded, remembered))
        covered = {name for block in found for name in block.names}
        for layer in recorded:
            if layer.calls == 0 and covered.isdisjoint(layer.names.values()):
                zero = layers.silent(layer.module, layer.names, remembered)
                found += [] if zero is None else [zero]
                covered |= set(layer.names.values())
        return found

    def _read_off(self, recorded: list[RecordedLayer], remembered: Tensor) -> list[Block]:
        uses = [(layer, use) for layer in recorded for use in layer.uses]
        outputs = [use.z for _, use in uses]
        columns = (
            [
                torch.autograd.grad(column.sum(), outputs, retain_graph=True, allow_unused=True)
                for column in remembered.unbind(1)
            ]
            if outputs
            else []
        )
        found: list[Block] = []
        for place, (layer, use) in enumerate(uses):
            if use.z.numel() == 0:  # an expert that received no sample
                zero = layers.silent(layer.module, layer.names, remembered)
                found += [] if zero is None else [zero]
                continue
            derivatives = [column[place] for column in columns]
            d = torch.stack([torch.zeros_like(use.z) if part is None else part for part in derivatives], 1)
            blocks = layer.read(use, d)
            if blocks is not None and all(block.rows == remembered.numel() for block in blocks):
                found += blocks
        return found

    def _per_sample(self, x: Tensor, y: Tensor, truth: _Truth) -> list[Block]:
        chosen = {name: parameter for name, parameter in self.parameters.items() if name in self.explicit}
        if not chosen:
            return []

        def remember(outputs: Tensor, target: Tensor) -> Tensor:
            return remembered_outputs(outputs, target, self.variant)

        try:
            found = per_sample_gradients(self.model, x, y, chosen, remember)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(
                "the model cannot be differentiated one sample at a time, which the parameters "
                f"{', '.join(list(chosen)[:3])} need: {error}"
            ) from error
        for block in found:
            if not truth.agrees(block):
                raise UnsupportedError(
                    f"the gradients of parameter {block.names[0]!r} for single samples do not add up to its "
                    "gradient for the batch: the model mixes samples (batch statistics in eval mode, such as "
                    "BatchNorm with track_running_stats=False) or is not deterministic. Orthogonal projection "
                    "needs one gradient per sample: replace that layer, or leave its parameters unprotected"
                )
        return list(found)


@contextmanager
def differentiable(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Eval mode, gradients on, any tangent adapter merged and paused; all restored afterwards."""
    frozen = [parameter for parameter in parameters.values() if not parameter.requires_grad]
    adapters = {
        id(a): a for module in model.modules() if (a := getattr(module, "tangent_adapter", None)) is not None
    }
    paused = [(adapter, adapter.pause()) for adapter in adapters.values()]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with evaluating(model), torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for adapter, before in paused:
            adapter.resume(before)


def collect(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    parameters: Mapping[str, nn.Parameter],
    variant: Variant = "gtl",
    dtype: torch.dtype | None = None,
    chunk: int | None = None,
    compression: Compression | None = None,
    earlier: Tangents | None = None,
) -> Tangents:
    """Gradients of the remembered outputs of some samples, as factors.

    The model is put into eval mode meanwhile; select its head first. Linear layers, convolutions, attention, norm
    layers and embeddings are read off one backward pass, also where a weight is used in several places; other
    parameters are differentiated sample by sample.

    Args:
        model: the network; its outputs are (samples, outputs) or (samples,).
        inputs: samples to remember.
        targets: their labels; only "gtl" reads them.
        parameters: the protected parameters by full name.
        variant: "gtl" remembers the ground-truth logit, "ave" the mean logit, "all" every logit
            (rows sample-major).
        dtype: storage type of the factors, by default that of the model.
        chunk: samples per forward pass; by default as many as give a few hundred rows.
        compression: how much of the tangents to keep; by default all.
        earlier: tangents that these will join: layers keep their representations, and their bases are extended.

    Raises:
        UnsupportedError: if the model mixes the samples of a batch.
    """
    if not parameters:
        raise SettingsError("no protected parameters: expected at least one name -> parameter")
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise DataError(
            f"expected one target for each input, at least one, got {len(inputs)} and {len(targets)}"
        )
    collector = Collector(model, parameters, variant, rules=compression or Compression())
    size, pieces = max(1, chunk or (CHUNK if collector.rules.exact else COMPRESSED_CHUNK)), []
    known = [] if earlier is None else [earlier]
    with differentiable(model, parameters):
        if variant == "all" and chunk is None:  # every sample brings as many derivatives as outputs
            with torch.no_grad():
                size = max(1, size // remembered_outputs(model(inputs[:1]), targets[:1], variant).shape[1])
        for start in range(0, len(inputs), size):
            if not collector.rules.exact and known:
                collector.known = {block.names: block for block in known[-1].blocks}
            piece = collector.chunk(inputs[start : start + size], targets[start : start + size])
            pieces.append(piece if dtype is None else piece.to(dtype))
            known = [pieces[-1]]
    return Tangents.concatenate(pieces)


def read_layers(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    parameters: Mapping[str, nn.Parameter],
    variant: Variant = "gtl",
) -> list[Patches]:
    """The layers' inputs and output derivatives on some samples, as sums of outer products that autograd confirms.

    Args:
        model: the network, with the head of the samples selected.
        inputs: samples.
        targets: their labels; only "gtl" reads them.
        parameters: the protected parameters by full name.
        variant: of which outputs the derivatives are.
    """
    collector = Collector(model, parameters, variant)
    with differentiable(model, parameters):
        recorded = collector.layers()
        found, truth = collector.confirmed(recorded, inputs, targets)
    return [block for block in found if isinstance(block, Patches) and truth.agrees(block)]
