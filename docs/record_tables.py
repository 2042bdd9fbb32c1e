"""Tables of `trade-off.md` and `fine-tuning.md`, and the figures of the first, from the kept records.

Run it after new records have come; a test compares.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

from orthocl.formatting import size_text
from orthocl.lab import Store
from orthocl.lab.reporting.figure import make_figure
from orthocl.lab.reporting.groups import RunGroup, group_runs
from orthocl.plotting import save_figure

HERE = Path(__file__).parent
TRADE_OFF = HERE.parent / "results-trade-off"
PAGES = {HERE / "trade-off.md": TRADE_OFF, HERE / "fine-tuning.md": HERE.parent / "results-text"}
FIGURES = {"trade-off": "trade-off.svg", "trade-off-directions": "trade-off-directions.svg"}
MARKS = "<!-- from the records -->", "<!-- end of the records -->"


def pairs(records: Path = TRADE_OFF) -> list:
    """Runs and records, as the figures and tables take them."""
    return [(record.settings, record) for record in Store(records).records()]


def cell(group: RunGroup, metric: str) -> str:
    """Mean and standard deviation over the seeds, in per cent."""
    values = [100 * record.metric(metric) for record in group.finished]
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def tables(records: Path) -> str:
    """One table a stream."""
    groups = [group for group in group_runs(pairs(records)) if group.finished]
    lines = []
    for stream in dict.fromkeys(group.stream for group in groups):
        own = [group for group in groups if group.stream == stream]
        seeds = sorted({len(group.finished) for group in own})
        lines += [f"**{stream}** (seeds: {', '.join(map(str, seeds))})", ""]
        lines += ["| method | accuracy % | learning accuracy % | forgetting % | memory | directions |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        for group in own:
            memory = size_text(int(mean(record.memory for record in group.finished)))
            rank = mean(record.result.monitors[-1].get("rank", 0.0) for record in group.finished)
            numbers = [cell(group, name) for name in ("aac", "learning-accuracy", "forgetting")]
            directions = f"{rank:,.0f}" if rank else ""
            lines.append(f"| {group.label} | {' | '.join(numbers)} | {memory} | {directions} |")
        lines.append("")
    return "\n".join(lines)


def updated(page: Path) -> str:
    """A page with the tables of today's records."""
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{tables(PAGES[page])}{MARKS[1]}{after}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(updated(page))
    for name, file in FIGURES.items():
        save_figure(make_figure(name, pairs()), HERE / "figures" / file)
