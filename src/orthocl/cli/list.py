"""`orthocl list`: the available methods, streams, metrics and nets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cyclopts import App
from rich.markup import escape

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.output import new_table, show, suggest
from orthocl.formatting import counted, size_text

if not HELP_ONLY:
    from orthocl.methods import METHODS
    from orthocl.metrics import METRICS
    from orthocl.nets import NETS
    from orthocl.nets.registry import net_defaults
    from orthocl.streams import STREAMS

NEXT = {
    "method": "orthocl run --stream rotated-mnist-mini --method sgd --method ogd+ --seed 1",
    "stream": "orthocl run --stream split-mnist-mini --method sgd --method ogd+ --seed 1",
    "metric": "orthocl run --stream rotated-mnist-mini --method ogd+ --seed 1 --metric aac --metric forgetting",
    "net": "orthocl plan mlp --input-shape 1x32x32 --tasks 15",
}
BYTES = ("input_cache",)
"""Settings that count bytes."""

app = App(name="list", help="List the available methods, streams, metrics and nets.")


@app.command
def methods() -> None:
    """Methods with their settings and defaults."""
    _show(
        "method",
        {name: (_first_line(kind), kind().settings()) for name, kind in METHODS.items()},
    )


@app.command
def streams() -> None:
    """Streams with their tasks and settings."""
    entries = {
        name: (
            maker.summary + (f", {counted(maker.tasks, 'task')}" if maker.tasks else ""),
            dict(maker.options),
        )
        for name, maker in STREAMS.items()
    }
    _show("stream", entries)


@app.command
def metrics() -> None:
    """Metrics of the accuracy matrix, each with its definition."""
    _show("metric", {name: (_first_line(metric), {}) for name, metric in METRICS.items()})


@app.command
def nets() -> None:
    """Networks with their settings and defaults."""
    _show("net", {name: (_first_line(net), net_defaults(name)) for name, net in NETS.items()})


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _setting(name: str, value: Any) -> str:
    """A setting as it is written in an experiment file; long numbers are also put in words."""
    words = f" ({size_text(value)})" if name in BYTES and value else ""
    return f"{name} = {json.dumps(value)}{words}"


def _show(kind: str, entries: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    table = new_table(kind, "what it is")
    table.columns[0].no_wrap = True
    with_settings = any(settings for _, settings in entries.values())
    if with_settings:
        table.add_column("settings and defaults")
    for name, (summary, settings) in entries.items():
        values = ", ".join(_setting(key, value) for key, value in settings.items())
        table.add_row(escape(name), escape(summary), *([escape(values)] if with_settings else []))
    show(
        table,
        [
            {kind: name, "what": summary, "settings": dict(settings)}
            for name, (summary, settings) in entries.items()
        ],
    )
    suggest(NEXT[kind])
