"""The items of the paper: what each table and figure is made of, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orthocl.errors import SettingsError, unknown_name
from orthocl.lab import Experiment, RunSettings
from orthocl.paper.authors_grid import grid_page
from orthocl.paper.evidence import Evidence, RecordIndex
from orthocl.paper.experiments import Scale, experiment_folder, load_runs
from orthocl.paper.figure_4 import figure_4
from orthocl.paper.figure_5 import figure_5
from orthocl.paper.figure_6 import figure_6
from orthocl.paper.figures_1_3 import figure_1, figure_2, figure_3
from orthocl.paper.missing import diverged_notes
from orthocl.paper.page import Page
from orthocl.paper.predictions import Prediction
from orthocl.paper.searches import SEARCHES, searches
from orthocl.paper.split_mnist import split_mnist
from orthocl.paper.table_1 import table_1
from orthocl.paper.table_2 import table_2
from orthocl.paper.table_3 import table_3
from orthocl.paper.table_6 import table_6
from orthocl.paper.tables_7_8 import table_7, table_8
from orthocl.paper.tables_9_12 import table_9, table_10, table_11, table_12
from orthocl.paper.theory_page import theory_page

Make = Callable[[Evidence, bool], Page]


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper.

    Args:
        name: what the command calls it.
        summary: one line for lists.
        make: the page from the records of its runs; None for the page that also needs predictions.
        experiments: files of `experiments/` whose runs it shows.
        beside: files whose runs it shows if they exist, but does not require.
        streams: labels of the streams that it speaks of; all of its files by default.
        runs_needed: whether it needs records; settings alone serve otherwise.
        shown_without: whether it has something to show without any record.
    """

    name: str
    summary: str
    make: Make | None
    experiments: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    runs_needed: bool = True
    shown_without: bool = False


_WIDTHS = ("figures_1_3",)
_TABLES = ("table_2", "table_2_beside")
_STABLE = ("table_2_beside",)
"""Has the second row of Stable SGD, which counts among the baselines."""
_ALL = (
    Item("table-1", "forgetting of OGD and OGD+, over-parameterisation", table_1, ("table_1",)),
    Item("table-2", "average accuracy, all methods, four streams", table_2, _TABLES),
    Item(
        "table-3",
        "properties of the algorithms, declared and measured",
        table_3,
        runs_needed=False,
        shown_without=True,
    ),
    Item("table-6", "shared hyperparameters", table_6, ("table_2",), runs_needed=False, shown_without=True),
    Item("table-7", "final accuracy of each task", table_7, ("tables_7_8",), streams=("permuted-mnist",)),
    Item("table-8", "final accuracy of each task", table_8, ("tables_7_8",), streams=("rotated-mnist",)),
    Item("table-9", "AAC, BWT, FWT, AFM", table_9, ("tables_9_12",), _STABLE, streams=("permuted-mnist",)),
    Item("table-10", "AAC, BWT, FWT, AFM", table_10, ("tables_9_12",), _STABLE, streams=("rotated-mnist",)),
    Item("table-11", "AAC, BWT, FWT, AFM", table_11, ("tables_9_12",), _STABLE, streams=("split-cifar100",)),
    Item("table-12", "AAC, BWT, FWT, AFM", table_12, ("tables_9_12",), _STABLE, streams=("cub200",)),
    Item("figure-1", "memorised samples of task 1 against the hidden size", figure_1, _WIDTHS),
    Item("figure-2", "memorised samples of every task against the hidden size, OGD", figure_2, _WIDTHS),
    Item(
        "figure-3",
        "memorised samples of every task against the hidden size, OGD+",
        figure_3,
        _WIDTHS,
        streams=("permuted-mnist", "rotated-mnist"),
    ),
    Item("figure-4", "memorised samples of task 1 against the memory", figure_4, ("figure_4",)),
    Item("figure-5", "accuracy on the first ten tasks while training", figure_5, ("figure_5",)),
    Item("figure-6", "accuracy on tasks 1 and 7 through the tasks", figure_6, ("figure_6",)),
    Item(
        "authors-grid",
        "the authors' search on CIFAR-100, and their hidden size",
        grid_page,
        ("split_cifar100_hidden_100",),
        beside=("authors_grid",),
        shown_without=True,
    ),
    Item(
        "searches",
        "the appendix's hyperparameter searches, as far as `orthocl search` has run them",
        searches,
        beside=(*SEARCHES, *_TABLES, "table_split_mnist"),
        runs_needed=False,
    ),
    Item("split-mnist", "Split MNIST, which the paper does not print", split_mnist, ("table_split_mnist",)),
    Item("theory", "the paper's theory beside the runs", None, ("theory",)),
)
ITEMS: Mapping[str, Item] = {item.name: item for item in _ALL}


def get_item(name: str) -> Item:
    """An item by its name.

    >>> get_item("table-2").experiments
    ('table_2', 'table_2_beside')
    """
    if name not in ITEMS:
        raise unknown_name("table or figure", name, ITEMS)
    return ITEMS[name]


def item_runs(
    item: Item,
    scale: Scale = "full",
    streams: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Sequence[str] = (),
) -> Experiment:
    """The runs of an item: some of its streams and seeds, or all.

    Raises:
        SettingsError: when it has no such stream, or does not exist at this scale.
    """
    runs = _runs(item.experiments, item, scale, seeds, overrides)
    known = list(dict.fromkeys(run.stream_label for run in runs))
    for name in streams:
        if name not in known:
            raise unknown_name(f"stream of {item.name}", name, known)
    chosen = tuple(run for run in runs if not streams or run.stream_label in streams)
    return Experiment(item.name, chosen, item.summary)


def find_evidence(
    item: Item, index: RecordIndex, runs: Sequence[RunSettings], scale: Scale = "full"
) -> Evidence:
    """The records of an item's runs, and of those it shows if they are there."""
    evidence = index.find(runs)
    if item.beside and scale == "full":
        beside = index.find(_runs(item.beside, item, scale))
        evidence += Evidence((), beside.pairs, beside.diverged)
    return evidence


def make_page(
    item: Item,
    evidence: Evidence,
    comparable: bool = True,
    predictions: Mapping[str, Prediction] | None = None,
) -> Page:
    """The page of an item."""
    page = (
        theory_page(evidence, predictions or {}, comparable)
        if item.make is None
        else item.make(evidence, comparable)
    )
    return replace(page, notes=page.notes + diverged_notes(evidence)) if item.runs_needed else page


def _runs(
    names: Sequence[str], item: Item, scale: Scale, seeds: Sequence[int] = (), overrides: Sequence[str] = ()
) -> list[RunSettings]:
    paths = [experiment_folder(scale) / f"{name}.toml" for name in names]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise SettingsError(
            f"{item.name} cannot be made at scale {scale!r}: it needs complete data sets. Use --scale full"
        )
    found = [run for path in paths for run in load_runs(path, tuple(seeds), tuple(overrides))]
    if item.streams:
        found = [run for run in found if run.stream_label in item.streams]
    if names and not found:
        raise SettingsError(
            f"{item.name} speaks of {', '.join(item.streams)}, which there is not at scale {scale!r}. Use --scale full"
        )
    return found
