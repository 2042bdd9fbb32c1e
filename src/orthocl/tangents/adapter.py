"""The tangent adapter: OGD's projection at the cost of a low-rank adapter.

Paper: Algorithm 1, the projected update; this is the same trajectory, written differently.

Within a task the projector I - G^T K^-1 G is fixed. A step of OGD is w <- w - lr (g - G^T K^-1 G g). Write
w = u + G^T alpha: then u takes plain steps (the optimizer's own), and alpha <- alpha + lr K^-1 (G g), where
G g is dL/dalpha, which the backward pass gives for free. At the end alpha is merged into the weights.

Linear layers whose tangents are factored carry the adapter (see `adapted`); every other block is moved directly:
its share of G g is computed from the weights' gradients, and G^T of the step in alpha is added to the weights at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from orthocl.errors import SettingsError, StoreError, TrainingError
from orthocl.streams.base import Split
from orthocl.tangents.adapter_layer import AdapterLayer, install, uninstall
from orthocl.tangents.blocks import Block, Factored
from orthocl.tangents.costs import step_of
from orthocl.tangents.input_cache import fill_caches
from orthocl.tangents.last_layer import OneOutputRows
from orthocl.tangents.packed_symmetric import SymmetricMatrix
from orthocl.tangents.subspace import Subspace
from orthocl.tangents.tangents import Tangents, norm

# A float32 inverse of K is used while its rounding, eps x condition, stays under this.
ROUNDING_OF_INVERSE = 1e-2
# Steps after which alpha is merged and the weights are re-anchored, so that rounding cannot accumulate.
ANCHOR_EVERY = 1000
# Steps between two checks that all of the loss's gradient came through the adapted layers, and rows compared.
CHECK_EVERY = 50
CHECKED_ROWS = 8


class Adapter:
    """OGD within one task: plain steps on the weights, and one vector alpha that undoes their protected part.

    Install it when a task begins and call `step` after every `optimizer.step()`, before the gradients are
    cleared. The optimizer must be plain SGD, with or without momentum, with one learning rate for all
    protected parameters; after `continue_from` it may hold momentum from earlier tasks. All of the loss must
    reach the protected weights through their layers' forward passes, and their gradients must not be changed
    (clipped, penalized) after the backward pass: every few steps this is checked.

    While it is installed, the parameters of an adapted layer lack its share of alpha until `merge`; `model(x)`,
    `state_dict`, copies and pickles are right at all times.

    Args:
        model: the network.
        subspace: what to protect; must not change while the adapter is installed.
        parameters: the protected parameters, as given to the subspace.
        batch_size: samples per step, for the choice between adapting a layer and moving it directly.
        anchor: the weights at the start of the task, if they are kept elsewhere already.

    >>> from orthocl.nets import MLP
    >>> from orthocl.tangents import collect
    >>> model = MLP((4,), hidden=(8,), outputs=3)
    >>> parameters = dict(model.named_parameters())
    >>> subspace = Subspace(parameters)
    >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> _ = subspace.append(collect(model, x, y, parameters=parameters), owner=1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> before = [p.detach().clone() for p in parameters.values()]
    >>> adapter = Adapter(model, subspace, parameters)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(6, 4)).square().mean().backward()
    ...     optimizer.step()
    ...     adapter.step(learning_rate=0.1)
    >>> adapter.remove()
    >>> subspace.leak([p - q for p, q in zip(parameters.values(), before)]) < 1e-4
    True
    """

    def __init__(
        self,
        model: nn.Module,
        subspace: Subspace,
        parameters: Mapping[str, nn.Parameter],
        *,
        batch_size: int = 32,
        anchor: Sequence[Tensor] | None = None,
    ):
        if tuple(parameters) != subspace.names:
            raise SettingsError("the adapter's parameters must be those of the subspace, in the same order")
        self.model, self.subspace, self.parameters = model, subspace, list(parameters.values())
        first = self.parameters[0]
        self.tangents: Tangents | None = subspace.tangents
        self.alpha = torch.zeros(subspace.size, dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros_like(self.alpha)  # dL/dalpha of the adapted layers since the last step
        self.velocity: Tensor | None = None
        self.batch_index: Tensor | None = None
        self.idle = False
        self.raw: dict[
            int, Tensor
        ] = {}  # weights without the adapter's share, while the layers hold whole ones
        self.layers: list[AdapterLayer] = []
        self.direct: list[tuple[Block | OneOutputRows, list[nn.Parameter]]] = []
        self._steps = self._since_merge = 0
        self._anchor = list(anchor) if anchor is not None else [p.detach().clone() for p in self.parameters]
        self._inverse = SymmetricMatrix(self._inverse_matrix())
        if self._inverse.dtype == self.alpha.dtype:
            self.gradient = self._inverse.vector  # so that the product needs no copy
        self._install(parameters, batch_size)
        self._checked = torch.linspace(0, max(0, subspace.size - 1), min(CHECKED_ROWS, subspace.size)).long()

    # ---- installing

    def _inverse_matrix(self) -> Tensor:
        inverse = self.subspace.inverse().to(self.alpha.device)
        if self.alpha.dtype == torch.float64 or not len(inverse):
            return inverse.to(self.alpha.dtype)
        # An estimate of the condition of K from both diagonals; it only decides how to round.
        condition = self.subspace.largest * float(inverse.diagonal().max())
        rounding = torch.finfo(torch.float32).eps * condition
        return inverse.float() if rounding < ROUNDING_OF_INVERSE else inverse

    def _install(self, parameters: Mapping[str, nn.Parameter], batch_size: int) -> None:
        if self.tangents is None:
            return
        owners = {
            id(weight): module for module in self.model.modules() for weight in module.parameters(False)
        }
        for block in self.tangents.blocks:
            module = owners.get(id(parameters[block.names[0]]))
            own = [parameters[name] for name in block.names]
            way, sorted_rows = step_of(block, module, batch_size, self.alpha.dtype)
            if way == "adapter" and isinstance(module, nn.Linear) and isinstance(block, Factored):
                self.layers.append(install(self, module, block))
            elif isinstance(block, Factored):
                self.direct.append((sorted_rows or block.by_columns(), own))
            else:
                self.direct.append((block, own))

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides those of the subspace: inverse, alpha, starting weights, cached kernels."""
        tensors = [self.alpha, self.gradient, *self._anchor]
        tensors += [] if self.velocity is None else [self.velocity]
        tensors += [block.deltas for block, _ in self.direct if isinstance(block, Factored)]
        own = sum(t.numel() * t.element_size() for t in tensors)
        own += sum(block.nbytes for block, _ in self.direct if isinstance(block, OneOutputRows))
        return own + self._inverse.nbytes + self._cache_size(on_disk=False)

    @property
    def cached_bytes(self) -> int:
        """Bytes of the cached input kernel, in memory or on disk."""
        return self._cache_size(on_disk=False) + self.disk_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of it on disk."""
        return self._cache_size(on_disk=True)

    def _cache_size(self, on_disk: bool) -> int:
        caches = [layer.cache for layer in self.layers if layer.cache_on_disk is on_disk]
        return sum(cache.numel() * cache.element_size() for cache in caches if cache is not None)

    def cache_inputs(
        self, inputs: Split | Tensor, budget: int | None = None, scratch: Path | None = None
    ) -> int:
        """Compute the first layer's kernel with all inputs of the task once, to be looked up by `batch_index`.

        Applies to adapted layers whose input is the model's input itself (flattened). Set `batch_index`
        to the positions of the batch's samples before each forward pass that may use the cache.

        Args:
            inputs: all training inputs of the task, in the order that `batch_index` counts.
            budget: bytes that the cache may take; None for no limit.
            scratch: a folder: the cache is then a file there, not in memory. It is deleted with the adapter.

        Returns:
            Bytes taken: 0 if no layer qualifies or the budget is too small.
        """
        fill_caches(self.model, self.layers, inputs, budget, scratch)
        return self.cached_bytes

    # ---- training

    @torch.no_grad()
    def step(
        self, learning_rate: float, momentum: float = 0.0, nesterov: bool = False, dampening: float = 0.0
    ) -> None:
        """Undo the protected part of the step that the optimizer has just taken, with the optimizer's settings."""
        if self.tangents is None:
            return
        self._since_merge += 1  # before the check: if it fails, `merge` still has this step to repair
        if self.checking:
            self._check()
        self._steps += 1
        for block, own in self.direct:
            if any(parameter.grad is not None for parameter in own):
                self.gradient.add_(block.coefficients([_gradient(parameter) for parameter in own]))
        change = self._solve()
        if momentum:
            if self.velocity is None:
                self.velocity = change.clone()
            else:
                self.velocity.mul_(momentum).add_(change, alpha=1 - dampening)
            change = change.add_(self.velocity, alpha=momentum) if nesterov else self.velocity
        self.alpha.add_(change, alpha=learning_rate)
        for block, own in self.direct:
            block.add_combination(change, own, learning_rate)
        self.gradient.zero_()
        if self._since_merge >= ANCHOR_EVERY:
            self.merge()

    def _solve(self) -> Tensor:
        """K^-1 dL/dalpha, in the inverse's buffer where the types agree."""
        if self.gradient is self._inverse.vector:
            return self._inverse.product()
        return (self._inverse @ self.gradient).to(self.alpha.dtype)

    @property
    def checking(self) -> bool:
        """Whether this step is one of those that are verified."""
        return self._steps < 3 or self._steps % CHECK_EVERY == 0

    def _check(self) -> None:
        """Compare a few rows of dL/dalpha with G g: equal if the adapter saw all of the gradient."""
        checked = self._checked
        if all(parameter.grad is None for parameter in self.parameters):
            raise TrainingError("no gradients: call the adapter's step before the gradients are cleared")
        seen = self.gradient[checked].double()
        truth, squares, size = torch.zeros_like(seen), torch.zeros_like(seen), 0.0
        for layer in self.layers:
            rows = layer.block.select(checked)
            gradient = [_gradient(own) for own in self._own(layer)]
            truth += rows.coefficients(gradient)
            squares += rows.gram(rows).diagonal()
            size += float(norm(gradient)) ** 2
        if bool(((seen - truth).abs() > 1e-4 * (squares * size).sqrt()).any()):
            raise TrainingError(
                "the gradients of the protected weights are not what their layers' backward passes gave: they "
                "were clipped, penalized, accumulated or computed past the layers. The tangent adapter is "
                "exact only without such changes: project the updates instead"
            )

    @staticmethod
    def _own(layer: AdapterLayer) -> list[Tensor]:
        """The protected parameters of an adapted layer."""
        return [layer.module.weight, layer.module.bias][: len(layer.block.names)]

    def zero_grad(self) -> None:
        """Discard the gradients since the last step, as when a batch is skipped."""
        self.gradient.zero_()

    @torch.no_grad()
    def merge(self) -> None:
        """Fold alpha into the weights and remove what rounding has let into the protected span.

        Exact at any time, and training continues unaffected.
        """
        if self.tangents is None or self._since_merge == 0:
            return
        for layer in self.layers:
            layer.block.add_combination(self.alpha, self._own(layer))
        self.alpha.zero_()
        self._since_merge = 0
        displacement = [
            now.double() - then.double() for now, then in zip(self.parameters, self._anchor, strict=True)
        ]
        leaked = self.subspace.solve(self.tangents.coefficients(displacement))
        torch._foreach_add_(
            cast(list[Tensor], self.parameters), self.tangents.combine(-leaked.to(self.alpha.dtype))
        )

    def pause(self) -> bool:
        """Merge and deactivate: layers compute plainly until `resume`, which takes the value returned here."""
        before, self.idle = self.idle, True
        self.merge()
        return before

    def resume(self, before: bool) -> None:
        """Undo a `pause`."""
        self.idle = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A `with` block without the adapter: gradients inside it do not count."""
        before = self.pause()
        try:
            yield
        finally:
            self.resume(before)

    @contextmanager
    def complete(self) -> Iterator[None]:
        """A `with` block with whole weights and plain layers; afterwards everything is as before, to the bit.

        For looking at the network in the middle of a task: with many samples this is cheaper than the adapter's own
        products, and unlike `merge` it leaves no trace, not even by rounding.
        """
        if self.tangents is None or self.idle:
            yield
            return
        own = [parameter for layer in self.layers for parameter in self._own(layer)]
        raw = [parameter.detach().clone() for parameter in own]
        self.raw = {id(parameter): before for parameter, before in zip(own, raw, strict=True)}
        self.idle = True
        try:
            with torch.no_grad():
                for layer in self.layers:
                    layer.block.add_combination(self.alpha, self._own(layer))
            yield
        finally:
            self.idle, self.raw = False, {}
            with torch.no_grad():
                for parameter, before in zip(own, raw, strict=True):
                    parameter.copy_(before)

    def before_loading(self) -> None:
        """New weights are about to be loaded: the next merge projects what they have moved since the task began."""
        self.merge()
        self._since_merge = 1

    @torch.no_grad()
    def continue_from(self, momentum: Sequence[Tensor]) -> None:
        """Take over the momentum that earlier tasks have left in the optimizer, whose protected part must not act."""
        if self.tangents is not None:
            inner = self.tangents.coefficients([part.double() for part in momentum])
            self.velocity = self.subspace.solve(inner).to(self.alpha.dtype)

    def remove(self) -> None:
        """Merge, and restore the model's own layers."""
        self.merge()
        for layer in self.layers:
            uninstall(layer.module)
        self.layers, self.direct, self.tangents = [], [], None

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint in the middle of a task needs besides the raw weights, optimizer and subspace.

        Nothing is merged, so that a run does not depend on when it was saved: save the model's parameters as they
        are (`named_parameters`), not its `state_dict`, which has alpha merged into it.
        """
        return {
            "alpha": self.alpha.clone(),
            "velocity": None if self.velocity is None else self.velocity.clone(),
            "steps": self._steps,
            "since_merge": self._since_merge,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Resume from a checkpoint, with raw weights, anchor and subspace already restored."""
        alpha, velocity = state["alpha"], state["velocity"]
        if not isinstance(alpha, Tensor) or alpha.shape != self.alpha.shape:
            raise StoreError("the saved adapter belongs to another memory than this one")
        self.velocity = velocity.clone() if isinstance(velocity, Tensor) else None
        self.alpha.copy_(alpha)
        self.gradient.zero_()
        self._steps, self._since_merge = int(str(state["steps"])), int(str(state["since_merge"]))


@contextmanager
def complete_weights(model: nn.Module) -> Iterator[None]:
    """A `with` block in which the layers of a model compute plainly, whatever adapters it carries: see `complete`."""
    with ExitStack() as stack:
        for adapter in _adapters_on(model):
            stack.enter_context(adapter.complete())
        yield


def raw_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters as the optimizer moves them, without the share that adapters keep: for checkpoints."""
    raw = {key: tensor for adapter in _adapters_on(model) for key, tensor in adapter.raw.items()}
    return {name: raw.get(id(parameter), parameter) for name, parameter in model.named_parameters()}


def _adapters_on(model: nn.Module) -> list[Adapter]:
    carried = (module.__dict__.get("tangent_adapter") for module in model.modules())
    return list({id(one): one for one in carried if one is not None}.values())


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
