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

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError, UnsupportedError
from orthocl.nets.inputs import Inputs, Targets, sample_count, take
from orthocl.nets.modes import evaluating, without_autocast
from orthocl.nets.outputs import Outputs
from orthocl.tangents import layers
from orthocl.tangents.attention import same
from orthocl.tangents.blocks import Block, Patches, added
from orthocl.tangents.chunks import chunk_size, evenly, weighing
from orthocl.tangents.compress import Compression, compress
from orthocl.tangents.dense_rows import per_sample_gradients, warn_of_price
from orthocl.tangents.recording import (
    Recorded,
    RecordedLayer,
    activation_types,
    readable_layers,
    recorded_layers,
    recording,
)
from orthocl.tangents.remembering import TOKENS, Remembering, Variant, remembered_outputs
from orthocl.tangents.shared_positions import common_parameters
from orthocl.tangents.single_positions import Derivative, at_one_position, stacked
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

# Disagreement with autograd above which a layer's rows are not trusted: relative to the layer's gradient, and
# (for gradients that are zero up to rounding) relative to the whole gradient.
AGREEMENT = {torch.float64: (1e-7, 1e-12), torch.float32: (2e-3, 3e-5)}


# Samples that tell how much memory one of them takes: not one alone, whose axis models like to drop.
WEIGHED = 2


@dataclass(frozen=True)
class _Truth:
    """A randomly weighted sum of all rows, by autograd: what the rows of every block must add up to."""

    weights: Tensor
    gradient: Mapping[str, Tensor]
    precision: torch.dtype
    rounding: float

    @staticmethod
    def of(
        parameters: Mapping[str, nn.Parameter], remembered: Tensor, weights: Tensor, precision: torch.dtype
    ) -> _Truth:
        """One backward pass with respect to the weights, through activations of this precision."""
        parts = torch.autograd.grad(
            (remembered * weights).sum(), list(parameters.values()), allow_unused=True
        )
        gradient = {
            name: torch.zeros_like(leaf) if part is None else part.to_dense() if part.is_sparse else part
            for (name, leaf), part in zip(parameters.items(), parts, strict=True)
        }
        whole = AGREEMENT.get(precision, (2e-2, 1e-3))[1]
        return _Truth(weights, gradient, precision, whole * float(norm([*gradient.values(), weights])))

    def agrees(self, block: Block) -> bool:
        """Whether a block's weighted rows add up to the gradient, up to rounding."""
        own = AGREEMENT.get(self.precision, (2e-2, 1e-3))[0]
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
    remember: Remembering = field(default_factory=Remembering)
    explicit: set[str] = field(default_factory=set)  # parameters that need per-sample gradients
    rules: Compression = field(default_factory=Compression)
    known: Mapping[tuple[str, ...], Block] = field(default_factory=dict)
    samples: int | None = None
    """Of all batches."""
    expands: int = 2
    """What of that which all samples share is given to each: 2 everything, 1 what has an axis of samples, 0 nothing."""
    common: set[nn.Module] = field(default_factory=set)
    """Embeddings whose rows of indices are those of every sample."""
    inputs_matter: bool = False
    """Whether inputs of positions that no remembered output depends on are wanted too."""
    compared: bool = False
    """Whether what is computed otherwise than by the model was compared with its own outputs."""
    confirmed: bool = False
    """Whether autograd has confirmed the rows of a batch."""
    precision: torch.dtype = torch.float32
    """The coarsest type among the model's activations: how exact its outputs can be."""

    def layers(self) -> list[Recorded]:
        """What owns protected parameters and can be read off."""
        found: list[Recorded] = list(readable_layers(self.model, self.parameters))
        read = {name for layer in found for name in layer.names.values()}
        if self.expands:
            found += common_parameters(self.model, self.parameters, read, missing=self.expands == 2)
        covered = {name for layer in found for name in layer.names.values()} - self.explicit
        self.explicit |= self.parameters.keys() - covered
        for layer in found:
            if isinstance(layer, RecordedLayer):
                layer.common = layer.module in self.common
        return [layer for layer in found if set(layer.names.values()) <= covered]

    def chunk(self, x: Inputs, y: Targets) -> Tangents:
        """Tangents of one batch; those of the first one are compared with autograd's gradient of their sum."""
        recorded, remembered = self.forward(x, y)
        logits, truth = remembered.shape[1], None
        found = self.sums(recorded, remembered, last=self.confirmed)
        if not self.confirmed:
            truth = _Truth.of(self.parameters, remembered, self._weights(remembered), self.precision)
        del recorded, remembered
        blocks: list[Block] = []
        while found:  # one by one, so that each is released as soon as it is represented
            block = found.pop(0)
            block = layers.represented(block, logits) if self.rules.exact else block
            if truth is None or truth.agrees(block):
                blocks.append(block)
        self.explicit |= self.parameters.keys() - {name for block in blocks for name in block.names}
        blocks += self._per_sample(x, y, truth)
        self.confirmed = True
        errors = None
        if not self.rules.exact:
            blocks, errors = compress(blocks, self.rules, self.known, logits)
        shapes = [tuple(parameter.shape) for parameter in self.parameters.values()]
        return Tangents(list(self.parameters), shapes, blocks, errors)

    def confirmed_sums(self, x: Inputs, y: Targets, *, mixed: bool = False) -> list[Block]:
        """The blocks of one batch, as they come, that autograd confirms.

        Args:
            x: samples.
            y: their targets.
            mixed: weigh the outputs at random before they are differentiated instead of the rows afterwards, which is
                the same unless samples influence each other's outputs.
        """
        recorded, remembered = self.forward(x, y)
        weights = self._weights(remembered)
        if mixed:
            remembered = (remembered * weights).sum(1, keepdim=True)
            weights = torch.ones_like(remembered)
        found = self.sums(recorded, remembered)
        truth = _Truth.of(self.parameters, remembered, weights, self.precision)
        return [block for block in found if truth.agrees(block)]

    @staticmethod
    def _weights(remembered: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(remembered.shape, generator=generator, dtype=torch.float64).to(remembered)

    def samples_at_once(self, x: Inputs, y: Targets) -> int:
        """How many samples a batch should have, from the first few."""
        few = slice(0, WEIGHED)
        with weighing(self.model) as kept:
            recorded, remembered = self.forward(take(x, few), take(y, few))
        self.common = {layer.module for layer in recorded if layer.expanded}
        derivatives = sum(use.z.numel() * use.z.element_size() for layer in recorded for use in layer.uses)
        count, outputs = remembered.shape
        return chunk_size(sum(kept.values()) // count, derivatives // count, outputs)

    def forward(self, x: Inputs, y: Targets) -> tuple[list[Recorded], Tensor]:
        """One forward pass, recorded: the layers, and the numbers to remember."""
        recorded, first = self.layers(), not self.compared
        samples = sample_count(x) if self.expands else None
        try:
            with recording(recorded, samples, compared=first), activation_types(self.model) as types:
                remembered = self.remember.checked(self.model, x, y)
            self.precision = max(types | {remembered.dtype}, key=lambda dtype: torch.finfo(dtype).eps)
        except Exception:  # of any kind: a copy for each sample is not what the model was written for
            if not first or not any(layer.expanded for layer in recorded):
                raise
            return self._forward_less_expanded(x, y)
        if first and any(layer.expanded for layer in recorded):
            with torch.no_grad():
                expected = self.remember(self.model, x, y)
            if not same(remembered, expected):
                return self._forward_less_expanded(x, y)
        self.compared = True
        return recorded, remembered

    def _forward_less_expanded(self, x: Inputs, y: Targets) -> tuple[list[Recorded], Tensor]:
        self.expands -= 1
        return self.forward(x, y)

    def sums(self, recorded: Sequence[Recorded], remembered: Tensor, *, last: bool = False) -> list[Block]:
        """Blocks of all recorded layers as they come, all uses of a weight added up, zeros for silent layers.

        Args:
            recorded: layers, with their uses, which are released.
            remembered: what was computed from these.
            last: whether nothing else will be differentiated.
        """
        found = added(self._read_off(recorded, remembered, last))
        covered = {name for block in found for name in block.names}
        for layer in recorded:
            if layer.calls == 0 and covered.isdisjoint(layer.names.values()):
                zero = layers.silent(layer.module, layer.names, remembered)
                found += [] if zero is None else [zero]
                covered |= set(layer.names.values())
        return found

    def _read_off(self, recorded: Sequence[Recorded], remembered: Tensor, last: bool) -> list[Block]:
        uses = [(layer, use) for layer in recorded for use in layer.uses]
        outputs = [use.place for _, use in uses]
        gradients: list[list[Derivative]] = [[] for _ in uses]
        columns = remembered.unbind(1) if outputs else ()
        for number, column in enumerate(columns, 1):
            parts = torch.autograd.grad(
                column.sum(), outputs, retain_graph=not last or number < len(columns), allow_unused=True
            )
            for (layer, use), part, kept in zip(uses, parts, gradients, strict=True):
                d = torch.zeros_like(use.z) if part is None else part
                kept.append(at_one_position(d) if self._may_be_single(layer, d) else d)
            del parts
        found: list[Block] = []
        for layer, use in uses:
            derivatives = gradients.pop(0)
            if use.z.numel() == 0:  # an expert that received no sample
                zero = layers.silent(layer.module, layer.names, remembered)
                found += [] if zero is None else [zero]
                continue
            blocks = layer.read(*stacked(use, derivatives))
            if blocks is not None and all(block.rows == remembered.numel() for block in blocks):
                found += blocks
        return found

    def _may_be_single(self, layer: Recorded, d: Tensor) -> bool:
        """Whether each remembered output may depend on one position of a linear layer alone."""
        if self.remember.variant != "tokens" or self.inputs_matter or d.dim() != 3 or not d.numel():
            return False
        return layers.is_linear(layer.module) and (layer.single or not d.is_meta)

    def _per_sample(self, x: Inputs, y: Targets, truth: _Truth | None) -> list[Block]:
        chosen = {name: parameter for name, parameter in self.parameters.items() if name in self.explicit}
        if not chosen:
            return []
        if truth is not None:
            warn_of_price(self.model, chosen, self.samples or sample_count(x), truth.weights.shape[1])
        try:
            found = per_sample_gradients(self.model, x, y, chosen, self.remember)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(
                "the model cannot be differentiated one sample at a time, which the parameters "
                f"{', '.join(list(chosen)[:3])} need: {error}"
            ) from error
        for block in found:
            if truth is not None and not truth.agrees(block):
                raise UnsupportedError(
                    f"the gradients of parameter {block.names[0]!r} for single samples do not add up to its "
                    "gradient for the batch: the model mixes samples (batch statistics in eval mode, such as "
                    "BatchNorm with track_running_stats=False), is not deterministic, or computes in lower precision "
                    "(a compiled model with autocast inside). Orthogonal projection "
                    "needs one gradient per sample: replace that layer, or leave its parameters unprotected"
                )
        return list(found)


@contextmanager
def differentiable(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Eval mode, gradients on, no autocast, any tangent adapter merged and paused; all restored afterwards."""
    frozen = [parameter for parameter in parameters.values() if not parameter.requires_grad]
    adapters = {
        id(a): a for module in model.modules() if (a := getattr(module, "tangent_adapter", None)) is not None
    }
    paused = [(adapter, adapter.pause()) for adapter in adapters.values()]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with evaluating(model), without_autocast(), torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for adapter, before in paused:
            adapter.resume(before)


def collect(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets,
    *,
    parameters: Mapping[str, nn.Parameter],
    variant: Variant = "gtl",
    outputs: Outputs = None,
    tokens: int = TOKENS,
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
        inputs: samples to remember: a tensor, a tuple (model(*inputs)) or a dict (model(**inputs)).
        targets: their labels; only "gtl" and "tokens" read them.
        parameters: the protected parameters by full name.
        variant: "gtl" remembers the ground-truth logit, "ave" the mean logit, "all" every logit, "tokens" the
            log-probabilities of a few target positions (rows sample-major).
        outputs: (model, inputs) -> the outputs that are meant, or a dict of such functions: each is remembered.
        tokens: positions per sample for "tokens".
        dtype: storage type of the factors, by default that of the model.
        chunk: samples per forward pass; by default as many as give at most 256 rows, and fewer of large networks.
        compression: how much of the tangents to keep; by default all.
        earlier: tangents that these will join: layers keep their representations, and their bases are extended.

    Raises:
        UnsupportedError: if the model mixes the samples of a batch.
    """
    if not parameters:
        raise SettingsError("no protected parameters: expected at least one name -> parameter")
    samples = sample_count(inputs)
    if samples == 0 or samples != sample_count(targets):
        raise DataError(
            f"expected one target for each input, at least one, got {samples} and {sample_count(targets)}"
        )
    remember = Remembering(variant, outputs, tokens)
    collector = Collector(model, parameters, remember, rules=compression or Compression(), samples=samples)
    pieces: list[Tangents] = []
    known = [] if earlier is None else [earlier]
    with differentiable(model, parameters):
        size = chunk or (samples if samples <= WEIGHED else collector.samples_at_once(inputs, targets))
        if not collector.rules.exact:  # the first batch, whose bases the others extend, is as large as any
            size = evenly(samples, size)
        for start in range(0, samples, size):
            if not collector.rules.exact and known:
                collector.known = {block.names: block for block in known[-1].blocks}
            rows = slice(start, start + size)
            piece = collector.chunk(take(inputs, rows), take(targets, rows))
            pieces.append(piece if dtype is None else piece.to(dtype))
            known = [pieces[-1]]
    return Tangents.concatenate(pieces)


def read_layers(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets,
    *,
    parameters: Mapping[str, nn.Parameter],
    variant: Variant = "gtl",
    outputs: Outputs = None,
    inputs_only: bool = False,
) -> list[Patches]:
    """The layers' inputs and output derivatives on some samples, as sums of outer products that autograd confirms.

    Args:
        model: the network, with the head of the samples selected.
        inputs: samples.
        targets: their labels; only "gtl" and "tokens" read them.
        parameters: the protected parameters by full name.
        variant: of which outputs the derivatives are.
        outputs: (model, inputs) -> the outputs that are meant, or a dict of such functions.
        inputs_only: the model may mix samples (batch statistics in eval mode): the inputs are as good as ever, but the
            derivatives are those of a randomly weighted sum of all samples' outputs.
    """
    collector = Collector(model, parameters, Remembering(variant, outputs), inputs_matter=True)
    with differentiable(model, parameters):
        found = collector.confirmed_sums(inputs, targets, mixed=inputs_only)
    return [block for block in found if isinstance(block, Patches)]
