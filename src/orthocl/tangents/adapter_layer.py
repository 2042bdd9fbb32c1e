"""A linear layer with a tangent adapter, forward and backward written by hand.

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
from orthocl.tangents.blocks import Factored

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
        """A, A^T, D, D^T in the type of the weights: the stored tensors themselves, or temporary conversions."""
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
        if self.block.bias:
            return torch.addmm(self._one, x, inputs_t)
        return torch.mm(x, inputs_t)

    def _cached(self, x: Tensor, index: Tensor) -> Tensor:
        if self.cache is None or len(index) != len(x):
            raise TrainingError(f"the batch has {len(x)} samples, but `batch_index` names {len(index)}")
        kernel = torch.index_select(self.cache, 0, index)
        if not self.adapter.checking:
            return kernel
        # One entry is recomputed: enough to notice augmented inputs or the index of another batch.
        truth = float(x[0].dot(self.block.inputs[0].to(self.dtype))) + self.block.bias
        if abs(float(kernel[0, 0]) - truth) > 1e-3 * (1.0 + abs(truth)):
            raise TrainingError(
                "the inputs of this batch are not the cached ones that `batch_index` names: leave "
                "`batch_index` at None for augmented inputs, or cache the inputs that are actually used"
            )
        return kernel

    def add_outputs(self, z: Tensor, kernel: Tensor) -> None:
        """Z += (S * alpha) D, where z = x W^T + b.

        Args:
            z: outputs of the plain layer, changed in place.
            kernel: S.
        """
        alpha, deltas = self.adapter.alpha, self.factors[2]
        if self.block.source is None:
            z.addmm_(kernel * alpha, deltas)
        else:
            z.addmm_(kernel, self.grouped(alpha, deltas))

    def add_gradients(self, dz: Tensor, kernel: Tensor, alpha: Tensor, dx: Tensor | None) -> None:
        """dL/dalpha += sum over the batch of S * E, and dx += (E * alpha) A, where dx = dz W.

        Args:
            dz: derivatives by the outputs.
            kernel: S.
            alpha: as it was in the forward pass.
            dx: derivatives of the plain layer by its inputs, changed in place; None if they are not needed.
        """
        inputs, _, deltas, deltas_t = self.factors
        if self.block.source is None:
            errors = torch.mm(dz, deltas_t)
            self.adapter.gradient.add_((kernel * errors).sum(0))
            if dx is not None:
                dx.addmm_(errors.mul_(alpha), inputs)
        else:
            self.adapter.gradient.add_(self.gather(kernel, dz, deltas))
            if dx is not None:
                dx.addmm_(dz @ self.grouped(alpha, deltas).t(), inputs)

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
        kernel = layer.kernel(x)
        z = x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
        layer.add_outputs(z, kernel)
        ctx.save_for_backward(x, weight, layer.adapter.alpha, kernel)
        ctx.layer = layer
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, alpha, kernel = ctx.saved_tensors
        layer: AdapterLayer = ctx.layer
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            # The graph of the gradient is needed, for its derivatives. They bypass alpha, which the check notices.
            merged = weight + layer.block.combine(alpha)[0].to(weight.dtype)
            return dz @ merged, dz.t() @ x, dz.sum(0) if needs_bias else None, None
        dx = dz @ weight if needs_x else None
        layer.add_gradients(dz, kernel, alpha, dx)
        return dx, dz.t() @ x if needs_weight else None, dz.sum(0) if needs_bias else None, None


class AdaptedLinear(nn.Linear):
    """What `nn.Linear` modules become while an adapter is installed, by changing their class and back.

    Copies, pickles and state dicts are those of an ordinary `nn.Linear` with the merged weights.
    """

    tangent_adapter: Adapter
    tangent_layer: AdapterLayer

    def forward(self, input: Tensor) -> Tensor:
        """The layer with its effective weights."""
        adapter = self.tangent_adapter
        weight, bias = self.weight, self.bias
        if adapter.idle:
            return functional.linear(input, weight, bias)
        if weight.grad is None:  # cleared: the gradients of a skipped batch do not count
            adapter.gradient.zero_()
        kind = input.device.type
        if torch.is_autocast_enabled(kind):  # the adapter computes in the precision of the weights
            with torch.autocast(kind, enabled=False):
                return self._product(input.to(weight.dtype)).to(torch.get_autocast_dtype(kind))
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
        self.tangent_adapter.before_loading()
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
