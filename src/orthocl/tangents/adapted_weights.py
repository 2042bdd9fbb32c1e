"""Tangents in the space of the weights that adapters adapt, and those of any adapter derived from them without data.

A low-rank adapter makes a linear layer with weight W one with weight W(t) = W + s B A, for its parameters t = (A, B).
If G is the tangent of a remembered output with respect to the layer's whole weight, its tangent with respect to the
adapter is, by the chain rule, the product of G with dW/dt: s B^T G for A, s G A^T for B. G outlives the adapter: it
is the same after the adapter is merged, and gives the tangents of the next one.

What an adapter is does not matter: its layer maps inputs linearly, so that the layer's answers to the unit vectors are
its whole weight, and autograd differentiates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from orthocl.errors import UnsupportedError
from orthocl.nets.inputs import Inputs, Targets
from orthocl.nets.modes import evaluating, without_autocast
from orthocl.tangents.collect import collect
from orthocl.tangents.compress import Compression
from orthocl.tangents.remembering import Remembering
from orthocl.tangents.tangents import Tangents

WRAPPERS = ("base_model.model.",)
"""Parts of names that a library adds when it wraps a model, and takes away when it merges the adapters."""
CHUNK = 2**24
"""Numbers of whole gradients that are held at once."""


def lasting_name(name: str) -> str:
    """The name of a layer, whether its model is wrapped or not.

    >>> lasting_name("trunk.base_model.model.encoder.query")
    'trunk.encoder.query'
    """
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def adapted_layers(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], layers: Sequence[str] = ()
) -> dict[str, nn.Module]:
    """Layers whose whole weights are remembered: those that carry adapters, and those that are named.

    Args:
        model: the model.
        parameters: the protected parameters, among them those of the adapters.
        layers: last parts of the names of further linear layers, which later adapters may adapt.
    """
    modules = dict(model.named_modules())
    own = {id(parameter) for parameter in parameters.values()}
    found: dict[str, nn.Module] = {}
    with evaluating(model), without_autocast(), torch.no_grad():
        for name in parameters:
            parts = name.split(".")[:-1]
            for length in range(len(parts), 0, -1):  # from the parameter's owner outwards
                owner = ".".join(parts[:length])
                if owner in found or _adapts(modules[owner], owner, own):
                    found[owner] = modules[owner]
                    break
    for name, module in modules.items():
        inside = any(name.startswith(f"{owner}.") for owner in found)
        named = isinstance(module, nn.Linear) and name.rpartition(".")[2] in layers
        if named and name not in found and not inside:
            found[name] = module
    return found


def _adapts(module: nn.Module, name: str, own: set[int]) -> bool:
    """Whether a module holds a frozen matrix besides trained parameters, and maps its inputs linearly."""
    if isinstance(module, nn.ModuleDict | nn.ModuleList):
        return False
    if not any(id(p) not in own and p.dim() == 2 for p in module.parameters()):
        return False
    try:
        whole_weight(module, name)
    except UnsupportedError:
        return False
    return True


def whole_weight(module: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    """Weight (outputs, inputs) and bias of what a layer computes, adapters included, differentiable."""
    base = next(p for p in module.parameters() if p.dim() == 2)
    inputs = getattr(module, "in_features", None) or next(
        (m.in_features for m in module.modules() if isinstance(m, nn.Linear)), base.shape[1]
    )
    try:
        bias = module(base.new_zeros(1, int(inputs)))
        weight = (module(torch.eye(int(inputs), dtype=base.dtype, device=base.device)) - bias).t()
        trial = torch.linspace(-1, 1, int(inputs), dtype=base.dtype, device=base.device)[None]
        difference = (module(trial) - trial @ weight.t() - bias).detach().norm()
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UnsupportedError(f"layer {name!r} cannot be called with a batch of vectors: {error}") from error
    if not float(difference) <= 1e-3 * float(bias.detach().norm() + weight.detach().norm()):
        raise UnsupportedError(
            f"layer {name!r} does not map its inputs linearly, so that it has no whole weight to remember: adapt "
            "linear layers"
        )
    return weight, bias[0]


@contextmanager
def merged(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[dict[str, nn.Parameter]]:
    """Plain linear layers in the place of adapted ones, the same outputs; yields their weights by lasting name."""
    with evaluating(model), without_autocast(), torch.no_grad():
        plain = {name: _plain(*whole_weight(module, name)) for name, module in layers.items()}
    weights = {lasting_name(name): cast(nn.Parameter, module.weight) for name, module in plain.items()}
    try:
        for name, module in plain.items():
            _place(model, name, module)
        yield weights
    finally:
        for name, original in layers.items():
            _place(model, name, original)


def _plain(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype, device=weight.device)
    layer.weight = nn.Parameter(weight.detach().clone())
    layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer


def _place(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, last, module)


def collect_whole(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets,
    *,
    parameters: Mapping[str, nn.Parameter],
    layers: Mapping[str, nn.Module],
    remember: Remembering,
    compression: Compression | None = None,
    earlier: Tangents | None = None,
) -> Tangents:
    """Tangents with respect to whole weights, and to those protected parameters that belong to no adapted layer."""
    inside = {id(p) for module in layers.values() for p in module.parameters()}
    others = {lasting_name(name): p for name, p in parameters.items() if id(p) not in inside}
    with merged(model, layers) as weights:
        return collect(
            model,
            inputs,
            targets,
            parameters=dict(sorted({**weights, **others}.items())),
            variant=remember.variant,
            outputs=remember.outputs,
            tokens=remember.tokens,
            compression=compression,
            earlier=earlier,
        )


def derived(
    model: nn.Module,
    stored: Tangents,
    parameters: Mapping[str, nn.Parameter],
    layers: Mapping[str, nn.Module],
) -> Tangents:
    """The stored tangents with respect to the adapters as they are now, without data."""
    rows = {
        name: parameter.new_zeros(stored.rows, *parameter.shape) for name, parameter in parameters.items()
    }
    names = {id(parameter): name for name, parameter in parameters.items()}
    blocks = {name: (block, place) for block in stored.blocks for place, name in enumerate(block.names)}
    missing = [name for name in layers if lasting_name(name) not in blocks]
    if missing:
        raise UnsupportedError(
            f"layer {missing[0]!r} carries an adapter now and carried none when earlier tasks ended, so that nothing "
            "is known about it: name all layers that any task will adapt with layers=[...]"
        )
    for name, module in layers.items():
        own = [p for p in module.parameters() if id(p) in names]
        if own:
            with evaluating(model), without_autocast(), torch.enable_grad():
                weight = whole_weight(module, name)[0]
            for part, whole in _wholes(stored, lasting_name(name), weight):
                found = torch.autograd.grad(
                    weight, own, whole, is_grads_batched=True, retain_graph=True, allow_unused=True
                )
                for parameter, gradient in zip(own, found, strict=True):
                    if gradient is not None:
                        rows[names[id(parameter)]][part] = gradient
    inside = {id(p) for module in layers.values() for p in module.parameters()}
    for name, parameter in parameters.items():
        if id(parameter) not in inside:
            for part, whole in _wholes(stored, lasting_name(name), parameter):
                rows[name][part] = whole
    return Tangents.explicit(parameters, list(rows.values()))


def _wholes(stored: Tangents, name: str, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Stored tangents of one weight as they are, a few rows at a time."""
    block = next((block for block in stored.blocks if name in block.names), None)
    if block is None:
        raise UnsupportedError(
            f"nothing is known about the parameter {name!r}, which was not trained when earlier tasks ended: train the "
            "same parameters beside the adapters in every task"
        )
    place = block.names.index(name)
    sizes = [int(torch.Size(shape).numel()) for shape in block.shapes]
    step = max(1, CHUNK // sum(sizes))
    for start in range(0, stored.rows, step):
        part = slice(start, min(start + step, stored.rows))
        dense = block.select(torch.arange(part.start, part.stop)).dense()
        whole = dense.split(sizes, 1)[place]
        yield part, whole.reshape(-1, *block.shapes[place]).to(like)
