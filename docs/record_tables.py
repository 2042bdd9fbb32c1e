"""Tables of `trade-off.md` and `fine-tuning.md`, and the figures of the first, from the kept records.

A mark in a page names the store whose tables follow it. Run this after new records have come; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean, stdev

from orthocl.formatting import size_text
from orthocl.lab import Store
from orthocl.lab.reporting.figure import make_figure
from orthocl.lab.reporting.groups import RunGroup, group_runs
from orthocl.plotting import save_figure

HERE = Path(__file__).parent
PAGES = HERE / "trade-off.md", HERE / "fine-tuning.md"
FIGURES = {"trade-off": "trade-off.svg", "trade-off-directions": "trade-off-directions.svg"}
MARKED = re.compile(r"(<!-- from (results-\S+) -->\n).*?(<!-- end of the records -->)", re.DOTALL)
TITLES = {
    "aac": "accuracy %",
    "learning-accuracy": "learning accuracy %",
    "forgetting": "forgetting %",
    "bwt": "backward transfer %",
}
COLUMNS = {"results-gpm": ("aac", "bwt", "learning-accuracy")}
PRINTED = {  # Saha, Garg and Roy 2021: accuracy and backward transfer
    ("results-gpm", "permuted-mnist"): "| *gpm, as printed* | 93.9 | -3 |  |  |  |",
    ("results-gpm", "split-cifar100-10"): "| *gpm, as printed* | 72.5 ± 0.4 | -0.9 |  |  |  |",
}


def pairs(store: str = "results-trade-off") -> list:
    """Runs and records, as the figures and tables take them."""
    return [(record.settings, record) for record in Store(HERE.parent / store).records()]


def cell(group: RunGroup, metric: str) -> str:
    """Mean and standard deviation over the seeds, in per cent."""
    values = [100 * record.metric(metric) for record in group.finished]
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def tables(store: str) -> str:
    """One table a stream."""
    groups = [group for group in group_runs(pairs(store)) if group.finished]
    metrics = COLUMNS.get(store, ("aac", "learning-accuracy", "forgetting"))
    lines = []
    for stream in dict.fromkeys(group.stream for group in groups):
        own = [group for group in groups if group.stream == stream]
        seeds = sorted({len(group.finished) for group in own})
        lines += [f"**{stream}** (seeds: {', '.join(map(str, seeds))})", ""]
        lines += [f"| method | {' | '.join(TITLES[name] for name in metrics)} | memory | directions |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        if (store, stream) in PRINTED:
            lines.append(PRINTED[store, stream])
        for group in own:
            memory = size_text(int(mean(record.memory for record in group.finished)))
            rank = mean(record.result.monitors[-1].get("rank", 0.0) for record in group.finished)
            numbers = [cell(group, name) for name in metrics]
            directions = f"{rank:,.0f}" if rank else ""
            lines.append(f"| {group.label} | {' | '.join(numbers)} | {memory} | {directions} |")
        lines.append("")
    return "\n".join(lines)


def updated(page: Path) -> str:
    """A page with the tables of today's records."""
    return MARKED.sub(lambda found: found[1] + tables(found[2]) + found[3], page.read_text())


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(updated(page))
    for name, file in FIGURES.items():
        save_figure(make_figure(name, pairs()), HERE / "figures" / file)
