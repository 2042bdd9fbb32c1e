"""A guard against seeds without effect: runs with different seeds whose results agree to the bit."""

from __future__ import annotations

from collections.abc import Iterable

from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.store.record import Record


def identical_seeds(pairs: Iterable[tuple[RunSettings, Record]]) -> list[str]:
    """A warning for every method and stream in which two seeds gave the same losses and accuracies, to the bit.

    That happens when nothing in a run is random: a network that sets its own seed, or one without random weights. A
    spread over such seeds means nothing.
    """
    groups: dict[str, dict[str, tuple[RunSettings, int]]] = {}
    warnings = []
    for settings, record in pairs:
        if record.status != "finished":
            continue
        found = groups.setdefault(record.settings.without_seed(), {})
        result = repr((record.result.losses, record.result.accuracies))
        if result in found and found[result][1] != record.settings.seed:
            stream = settings.stream_label or settings.stream.name
            method = settings.method_label or settings.method.name
            warnings.append(
                f"{stream} / {method}: seeds {found[result][1]} and {record.settings.seed} gave the same result to the "
                "bit, so their spread means nothing: does the network or the stream set its own seed?"
            )
        found.setdefault(result, (settings, record.settings.seed))
    return list(dict.fromkeys(warnings))
