"""RunSettings: everything that determines the result of one run, and the run's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any

from orthocl.checking import check_names, check_value, make_checked
from orthocl.errors import SettingsError
from orthocl.methods import METHODS, make_method
from orthocl.nets.registry import NETS, check_net_settings, net_defaults
from orthocl.registry import Part, recorded_name
from orthocl.streams import DATASETS, STREAMS, Stream
from orthocl.training import TrainSettings
from orthocl.training.losses import LOSSES

CODE_VERSION = 3
"""Part of every run's identity: raise it when a change of the code changes results for the same settings."""

ACCEPTED_VERSIONS = frozenset({3})
"""Versions of the code whose records count as evidence: their results differ from today's by rounding at most."""

ID_LENGTH = 16
"""Hexadecimal digits of a run's id."""

PATHS = ("folder", "arrays")
"""Streams of files, and the option of the same name that says where they are."""


@dataclass(frozen=True)
class StreamSettings:
    """A stream by its spec. `tasks` and the entries of `options` left out are the stream's own defaults.

    Args:
        name: such as "rotated-mnist", "folder" or "my_data.py:make".
        tasks: number of tasks.
        seed: seed of the data, apart from the seed of the run.
        train_size: training samples per task; all by default.
        test_size: test samples per task; all by default.
        options: further settings of this stream, such as {"step": 10.0}.
        source: hash of the source of a stream that is not built in.
    """

    name: str
    tasks: int | None = None
    seed: int = 0
    train_size: int | None = None
    test_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __hash__(self) -> int:
        return hash(canonical(asdict(self)))

    @classmethod
    def of(cls, stream: Stream) -> StreamSettings:
        """The settings of a stream that was made elsewhere: the record's `stream` describes its contents."""
        return cls(stream.name, len(stream))

    def resolved(self) -> StreamSettings:
        """The same stream with every default spelled out; names and values are checked on the way."""
        part = STREAMS.find(self.name)
        common = {key: getattr(self, key) for key in ("tasks", "train_size", "test_size")}
        part.value.check(self.name, self.options, common)
        return replace(
            self,
            name=part.spec or self.name,
            tasks=part.value.tasks if self.tasks is None else self.tasks,
            options={**part.value.options, **self.options},
            source=_unchanged(part, self.source),
        )


@dataclass(frozen=True)
class NetSettings:
    """A network by its spec, with its settings such as {"hidden": [100, 100]}."""

    name: str = "mlp"
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __hash__(self) -> int:
        return hash(canonical(asdict(self)))


@dataclass(frozen=True)
class MethodSettings:
    """A method by its spec, with its hyperparameters."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __hash__(self) -> int:
        return hash(canonical(asdict(self)))


@dataclass(frozen=True)
class RunSettings:
    """One run: a method on a stream with a network, a way to train and a seed.

    Labels are what tables call the stream and the method; they are not part of the identity.

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
        """As JSON values, without the labels; what is empty, or was added later and is at its default, is left out."""
        values = asdict(self)
        del values["stream_label"], values["method_label"]
        for part in ("stream", "method", "net"):
            if not values[part]["source"]:
                del values[part]["source"]
        for item in fields(TrainSettings):
            if item.metadata.get("later") and values["train"][item.name] == item.default:
                del values["train"][item.name]
        loaded: dict[str, Any] = json.loads(canonical(values))
        return loaded

    def recorded(self) -> dict[str, Any]:
        """What records hold and identities are made of: resolved settings without folders of this machine."""
        values = self.to_dict()
        for part in ("stream", "method", "net"):
            values[part]["name"] = recorded_name(values[part]["name"])
        if "loss" in values["train"]:
            values["train"]["loss"] = recorded_name(values["train"]["loss"])
        options = values["stream"]["options"]
        for key in PATHS:
            if values["stream"]["name"] == key and options.get(key):
                options[key] = PurePath(options[key]).name
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        """From what `to_dict` gave; unknown keys and values of the wrong type are errors."""
        known = ("stream", "method", "net", "train", "seed", "stream_label", "method_label")
        check_names("run setting", values, known)
        missing = [key for key in ("stream", "method") if key not in values]
        if missing:
            raise SettingsError(f"a run needs a {missing[0]}: give its name")
        return cls(
            make_checked(StreamSettings, values["stream"], "stream setting"),
            make_checked(MethodSettings, values["method"], "method setting"),
            make_checked(NetSettings, values.get("net", {}), "net setting"),
            make_checked(TrainSettings, values.get("train", {}), "train setting"),
            _seed(values.get("seed", 0)),
            str(values.get("stream_label", "")),
            str(values.get("method_label", "")),
        )

    def resolved(self, given: Stream | None = None) -> RunSettings:
        """The same run with every default spelled out; names and values are checked on the way.

        Args:
            given: a stream that takes the place of the one named here: the settings then describe that one.
        """
        method, net = METHODS.find(self.method.name), NETS.find(self.net.name)
        loss = LOSSES.find(self.train.loss)
        check_net_settings(self.net.name, whole_numbers(self.net.settings))  # a file may say 16.0 for 16
        return replace(
            self,
            stream=self.stream.resolved() if given is None else StreamSettings.of(given),
            method=MethodSettings(
                method.spec or self.method.name,
                _method_settings(self.method.name, self.method.settings),
                _unchanged(method, self.method.source),
            ),
            net=NetSettings(
                net.spec or self.net.name,
                {**net_defaults(self.net.name), **self.net.settings},
                _unchanged(net, self.net.source),
            ),
            train=replace(
                self.train,
                loss=loss.spec or self.train.loss,
                loss_source=_unchanged(loss, self.train.loss_source),
            ),
        )._as_json()

    def sources(self) -> dict[str, str]:
        """File name -> text of all parts that are not built in."""
        parts: list[Part[Any]] = [METHODS.find(self.method.name), NETS.find(self.net.name)]
        parts.append(LOSSES.find(self.train.loss))
        if self.stream.source:
            parts.append(STREAMS.find(self.stream.name))
        data = self.stream.options.get("data")
        if isinstance(data, str) and data not in DATASETS:
            parts.append(DATASETS.find(data))
        return {name: text for part in parts for name, text in part.sources.items()}

    def _as_json(self) -> RunSettings:
        labels = {"stream_label": self.stream_label, "method_label": self.method_label}
        return RunSettings.from_dict(self.to_dict() | labels)

    def without_seed(self) -> str:
        """Key of the group of runs that differ only in their seed: of resolved settings, such as a record's."""
        values = {key: value for key, value in self.recorded().items() if key != "seed"}
        return canonical(whole_numbers(values))


def _unchanged(part: Part[Any], expected: str) -> str:
    """The hash of a part's source, which must be the expected one if there is one."""
    if expected and part.source != expected:
        raise SettingsError(
            f"the source of {part.name} has changed since this experiment was started: start it again"
        )
    return part.source


def run_id(settings: RunSettings, fingerprint: str) -> str:
    """Identity of a run: hash of its resolved settings, of the stream's data and of `CODE_VERSION`."""
    return identity(settings.resolved(), fingerprint)


def identity(resolved: RunSettings, fingerprint: str) -> str:
    """Identity of a run whose settings are resolved already."""
    return recorded_identity(resolved.recorded(), fingerprint, CODE_VERSION)


def recorded_identity(settings: Mapping[str, Any], fingerprint: str, code: int) -> str:
    """Identity of a run from what its record holds, as JSON values, also of other versions of the code."""
    content = {"settings": settings, "stream": fingerprint, "code": code}
    return hashlib.sha256(canonical(whole_numbers(content)).encode()).hexdigest()[:ID_LENGTH]


def method_fields(spec: str) -> list[str]:
    """Names of the hyperparameters of a method."""
    return [item.name for item in fields(METHODS[spec]) if item.init]


def _method_settings(spec: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All hyperparameters, except those that were added later and are at their defaults."""
    values = make_method(spec, dict(settings)).settings()
    for item in fields(METHODS[spec]):
        if item.metadata.get("later") and values[item.name] == item.default:
            del values[item.name]
    return values


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces, no NaN."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"settings must be numbers, texts, lists and tables, all finite: {error}"
        ) from error


def whole_numbers(value: Any) -> Any:
    """Floats without a fraction as integers, so that 100 and 100.0 in a file are the same setting."""
    if isinstance(value, Mapping):
        return {key: whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _seed(value: Any) -> int:
    check_value("seed", value, int)
    return int(value)
