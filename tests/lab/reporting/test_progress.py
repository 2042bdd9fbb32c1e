"""The progress displays, drawn on terminals of several sizes."""

from __future__ import annotations

import io
import re
from contextlib import suppress

import pytest
from rich.console import Console

from orthocl.lab.executors.interface import Event
from orthocl.lab.reporting.live_progress import LiveTable, fitting
from orthocl.lab.reporting.progress import LineDisplay, LiveDisplay, make_display


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def draw(table, width, height=24):
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system=None,
        legacy_windows=False,
    )
    console.print(table, end="")
    return console.file.getvalue().splitlines()


@pytest.fixture
def busy(tiny):
    """A live table in the middle of six runs: one known, one failed, one done, three under way."""
    clock = Clock()
    runs = [tiny("stable-sgd", seed) for seed in range(6)]
    table = LiveTable([run.label for run in runs], clock)
    for number, kind in enumerate(("known", "failed", "finished")):
        if kind != "known":
            table.on_event(Event("started", str(number), runs[number]))
        clock.now += 10.0
        table.on_event(Event(kind, str(number), runs[number], text="a reason"))
    for number in (3, 4, 5):
        table.on_event(Event("started", str(number), runs[number]))
    table.on_event(Event("progress", "3", runs[3], task=1, tasks=4, step=0, steps=10))
    clock.now += 10.0
    table.on_event(
        Event("progress", "3", runs[3], task=3, tasks=4, step=0, steps=10, loss=0.25, accuracy=1.0)
    )
    table.on_event(Event("progress", "3", runs[3], task=3, tasks=4, step=0, steps=10, accuracy=1.0))
    return table


def test_a_wide_terminal_shows_everything(busy):
    whole, third, *others = draw(busy, 130)
    assert re.search(r"all runs +\S+ +2/6 +1 failed +0:40 +\d+:\d\d left$", whole.rstrip())
    # half of it took ten seconds; the loss is the last one heard of
    assert re.search(r"seed 3 +\S+ +task 3/4 +accuracy 100.0 % +loss 0.250 +0:10 +0:10 left$", third.rstrip())
    assert len(others) == 2
    assert all("starting" in line for line in others)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_no_line_is_wrapped_and_a_ctrl_c_fits_behind_it(busy, width):
    lines = draw(busy, width)
    assert len(lines) == 4
    assert max(len(line.rstrip()) for line in lines) <= width - 2
    assert all(f"seed {seed}" in line for seed, line in zip((3, 4, 5), lines[1:], strict=True))
    if width >= 80:
        assert "left" in lines[0]


def test_more_runs_than_rows(tiny):
    table = LiveTable(["x"] * 40)
    for seed in range(40):
        table.on_event(Event("started", str(seed), tiny("sgd", seed)))
    lines = draw(table, 80, 10)
    assert len(lines) < 10
    shown = sum("seed" in line for line in lines)
    assert lines[0].startswith("all runs")
    assert lines[-1].strip() == f"and {40 - shown} more"


def test_columns_do_not_move_while_runs_come_and_go(tiny):
    runs = [tiny("sgd", 1), tiny("stable-sgd", 10000)]
    table = LiveTable([run.label for run in runs])
    seen = set()
    for number, run in enumerate(runs):
        table.on_event(Event("started", str(number), run))
        for loss in (None, 0.5):
            table.on_event(Event("progress", str(number), run, task=1, tasks=4, step=1, steps=9, loss=loss))
            seen.add(draw(table, 100)[1].index("task 1/4"))
        table.on_event(Event("finished", str(number), run))
    assert len(seen) == 1


@pytest.mark.parametrize("label", [1, 30, 200])
@pytest.mark.parametrize("width", [1, 25, 57, 77, 140, 1000])
def test_the_columns_fit(label, width):
    shown = fitting(label, width)
    assert sum(shown.values()) <= max(width, 22)


def test_runs_that_are_paused_count_and_runs_that_are_stopped_do_not(tiny):
    table = LiveTable(["x"] * 4)
    for number, kind in enumerate(("paused", "paused", "interrupted", "finished")):
        table.on_event(Event("started", str(number), tiny("sgd", number)))
        table.on_event(Event(kind, str(number), tiny("sgd", number)))
    (line,) = draw(table, 80)
    assert " 3/4 " in line


def terminal():
    return Console(file=io.StringIO(), width=60, height=20, force_terminal=True, legacy_windows=False)


def test_the_live_display_ends_with_a_line_and_a_cursor(tiny):
    console = terminal()
    with suppress(KeyboardInterrupt), make_display([tiny().label] * 3, console) as display:
        assert isinstance(display, LiveDisplay)
        display.on_event(Event("known", "0", tiny()))
        display.on_event(Event("started", "1", tiny("sgd", 2)))
        display.on_event(Event("failed", "1", tiny("sgd", 2), text="why"))
        display.on_event(Event("stopping", "2", tiny("sgd", 3), text="wait a moment"))
        raise KeyboardInterrupt
    text = console.file.getvalue()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0, "the cursor is shown again"
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)
    assert "failed rotated-mnist-mini / sgd / seed 2" in plain
    assert "why" not in plain, "the reason comes at the end, from the caller"
    assert "wait a moment" in plain
    assert "seed 3: wait" not in plain
    assert re.search(r"1 of 3 runs in .*; 1 already existed, 1 failed\s*$", plain)


def test_lines_without_a_terminal(tiny):
    console = Console(file=io.StringIO(), width=40)
    with make_display(["x"] * 3, console) as display:
        assert isinstance(display, LineDisplay)
        display.on_event(Event("known", "0", tiny()))
        display.on_event(Event("started", "1", tiny("sgd", 2)))
        display.on_event(Event("failed", "1", tiny("sgd", 2), text="why"))
        display.on_event(Event("started", "2", tiny("sgd", 3)))
        display.on_event(Event("interrupted", "2", tiny("sgd", 3), text="run was stopped"))
    *lines, last = console.file.getvalue().splitlines()
    assert lines == [
        "started rotated-mnist-mini / sgd / seed 2",
        "failed rotated-mnist-mini / sgd / seed 2 (1/3)",
        "started rotated-mnist-mini / sgd / seed 3",
        "stopped rotated-mnist-mini / sgd / seed 3 (1/3)",
    ]
    assert last.startswith("1 of 3 runs in ")
