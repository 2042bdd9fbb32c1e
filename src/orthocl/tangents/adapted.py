"""A linear layer with a tangent adapter on it, forward and backward by hand.

With u the plain weights and alpha one number per remembered tangent, shared by all layers, the effective weights are
w = u + G^T alpha. For a linear layer that is (A, D the layer's factors, S the kernel of the batch)

    z = x W^T + b + (S * alpha) D        S = x A^T + 1
    dL/dalpha += sum over the batch of S * E,   E = dz D^T
    dx = dz W + (E * alpha) A

Where several rows share one input (all logits remembered), S has one column per input and alpha moves
into D: (S * alpha) D becomes S D_alpha with D_alpha the sum of alpha D over the rows of each input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from orthocl.errors import TrainingError
from orthocl.tangents.outer import Factored

if TYPE_CHECKING:
    from orthocl.tangents.adapter import Adapter


class AdapterLayer:
    """One factored block in use: its kernel with a batch, and its share of the adapter's products."""

    def __init__(self, adapter: Adapter, module: nn.Linear, block: Factored):
        self.adapter, self.module, self.block = adapter, module, block
        self.dtype = module.weight.dtype
        self.cache: Tensor | None = None
        self.cache_on_disk = False
        self._one = torch.ones(1, 1, dtype=self.dtype, device=module.weight.device)
        # Views are made once: in a step of two milliseconds every small operation counts.
        self._views = None if block.deltas.dtype != self.dtype else _views(block.inputs, block.deltas)

    @property
    def factors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A, A^T, D, D^T in the type of the weights: the stored tensors themselves, or converted for now."""
        if self._views is not None:
            return self._views
        return _views(self.block.inputs.to(self.dtype), self.block.deltas.to(self.dtype))

    def kernel(self, x: Tensor) -> Tensor:
        """S = x A^T + 1, looked up if this layer's inputs were cached and the batch is known."""
        index = self.adapter.batch_index
        if self.cache is not None and index is not None:
            self.adapter.batch_index = None
            return self._cached(x, index)
        inputs_t = self.factors[1]
        return torch.addmm(self._one, x, inputs_t) if self.block.bias else x @ inputs_t

    def _cached(self, x: Tensor, index: Tensor) -> Tensor:
        if self.cache is None or len(index) != len(x):
            raise TrainingError(f"the batch has {len(x)} samples, but `batch_index` names {len(index)}")
        kernel = self.cache.index_select(0, index)
        if not self.adapter.checking:
            return kernel
        # One entry is recomputed: enough to notice augmented inputs or the index of another batch.
        truth = float(x[0].dot(self.block.inputs[0].to(self.dtype))) + self.block.bias
        if abs(float(kernel[0, 0]) - truth) > 1e-3 * (1.0 + abs(truth)):
            raise TrainingError(
                "the inputs of this batch are not the cached ones that `batch_index` names: leave "
                "`batch_index` at None for augmented inputs, or cache the inputs that are really used"
            )
        return kernel

    def grouped(self, alpha: Tensor, deltas: Tensor) -> Tensor:
        """D_alpha: the sum of alpha D over the rows of each input."""
        total = deltas.new_zeros(len(self.block.inputs), deltas.shape[1])
        return total.index_add_(0, self._source, deltas * alpha[:, None])

    @property
    def _source(self) -> Tensor:
        return torch.arange(self.block.rows) if self.block.source is None else self.block.source

    def gather(self, kernel: Tensor, dz: Tensor, deltas: Tensor) -> Tensor:
        """dL/dalpha where rows share inputs: (S^T dz)[source] . D."""
        return ((kernel.t() @ dz)[self._source] * deltas).sum(1)


def _views(inputs: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return inputs, inputs.t(), deltas, deltas.t()


class _AdaptedProduct(Function):
    """The layer on samples by rows. In a step of two milliseconds every small operation counts: hence the style."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: AdapterLayer) -> Tensor:
        kernel, alpha, deltas = layer.kernel(x), layer.adapter.alpha, layer.factors[2]
        z = x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
        if layer.block.source is None:
            z.addmm_(kernel * alpha, deltas)
        else:
            z.addmm_(kernel, layer.grouped(alpha, deltas))
        ctx.save_for_backward(x, weight, alpha, kernel)
        ctx.layer = layer
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, alpha, kernel = ctx.saved_tensors
        layer: AdapterLayer = ctx.layer
        inputs, _, deltas, deltas_t = layer.factors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            # A graph of the gradient is wanted, for derivatives of it. They pass by alpha, which the check notices.
            merged = weight + layer.block.combine(alpha)[0].to(weight.dtype)
            return dz @ merged, dz.t() @ x, dz.sum(0) if needs_bias else None, None
        dx = None
        if layer.block.source is None:
            errors = dz @ deltas_t
            layer.adapter.gradient.add_((kernel * errors).sum(0))
            if needs_x:
                dx = torch.addmm(dz @ weight, errors.mul_(alpha), inputs)
        else:
            layer.adapter.gradient.add_(layer.gather(kernel, dz, deltas))
            if needs_x:
                dx = torch.addmm(dz @ weight, dz @ layer.grouped(alpha, deltas).t(), inputs)
        return dx, dz.t() @ x if needs_weight else None, dz.sum(0) if needs_bias else None, None


class AdaptedLinear(nn.Linear):
    """What `nn.Linear` modules become while an adapter is installed, by a change of class and back.

    Copies, pickles and state dicts are those of an ordinary `nn.Linear` with the merged weights.
    """

    tangent_adapter: Adapter
    tangent_layer: AdapterLayer

    def forward(self, input: Tensor) -> Tensor:
        """The layer with its effective weights."""
        adapter = self.tangent_adapter
        if adapter.stale:
            adapter.reanchor()
        if adapter.idle:
            return functional.linear(input, self.weight, self.bias)
        # `self.weight` would take longer: modules look it up by hand.
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        if weight is None or weight.grad is None:  # cleared: the gradients of a skipped batch do not count
            adapter.gradient.zero_()
        kind = input.device.type
        if torch.is_autocast_enabled(kind):  # the adapter computes in the precision of the weights
            with torch.autocast(kind, enabled=False):
                return self._product(input.to(self.weight.dtype)).to(torch.get_autocast_dtype(kind))
        if input.dim() != 2:
            return self._product(input)
        return _AdaptedProduct.apply(input, weight, bias, self.tangent_layer)  # type: ignore

    def _product(self, input: Tensor) -> Tensor:
        """For any number of leading dimensions."""
        flat = input.reshape(-1, input.shape[-1])
        output: Tensor = _AdaptedProduct.apply(flat, self.weight, self.bias, self.tangent_layer)  # type: ignore[no-untyped-call]
        return output.view(*input.shape[:-1], -1)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.tangent_adapter.merge()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self.tangent_adapter.forget()
        super()._load_from_state_dict(*arguments)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        self.tangent_adapter.merge()
        state = {key: value for key, value in self.__dict__.items() if not key.startswith("tangent_")}
        return nn.Linear.__new__, (nn.Linear,), state


def install(adapter: Adapter, module: nn.Linear, block: Factored) -> AdapterLayer:
    """Turn a linear layer into an adapted one."""
    layer = AdapterLayer(adapter, module, block)
    module.__class__ = AdaptedLinear
    module.__dict__.update(tangent_adapter=adapter, tangent_layer=layer)
    return layer


def uninstall(module: nn.Linear) -> None:
    """Turn it back."""
    module.__class__ = nn.Linear
    del module.__dict__["tangent_adapter"], module.__dict__["tangent_layer"]
