"""Tangents: gradients of remembered outputs, kept as per-layer factors.

Paper: section 3, the vectors v (OGD-GTL, OGD-AVE, OGD-ALL of Farajtabar et al.).

One forward and one backward pass of the SUM of the remembered outputs give every layer's input and output
derivative for the whole batch, because in eval mode no layer mixes samples: row n of the sum's derivative is
d f_n / d z_n. One further backward pass of a randomly weighted sum, with respect to the weights, then checks
every row at once: weighted rows must add up to what autograd says. A layer that fails (weights shared between
calls, tied, or used behind the layer's back) gets explicit per-sample gradients; a model whose samples really
do mix is refused.
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
from orthocl.tangents.blocks import Block
from orthocl.tangents.dense_rows import per_sample_gradients
from orthocl.tangents.tangents import Tangents, norm

__all__ = [
    "RecordedLayer",
    "Tangents",
    "Variant",
    "collect",
    "differentiable",
    "recorded_layers",
    "recording",
    "remembered_outputs",
]

Variant = Literal["gtl", "ave", "all"]
# Disagreement with autograd above which a layer's rows are not believed: relative to the layer's gradient, and
# (for gradients that are zero but for rounding) relative to the whole gradient.
AGREEMENT = {torch.float64: (1e-7, 1e-12), torch.float32: (2e-3, 3e-5)}
CHUNK = 256


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
    """The remembered outputs of a batch, after a look at the labels and at the numbers."""
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


@dataclass
class RecordedLayer:
    """A module whose gradient can be read off one recorded call.

    Args:
        module: the module.
        names: its protected parameters: "weight", "bias" -> full name.
    """

    module: nn.Module
    names: dict[str, str]
    calls: int = 0
    x: Tensor | None = None
    z: Tensor | None = None

    def record(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """A forward hook that keeps what went in and what came out."""
        self.calls += 1
        self.x, self.z = inputs[0] if inputs else None, output
        return output.clone()  # a following in-place activation must not overwrite z


def recorded_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[RecordedLayer]:
    """The modules that `layers` supports, of those that alone own all of their protected parameters."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    owners: dict[str, int] = {}
    found: list[RecordedLayer] = []
    for module in model.modules():
        own = {
            part: names[id(parameter)]
            for part, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(parameter) in names
        }
        for name in own.values():
            owners[name] = owners.get(name, 0) + 1
        if own and layers.supported(module):
            found.append(RecordedLayer(module, own))
    return [layer for layer in found if all(owners[name] == 1 for name in layer.names.values())]


@contextmanager
def recording(recorded: Sequence[RecordedLayer]) -> Iterator[None]:
    """Forward passes inside are recorded by these layers."""
    handles = [layer.module.register_forward_hook(layer.record) for layer in recorded]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class _Collector:
    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    variant: Variant
    explicit: set[str] = field(default_factory=set)  # parameters that need per-sample gradients

    def layers(self) -> list[RecordedLayer]:
        """Supported modules that own protected parameters which no other module owns."""
        found = recorded_layers(self.model, self.parameters)
        covered = {name for layer in found for name in layer.names.values()} - self.explicit
        self.explicit |= self.parameters.keys() - covered
        return [layer for layer in found if set(layer.names.values()) <= covered]

    def chunk(self, x: Tensor, y: Tensor) -> Tangents:
        """Tangents of one batch."""
        recorded = self.layers()
        with recording(recorded):
            remembered = _checked(self.model(x), y, self.variant)
        called = [layer for layer in recorded if layer.calls == 1 and layer.x is not None]
        found = self._read_off(called, remembered)
        found += [
            silent
            for layer in recorded
            if layer.calls == 0
            and (silent := layers.silent(layer.module, layer.names, remembered)) is not None
        ]
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(remembered.shape, generator=generator, dtype=torch.float64).to(remembered)
        truth = self._weighted_gradient(remembered, weights)
        believed = [block for block in found if self._agrees(block, weights, truth)]
        self.explicit |= self.parameters.keys() - {name for block in believed for name in block.names}
        return Tangents(
            list(self.parameters),
            [tuple(parameter.shape) for parameter in self.parameters.values()],
            [*believed, *self._per_sample(x, y, weights, truth)],
        )

    def _read_off(self, called: list[RecordedLayer], remembered: Tensor) -> list[Block]:
        outputs = [layer.z for layer in called if layer.z is not None]
        columns = (
            [
                torch.autograd.grad(column.sum(), outputs, retain_graph=True, allow_unused=True)
                for column in remembered.unbind(1)
            ]
            if outputs
            else []
        )
        found = []
        for place, layer in enumerate(called):
            if layer.x is None or layer.z is None:
                continue
            derivatives = [column[place] for column in columns]
            d = torch.stack([torch.zeros_like(layer.z) if part is None else part for part in derivatives], 1)
            block = layers.block(layer.module, layer.names, layer.x.detach(), d)
            if block is not None and block.rows == remembered.numel():
                found.append(block)
        return found

    def _weighted_gradient(self, remembered: Tensor, weights: Tensor) -> dict[str, Tensor]:
        leaves = list(self.parameters.values())
        parts = torch.autograd.grad((remembered * weights).sum(), leaves, allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if part is None else part.to_dense() if part.is_sparse else part
            for (name, leaf), part in zip(self.parameters.items(), parts, strict=True)
        }

    @staticmethod
    def _agrees(block: Block, weights: Tensor, truth: Mapping[str, Tensor]) -> bool:
        own, whole = AGREEMENT.get(weights.dtype, (2e-2, 1e-3))
        rounding = whole * float(norm([*truth.values(), weights]))
        for name, sum_of_rows in zip(block.names, block.combine(weights.flatten()), strict=True):
            difference, size = norm([sum_of_rows - truth[name]]), norm([sum_of_rows]) + norm([truth[name]])
            if not float(difference) <= own * float(size) + rounding:
                return False
        return True

    def _per_sample(self, x: Tensor, y: Tensor, weights: Tensor, truth: Mapping[str, Tensor]) -> list[Block]:
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
            if not self._agrees(block, weights, truth):
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
) -> Tangents:
    """Gradients of the remembered outputs of some samples, as factors.

    The model is in eval mode meanwhile; select its head first. Linear, Conv2d, BatchNorm,
    LayerNorm, GroupNorm and Embedding layers are read off one backward pass, other parameters (and
    weights used in more than one place) are differentiated sample by sample.

    Args:
        model: the network; its outputs are (samples, outputs) or (samples,).
        inputs: samples to remember.
        targets: their labels; only "gtl" reads them.
        parameters: the protected parameters by full name.
        variant: "gtl" remembers the ground-truth logit, "ave" the mean logit, "all" every logit
            (rows sample-major).
        dtype: storage type of the factors, by default that of the model.
        chunk: samples per forward pass; by default as many as give a few hundred rows.

    Raises:
        UnsupportedError: if the model mixes the samples of a batch.
    """
    if not parameters:
        raise SettingsError("no protected parameters: expected at least one name -> parameter")
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise DataError(
            f"expected one target for each input, at least one, got {len(inputs)} and {len(targets)}"
        )
    collector = _Collector(model, parameters, variant)
    size, pieces = max(1, chunk or CHUNK), []
    with differentiable(model, parameters):
        if variant == "all" and chunk is None:  # every sample brings as many derivatives as outputs
            with torch.no_grad():
                size = max(1, CHUNK // remembered_outputs(model(inputs[:1]), targets[:1], variant).shape[1])
        for start in range(0, len(inputs), size):
            piece = collector.chunk(inputs[start : start + size], targets[start : start + size])
            pieces.append(piece if dtype is None else piece.to(dtype))
    return Tangents.concatenate(pieces)
