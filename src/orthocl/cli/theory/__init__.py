"""`orthocl theory`: the closed form, bounds, orders, forecasts and overlays on any stream or experiment."""

from __future__ import annotations

import cyclopts

from orthocl.cli.theory.bound import bound
from orthocl.cli.theory.bridge import bridge
from orthocl.cli.theory.forecast import forecast
from orthocl.cli.theory.order import order
from orthocl.cli.theory.overlay import overlay
from orthocl.cli.theory.solve import solve
from orthocl.cli.theory.streams import streams

app = cyclopts.App(
    name="theory",
    help="Continual learning in closed form: solve, bound, order, forecast, overlay, bridge, streams.",
)
for command in (solve, bound, order, forecast, overlay, bridge, streams):
    app.command(command)
