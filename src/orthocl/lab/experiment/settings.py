"""RunSettings: everything that determines the result of one run, and the run's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from inspect import Parameter, signature
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from orthocl.errors import SettingsError, unknown_name
from orthocl.methods import METHODS, make_method
from orthocl.nets import NETS
from orthocl.streams import STREAMS
from orthocl.training import TrainSettings

CODE_VERSION = 3
"""Part of every run's identity: raise it when a change of the code changes results for the same settings."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class StreamSettings:
    """A stream by name. `tasks` and the entries of `options` left out are the stream's own defaults.

    Args:
        name: registry name, such as "rotated-mnist".
        tasks: number of tasks.
        seed: seed of the data, apart from the seed of the run.
        train_size: training samples per task; all by default.
        test_size: test samples per task; all by default.
        options: further settings of this stream, such as {"step": 10.0}.
    """

    name: str
    tasks: int | None = None
    seed: int = 0
    train_size: int | None = None
    test_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(canonical(asdict(self)))


@dataclass(frozen=True)
class NetSettings:
    """A network by name, with its settings such as {"hidden": [100, 100]}."""

    name: str = "mlp"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(canonical(asdict(self)))


@dataclass(frozen=True)
class MethodSettings:
    """A method by its registry name, with its hyperparameters."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(canonical(asdict(self)))


@dataclass(frozen=True)
class RunSettings:
    """One run: a method on a stream with a network, a way to train and a seed.

    Labels are what tables call the stream and the method; they are no part of the identity.

    >>> run = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("ogd"), seed=1)
    >>> run.resolved().stream.tasks, run.resolved().method.settings["memory_per_task"]
    (15, 100)
    >>> RunSettings.from_dict(run.to_dict()) == run
    True
    """

    stream: StreamSettings
    method: MethodSettings
    net: NetSettings = field(default_factory=NetSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    seed: int = 0
    stream_label: str = field(default="", compare=False)
    method_label: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """One line for people: stream, method and seed."""
        return f"{self.stream_label or self.stream.name} / {self.method_label or self.method.name} / seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, without the labels."""
        values = asdict(self)
        del values["stream_label"], values["method_label"]
        loaded: dict[str, Any] = json.loads(canonical(values))
        return loaded

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        """From what `to_dict` gave; unknown keys and values of the wrong type are errors."""
        known = ("stream", "method", "net", "train", "seed", "stream_label", "method_label")
        for key in values:
            if key not in known:
                raise unknown_name("run setting", key, known)
        missing = [key for key in ("stream", "method") if key not in values]
        if missing:
            raise SettingsError(f"a run needs a {missing[0]}: give its name")
        return cls(
            checked(StreamSettings, values["stream"], "stream setting"),
            checked(MethodSettings, values["method"], "method setting"),
            checked(NetSettings, values.get("net", {}), "net setting"),
            checked(TrainSettings, values.get("train", {}), "train setting"),
            _integer("seed", values.get("seed", 0)),
            str(values.get("stream_label", "")),
            str(values.get("method_label", "")),
        )

    def resolved(self) -> RunSettings:
        """The same run with every default spelled out; names and values are checked on the way."""
        if self.stream.name not in STREAMS:
            raise unknown_name("stream", self.stream.name, STREAMS)
        maker = STREAMS[self.stream.name]
        for key in self.stream.options:
            if key not in maker.options:
                raise unknown_name(f"setting of stream {self.stream.name!r}", key, maker.options)
        stream = replace(
            self.stream,
            tasks=maker.tasks if self.stream.tasks is None else self.stream.tasks,
            options={**maker.options, **self.stream.options},
        )
        method = MethodSettings(
            self.method.name, make_method(self.method.name, dict(self.method.settings)).settings()
        )
        net = NetSettings(self.net.name, {**net_defaults(self.net.name), **self.net.settings})
        for key in self.net.settings:
            if key not in net_defaults(self.net.name):
                raise unknown_name(f"setting of net {self.net.name!r}", key, net_defaults(self.net.name))
        return RunSettings.from_dict(
            replace(self, stream=stream, method=method, net=net).to_dict()
            | {"stream_label": self.stream_label, "method_label": self.method_label}
        )

    def without_seed(self) -> str:
        """Key of the group of runs that differ only in their seed."""
        values = {key: value for key, value in self.resolved().to_dict().items() if key != "seed"}
        return canonical(whole_numbers(values))


def run_id(settings: RunSettings, fingerprint: str) -> str:
    """Identity of a run: hash of its resolved settings, of the stream's data and of `CODE_VERSION`."""
    values = settings.resolved().to_dict()
    for item in fields(METHODS[settings.method.name]):
        chosen = values["method"]["settings"]
        if item.metadata.get("later") and chosen.get(item.name) == item.default:
            del chosen[item.name]
    content = {"settings": values, "stream": fingerprint, "code": CODE_VERSION}
    return hashlib.sha256(canonical(whole_numbers(content)).encode()).hexdigest()[:16]


def net_defaults(name: str) -> dict[str, Any]:
    """The settings of a network with their defaults."""
    if name not in NETS:
        raise unknown_name("net", name, NETS)
    return {
        key: parameter.default
        for key, parameter in signature(NETS[name]).parameters.items()
        if key not in ("input_shape", "outputs") and parameter.default is not Parameter.empty
    }


def method_fields(name: str) -> list[str]:
    """Names of the hyperparameters of a method."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return [item.name for item in fields(METHODS[name]) if item.init]


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def whole_numbers(value: Any) -> Any:
    """Floats without a fraction as integers, so that 100 and 100.0 in a file are the same setting."""
    if isinstance(value, Mapping):
        return {key: whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def checked(kind: type[Made], values: Mapping[str, Any], what: str) -> Made:
    """A dataclass from a mapping, with names and types checked.

    >>> checked(TrainSettings, {"epochs": "3"}, "train setting")
    Traceback (most recent call last):
    orthocl.errors.SettingsError: train setting epochs must be int, got '3'
    """
    if not isinstance(values, Mapping):
        raise SettingsError(f"expected a table of {what}s, got {values!r}")
    hints = _hints(kind)  # type: ignore[arg-type]  # every class is hashable
    for key, value in values.items():
        if key not in hints:
            raise unknown_name(what, key, hints)
        _check_type(f"{what} {key}", value, hints[key])
    try:
        return kind(**values)
    except TypeError as error:
        raise SettingsError(f"incomplete {what}s: {error}") from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Hints are text until they are looked at, which takes a while when it is done for every run of a large grid."""
    return get_type_hints(kind)


def _check_type(what: str, value: Any, hint: Any) -> None:
    options = get_args(hint) if get_origin(hint) not in (Literal, None, Mapping) else (hint,)
    literals = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    kinds: list[type] = [option for option in options if isinstance(option, type)]
    if any(get_origin(option) not in (Literal, None) for option in options) and isinstance(value, Mapping):
        return
    if isinstance(value, bool):
        accepted = bool in kinds
    else:
        accepted = (
            value in literals
            or isinstance(value, tuple(kinds))
            or (float in kinds and isinstance(value, int))
        )
    if not accepted:
        names = [repr(choice) for choice in literals] + [
            kind.__name__.replace("NoneType", "None") for kind in kinds
        ]
        raise SettingsError(f"{what} must be {' or '.join(names) or 'a table'}, got {value!r}")


def _integer(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(f"{what} must be int, got {value!r}")
    return value
