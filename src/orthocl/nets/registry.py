"""Networks by name, module or file.

Your own network is a function or a class that takes, as far as it needs them,

    input_shape   shape of one sample
    outputs       number of outputs; left out, or None, for a stream with several heads: then return the trunk

and any settings by name, and returns a module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from orthocl.checking import argument_types, check_arguments, check_value, defaults, required_arguments
from orthocl.errors import OrthoclError, SettingsError
from orthocl.nets.heads import MultiHead
from orthocl.nets.modes import evaluating
from orthocl.registry import Registry

Builder = Callable[..., nn.Module]
UNITS = ("hidden", "channels")
"""Settings of the built-in networks that are sizes of layers."""
MOST_UNITS = 10_000_000
GIVEN = ("input_shape", "outputs")
"""Arguments of a network that are not settings: the stream decides them."""


def _net(value: Any, spec: str) -> Builder:
    if isinstance(value, nn.Module):
        raise SettingsError(
            f"{spec} is already a network: give a function that builds one, because every run needs its own"
        )
    if not callable(value):
        raise SettingsError(f"{spec} is not a function or class that builds a network")
    builder: Builder = value
    return builder


NETS: Registry[Builder] = Registry(
    "net",
    {
        "mlp": "orthocl.nets.mlp:MLP",
        "lenet": "orthocl.nets.lenet:LeNet",
        "alexnet-32": "orthocl.nets.alexnet_32:AlexNet32",
        "bird-classifier": "orthocl.nets.bird_classifier:BirdClassifier",
        "minilm-lora": "orthocl.nets.minilm:MiniLM",
        "efficientnet-lite0": "orthocl.nets.efficientnet_lite:EfficientNetLite0",
    },
    _net,
)


def net_defaults(spec: str) -> dict[str, Any]:
    """The settings of a network with their defaults."""
    return defaults(NETS[spec], besides=GIVEN)


def check_net_settings(spec: str, settings: Mapping[str, Any]) -> None:
    """Reject settings that a network does not have, of the wrong type, or, of ours, out of range."""
    check_arguments(NETS[spec], settings, f"setting of net {spec!r}", besides=GIVEN)
    if spec not in NETS:
        return
    for name in UNITS:
        value = settings.get(name, 1)
        for number in value if isinstance(value, Sequence) else [value]:
            check_value(f"setting of net {spec!r}: each of {name}", number, int, 1, MOST_UNITS)
        if isinstance(value, Sequence) and not value:
            raise SettingsError(
                f"setting of net {spec!r}: {name} must have at least one layer, got {value!r}"
            )
    check_value(f"setting of net {spec!r}: dropout", settings.get("dropout", 0.0), float, 0, 1)


def make_net(
    spec: str,
    input_shape: Sequence[int],
    heads: Mapping[str, int],
    settings: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
) -> nn.Module:
    """A network for a stream: with its single output layer, or as the trunk of a `MultiHead` for several heads.

    Args:
        spec: one of `NETS`, "package.module:Object" or "file.py:Object".
        input_shape: shape of one sample.
        heads: head name -> outputs.
        settings: arguments of the network, such as {"hidden": [100, 100]}.
        seed: seed of the initial weights, which leaves the global random state alone. By default they are drawn from
            torch's global generator, as the weights of any module are.

    >>> type(make_net("mlp", (4,), {"1": 2, "2": 2}, {"hidden": [8]})).__name__
    'MultiHead'
    """
    builder, settings = NETS[spec], dict(settings or {})
    check_net_settings(spec, settings)
    if seed is None:
        return _built(builder, spec, input_shape, heads, settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _built(builder, spec, input_shape, heads, settings)


def build_net(spec: str) -> nn.Module:
    """The network that a function or class of somebody's own builds without arguments."""
    builder = NETS[spec]
    missing = required_arguments(builder)
    if missing:
        raise SettingsError(
            f"{spec} needs a value for {missing[0]!r}: name a function that builds the model without arguments"
        )
    return _called(builder, spec, {})


def _called(builder: Builder, spec: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        net = builder(**arguments)
    except OrthoclError:
        raise
    except Exception as error:
        if spec in NETS:
            raise
        raise SettingsError(f"net {spec} failed: {type(error).__name__}: {error}") from error
    if not isinstance(net, nn.Module):
        raise SettingsError(f"net {spec} returned a {type(net).__name__}, not a torch module")
    return net


def _built(
    builder: Builder,
    spec: str,
    input_shape: Sequence[int],
    heads: Mapping[str, int],
    settings: dict[str, Any],
) -> nn.Module:
    takes = argument_types(builder)
    arguments = {**settings, **({"input_shape": tuple(input_shape)} if "input_shape" in takes else {})}
    single = len(heads) == 1
    if single and "outputs" in takes:
        arguments["outputs"] = next(iter(heads.values()))
    _check_complete(builder, spec, arguments, single)
    net = _called(builder, spec, arguments)
    if single:
        if spec not in NETS:
            _check_outputs(net, spec, input_shape, next(iter(heads.values())))
        return net
    if not isinstance(getattr(net, "features", None), int):
        features = _output_size(net, input_shape)
        if features is not None:
            net.features = features  # type: ignore[assignment]
    return MultiHead(net, heads)


def _check_complete(builder: Builder, spec: str, arguments: Mapping[str, Any], single: bool) -> None:
    for name in required_arguments(builder):
        if name in arguments:
            continue
        if name == "outputs" and not single:
            raise SettingsError(
                f"net {spec} needs `outputs`, but this stream has several heads, which are put on a trunk: give "
                "`outputs` the default None and return the features in that case"
            )
        raise SettingsError(f"net {spec} needs a value for {name!r}: set net.{name}")


def _check_outputs(net: nn.Module, spec: str, input_shape: Sequence[int], outputs: int) -> None:
    size = _output_size(net, input_shape)
    if size is not None and size < outputs:
        raise SettingsError(
            f"net {spec} returns {size} outputs for each sample, the stream needs {outputs}: take the argument "
            "`outputs` and use it as the size of the last layer"
        )


def _output_size(net: nn.Module, input_shape: Sequence[int]) -> int | None:
    """Outputs per sample, or None where a trial with zeros does not show it."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(net):
            outputs = net(torch.zeros(2, *input_shape))
    except Exception:  # a network may want integers, or anything else: training will report it
        return None
    plain = isinstance(outputs, torch.Tensor) and outputs.dim() == 2 and len(outputs) == 2
    return int(outputs.shape[1]) if plain else None
