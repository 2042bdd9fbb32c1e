"""`orthocl theory overlay`: trained networks compared with their closed form."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.theory.setup import (
    DEFAULT_STREAM,
    AsJson,
    FigurePath,
    OverlaySetup,
    Rule,
    StreamName,
    load_tasks,
)
from orthocl.cli.theory.tables import check_figure, emit, finish, progress_bar
from orthocl.errors import SettingsError

if not HELP_ONLY:
    from orthocl.theory import Overlay, figures
    from orthocl.theory import overlay as lay_over

Widths = Annotated[tuple[int, ...], Parameter(help="Hidden units.", consume_multiple=True)]


def overlay(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    widths: Widths = (32, 128, 512),
    steps: Annotated[int, Parameter(help="Full-batch steps per task.")] = 200,
    setup: OverlaySetup | None = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Train real networks of growing width and compare their outputs with the closed form.

    Columns: root mean square of trained minus predicted outputs on test samples, for the kernel of the network at
    its start and for the infinitely wide one, and the relative distance between these kernels.
    They fall with width, but for the chance of the start.

    Example: orthocl theory overlay --widths 64 256 1024 --figure overlay.svg
    """
    setup = setup or OverlaySetup()
    check_figure(figure)
    if setup.target == "one-hot":
        raise SettingsError("the overlay compares one output: use --target parity or a class number")
    if setup.tasks < 1 or steps < 1 or not widths:
        raise SettingsError("expected at least one task, one step and one width")
    tasks = load_tasks(stream, setup)
    done = 0
    with progress_bar("training", len(widths) * len(tasks)) as advance:

        def step(width: int, task: int) -> None:
            nonlocal done
            done += 1
            advance(done)

        found = lay_over(
            [(task.inputs.flatten(1), task.targets) for task in tasks],
            tasks[0].test_inputs.flatten(1),
            widths=widths,
            depth=setup.depth,
            rule=rule,
            ridge=setup.ridge,
            steps=steps,
            bias_variance=setup.bias_variance,
            seed=setup.seed,
            progress=step,
        )
    rows = [_row(each) for each in found]
    emit(f"trained networks and their closed form, {stream}, {rule}", rows, {"rule": rule}, json_output)
    finish(figure, lambda: figures.overlay_figure(found))


def _row(found: Overlay) -> dict[str, Any]:
    return {
        "width": found.width,
        "rms_to_own_closed_form": found.error,
        "rms_to_infinite_width": found.infinite_error,
        "kernel_distance": found.kernel_error,
    }
