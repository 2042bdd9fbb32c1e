"""What was not run, with the commands that would, and what was run in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from orthocl.lab import RunSettings
from orthocl.paper.evidence import Evidence
from orthocl.paper.page import WordTable


@dataclass(frozen=True)
class MissingRuns:
    """Runs of one experiment file on one stream with the same seeds missing."""

    file: str
    stream: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def command(self) -> str:
        """The command that executes them.

        >>> MissingRuns("table_2", "cub200", ("ewc", "si"), (4, 5)).command
        'orthocl run experiments/table_2.toml --only cub200/ewc --only cub200/si --seed 4 --seed 5'
        """
        only = " ".join(f"--only {quote(f'{self.stream}/{method}')}" for method in self.methods)
        seeds = " ".join(f"--seed {seed}" for seed in self.seeds)
        return f"orthocl run experiments/{self.file}.toml {only} {seeds}"


def group_missing(file: str, runs: Sequence[RunSettings]) -> list[MissingRuns]:
    """The runs of one experiment file that are missing, in few groups."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        seeds.setdefault((run.stream_label, run.method_label), []).append(run.seed)
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (stream, method), found in seeds.items():
        groups.setdefault((stream, tuple(found)), []).append(method)
    return [MissingRuns(file, stream, tuple(methods), seeds) for (stream, seeds), methods in groups.items()]


def missing_table(groups: Sequence[MissingRuns]) -> WordTable:
    """One row per group, with its command."""
    rows = [("stream", "methods", "seeds", "command")]
    rows += [
        (group.stream, ", ".join(group.methods), ", ".join(map(str, group.seeds)), f"`{group.command}`")
        for group in groups
    ]
    return WordTable("Not run", tuple(rows))


def diverged_notes(evidence: Evidence) -> tuple[str, ...]:
    """A sentence for each run that has no result because it diverged."""
    return tuple(
        f"{run.method_label} on {run.stream_label} has no result with seed {run.seed}: {reason}."
        for run, reason in evidence.diverged
    )
