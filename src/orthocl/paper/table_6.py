"""Table 6: the hyperparameters that experiments share, those printed and those of `experiments/protocol.toml`.

Paper: Table 6 (`tab:hyperparam`), appendix. It needs no runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orthocl.lab import RunSettings
from orthocl.paper.evidence import Evidence
from orthocl.paper.page import Page, WordTable
from orthocl.paper.published import published_item

NAME = "table-6"
COLUMNS = {
    "MNIST": ("permuted-mnist", "rotated-mnist"),
    "CIFAR-100": ("split-cifar100",),
    "CUB-200": ("cub200",),
}
NETWORKS = {"mlp": "MLP", "lenet": "LeNet", "bird-classifier": "AlexNet (variant)"}


def table_6(evidence: Evidence, comparable: bool = True) -> Page:
    """Table 6 from the settings of the runs."""
    rows = [("hyperparameter", "streams", "print", "here")]
    for cell in published_item(NAME).cells:
        here = ", ".join(
            dict.fromkeys(
                ours(cell.row, [run for run in evidence.runs if run.stream_label in streams])
                for column, streams in COLUMNS.items()
                if column in cell.column and any(run.stream_label in streams for run in evidence.runs)
            )
        )
        rows.append((cell.row, cell.column, cell.text, here or "–"))
    return Page(
        NAME,
        "Table 6: shared hyperparameters",
        published_item(NAME).caption,
        words=(WordTable("Hyperparameters of SGD, OGD and OGD+", tuple(rows)),),
        notes=(
            "The hidden size of CIFAR-100 is 100 in the authors' scripts: "
            "`experiments/split_cifar100_hidden_100.toml`.",
        )
        if comparable
        else (),
    )


def ours(row: str, runs: Sequence[RunSettings]) -> str:
    """A hyperparameter of these runs in the words of the print; several values are all named."""
    basic = [run.resolved() for run in runs if run.method_label in ("sgd", "ogd", "ogd+")]
    if row == "Epochs":
        return _all(run.train.epochs for run in basic)
    if row == "Architecture":
        return _all(NETWORKS.get(run.net.name, run.net.name) for run in basic)
    if row == "Hidden dimension":
        return _all(_first(run.net.settings["hidden"]) for run in basic)
    if row == "Torch seeds":
        seeds = sorted({run.seed for run in basic})
        return f"{seeds[0]} to {seeds[-1]}" if seeds else ""
    if row == "Memory size per task":
        return _all(run.method.settings["memory_per_task"] for run in basic if run.method.name != "sgd")
    return "RELU"  # the networks have no other


def _first(hidden: object) -> object:
    return hidden[0] if isinstance(hidden, list | tuple) else hidden


def _all(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))
