"""Groups: the runs that differ only in their seed, in the order in which every table, figure and page shows them.

By stream, then by method (baselines first, in the order of the palette; unknown ones by their names), then by the
settings in which groups with the same label differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orthocl.formatting import plain_text
from orthocl.lab.experiment.grid import flat
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.experiment.specs import label_of
from orthocl.lab.store.record import Record
from orthocl.palette import METHODS

LOGGING = "train.evaluate_every"
"""A setting of what is written down, which changes nothing that is learnt: it never makes another group."""
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)")


@dataclass(frozen=True)
class RunGroup:
    """One method on one stream with one choice of settings, over seeds.

    Args:
        stream: label of the stream.
        method: label of the method.
        differs: the settings that tell it from other groups with the same labels, such as "strength=10".
        records: of all its runs, by seed.
        settings: all settings but the seed, by dotted names.
        logged: other records of the same runs, that were evaluated more or less often: of use for their curves alone.
    """

    stream: str
    method: str
    differs: str
    records: tuple[Record, ...]
    settings: Mapping[str, Any]
    logged: tuple[Record, ...] = ()

    @property
    def label(self) -> str:
        """The method, with what differs."""
        return f"{self.method} {self.differs}" if self.differs else self.method

    @property
    def finished(self) -> list[Record]:
        """Its records with results."""
        return [record for record in self.records if record.status == "finished"]

    @property
    def with_curves(self) -> list[Record]:
        """The finished records with curves within tasks, one of each seed."""
        found = {
            record.settings.seed: record
            for record in (*self.logged, *self.records)
            if record.status == "finished" and record.result.curves
        }
        return [found[seed] for seed in sorted(found)]


def group_runs(pairs: Iterable[tuple[RunSettings, Record]]) -> list[RunGroup]:
    """The groups of some runs, in reading order."""
    found: dict[tuple[str, str, str, str, int], list[Record]] = {}
    for settings, record in pairs:
        stream, method = labels(settings)
        found.setdefault((stream, method, *_setting(record)), []).append(record)
    made = [_group(stream, method, records) for (stream, method, *_), records in found.items()]
    alike: dict[tuple[str, str], list[RunGroup]] = {}
    for group in made:
        alike.setdefault((group.stream, group.method), []).append(group)
    told = [group for same in alike.values() for group in _told_apart(same)]
    return sorted(_with_unusual_networks(told), key=_reading_order)


def agreed_labels(pairs: Iterable[tuple[RunSettings, Record]]) -> list[tuple[RunSettings, Record]]:
    """The same runs, all seeds of one setting called what the newest of them is called: names change."""
    given = [(settings, record, _setting(record)) for settings, record in pairs]
    newest: dict[tuple[str, str, int], tuple[tuple[bool, str], RunSettings]] = {}
    for settings, record, key in given:
        age = (bool(settings.method_label), str(record.provenance.get("finished", "")))
        if key not in newest or age >= newest[key][0]:
            newest[key] = age, settings
    return [
        (
            replace(
                settings,
                stream_label=newest[key][1].stream_label,
                method_label=newest[key][1].method_label,
            ),
            record,
        )
        for settings, record, key in given
    ]


def labels(settings: RunSettings) -> tuple[str, str]:
    """What a run's stream and method are called: their labels, or the names of the parts."""
    stream = settings.stream_label or label_of(settings.stream.name)
    return plain_text(stream), plain_text(settings.method_label or label_of(settings.method.name))


def family(label: str) -> str:
    """The method behind a label: without the settings at its end that a grid or a search has put there.

    >>> family("ogd+ memory_per_task=50 hidden=100x100"), family("my method")
    ('ogd+', 'my method')
    """
    words = label.split(" ")
    while len(words) > 1 and "=" in words[-1]:
        words.pop()
    return " ".join(words)


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of settings that do not have the same value in all tables; 16 and 16.0 are the same.

    >>> differing([{"train.epochs": 1, "net.alpha": 16}, {"train.epochs": 2, "net.alpha": 16.0}])
    ['train.epochs']
    """
    names = dict.fromkeys(name for table in tables for name in table)
    return [name for name in names if len({_value_key(table.get(name)) for table in tables}) > 1]


def _value_key(value: Any) -> str:
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def value_text(value: Any) -> str:
    """A setting for people.

    >>> value_text(10.0), value_text([100, 100]), value_text(None)
    ('10', '100x100', 'default')
    """
    if value is None:
        return "default"
    if isinstance(value, list):
        return "x".join(map(value_text, value)) if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else plain_text(value)


def _setting(record: Record) -> tuple[str, str, int]:
    """Equal for runs that differ only in their seed, or in how often they were evaluated."""
    train = replace(record.settings.train, evaluate_every=None)
    return (
        replace(record.settings, train=train).without_seed(),
        str(record.stream.get("fingerprint", "")),
        record.code,
    )


def _group(stream: str, method: str, records: Sequence[Record]) -> RunGroup:
    first = records[0]
    settings = {name: value for name, value in flat(first.settings.to_dict()).items() if name != "seed"}
    settings["data"] = str(first.stream.get("fingerprint", ""))
    settings["code"] = first.code
    chosen: dict[int, Record] = {}
    for record in sorted(records, key=_preference, reverse=True):
        chosen[record.settings.seed] = record
    kept = tuple(chosen[seed] for seed in sorted(chosen))
    others = tuple(record for record in records if not any(record is one for one in kept))
    return RunGroup(stream, method, "", kept, settings, others)


def _preference(record: Record) -> tuple[bool, bool, str]:
    """Of several records of one run: finished ones first, then those without curves, as tables ask for them."""
    return record.status != "finished", record.settings.train.evaluate_every is not None, record.id


def _told_apart(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The same groups, each with the settings in which it differs from the others."""
    if len(groups) == 1:
        return list(groups)
    names = [name for name in differing([group.settings for group in groups]) if name != LOGGING]
    if len(names) > 1:  # new data is another fingerprint: the setting says it better
        names = [name for name in names if name != "data"]
    return [replace(group, differs=_choice(group, names)) for group in groups]


def _with_unusual_networks(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The same groups; one whose network is not the usual one of its stream says so, though its method has no other."""
    networks: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        networks.setdefault(group.stream, []).append(_network(group))
    usual = {stream: max(found, key=found.count) for stream, found in networks.items()}
    return [
        group
        if group.differs
        else replace(group, differs=_choice(group, differing([_network(group), usual[group.stream]])))
        for group in groups
    ]


def _network(group: RunGroup) -> dict[str, Any]:
    return {name: value for name, value in group.settings.items() if name.startswith("net.")}


def _choice(group: RunGroup, names: Iterable[str]) -> str:
    """The values of these settings, but for those that the method's label says already."""
    texts = (
        f"{name.rpartition('.')[2]}={value_text(_short(name, group.settings.get(name)))}" for name in names
    )
    return " ".join(text for text in texts if text not in group.method.split(" "))


def _short(name: str, value: Any) -> Any:
    hashed = name == "data" or name.endswith("source")
    return str(value)[:8] if hashed and value else value


def _reading_order(group: RunGroup) -> tuple[Any, ...]:
    names = group.method.split(" ")[0], group.records[0].settings.method.name
    place = next((list(METHODS).index(name) for name in names if name in METHODS), len(METHODS))
    return (natural(group.stream), place, natural(group.method), natural(group.differs))


def natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A key that sorts numbers inside texts by their size.

    >>> sorted(["strength=10", "strength=9", "strength=1e-3"], key=natural)
    ['strength=1e-3', 'strength=9', 'strength=10']
    """
    parts = _NUMBER.split(text.lower())
    return tuple((0, float(part), "") if number % 2 else (1, 0.0, part) for number, part in enumerate(parts))
