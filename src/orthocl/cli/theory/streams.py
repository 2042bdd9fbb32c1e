"""`orthocl theory streams`: what the theory says about the streams of an experiment, for its report page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import DEFAULT_STORE, OnlyOption, StoreOption, working
from orthocl.cli.output import remark, suggest
from orthocl.cli.theory.setup import AsJson, DataRoot
from orthocl.cli.theory.tables import print_table
from orthocl.errors import UnsupportedError

if not HELP_ONLY:
    from orthocl.lab.experiment.experiment import load_experiment
    from orthocl.lab.experiment.settings import RunSettings
    from orthocl.lab.store.store import Store
    from orthocl.paper.predictions import (
        FILE,
        Prediction,
        bound_stream,
        predict_stream,
        read_predictions,
        write_predictions,
    )


def streams(
    file: Annotated[Path, Parameter(help="TOML file of the experiment.")],
    *,
    store: StoreOption = DEFAULT_STORE,
    only: OnlyOption = None,
    samples: Annotated[int, Parameter(help="Samples per task of the closed form.")] = 100,
    points: Annotated[
        int, Parameter(help="Samples of all tasks together for the bounds; 0: no bounds.")
    ] = 3000,
    data_root: DataRoot = None,
    json_output: AsJson = False,
) -> None:
    """Compute each stream of an experiment in closed form and keep the numbers in the store, for the report page.

    For every task: its dissimilarity to what came before, its complexity, the forgetting that gradient descent and OGD
    are predicted to cause, and the smallest valid bound on its error after the last task. Bounds are for streams whose
    tasks share a head; they say nothing at 1 or above, which needs more samples.

    Example: orthocl theory streams experiments/quick.toml && orthocl report experiments/quick.toml
    """
    experiment = load_experiment(file, only=only or ())
    place = Store(store).directory / FILE
    known = read_predictions(place)
    rows: list[dict[str, Any]] = []
    runs: dict[str, RunSettings] = {}
    for run in experiment.runs:
        runs.setdefault(run.stream_label, run)
    for label, run in runs.items():
        with working(f"computing the closed form of {label}"):
            found = predict_stream(run, data_root, samples)
        if points:
            try:
                with working(f"bounding the error on {label}"):
                    found = replace(found, bounds=bound_stream(run, data_root, points))
            except UnsupportedError as error:
                remark(f"no bounds for {label}: {error}")
        known[label] = found
        write_predictions(place, known)
        rows += _rows(found)
    if json_output:
        print(json.dumps({"rows": rows}, indent=2))
    else:
        print_table("closed form of the streams", rows)
    remark(f"wrote {place}")
    where = "" if store == DEFAULT_STORE else f" --store {store}"
    suggest(f"orthocl report {file}{where} shows it beside what was measured")


def _rows(found: Prediction) -> list[dict[str, Any]]:
    """One row per task, for people."""
    lists = {
        "dissimilarity": found.dissimilarity["sgd"],
        "forgets (sgd)": found.forgetting["sgd"],
        "forgets (ogd)": found.forgetting["ogd"],
        **{f"bound ({rule})": values for rule, values in found.bounds.items()},
    }
    return [
        {
            "stream": found.stream,
            "task": number + 1,
            **{name: values[number] for name, values in lists.items()},
        }
        for number in range(len(found.dissimilarity["sgd"]))
    ]
