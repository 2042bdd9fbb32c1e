"""The paper's theory and the runs: do its numbers rank what real networks forget?

For each stream: task dissimilarity, complexity, predicted forgetting (`predictions.py`) and the measured drift of the
tangents (monitors in the records of OGD), beside the measured forgetting of every task. A predictor is useful if it
ranks tasks better than counting the tasks that come later, which needs no theory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orthocl.lab import Record
from orthocl.palette import method_style
from orthocl.paper.claims import Answer, Finding, Verdict, conclude
from orthocl.paper.drawing import describe, panels, shared_legend
from orthocl.paper.evidence import Evidence
from orthocl.paper.page import Page, WordTable
from orthocl.paper.predictions import Prediction
from orthocl.paper.samples import number_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "theory"
TRIVIAL = "later tasks"
METHODS = ("sgd", "ogd")
DRAWS = 2000
"""Resamples of the seeds behind an interval."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of a predictor with the measured forgetting of tasks, and its interval over seeds."""

    value: float
    low: float
    high: float
    seeds: int

    def text(self) -> str:
        """For people."""
        if np.isnan(self.value):
            return "–"
        between = f" [{number_text(self.low)}, {number_text(self.high)}]" if self.seeds > 1 else " (one seed)"
        return f"{number_text(self.value)}{between}"


def measured_forgetting(record: Record) -> list[float]:
    """Accuracy lost on every task but the last, from its end to the end of the stream, in percent."""
    rows = record.result.accuracies
    return [100 * (rows[task][task - 1] - rows[-1][task - 1]) for task in range(1, len(rows) - 1)]


def tangent_drift(record: Record) -> list[float]:
    """For every task but the last, one minus the cosine of the stored tangents, summed over the tasks after it."""
    cosines = [row.get("drift_cosine", float("nan")) for row in record.result.monitors]
    moved = [0.0 if np.isnan(cosine) else 1 - cosine for cosine in cosines]
    return [float(sum(moved[task:])) for task in range(1, len(moved))]


def predictors(prediction: Prediction, method: str, records: Sequence[Record]) -> dict[str, list[float]]:
    """A number per task but the last, by the name of the predictor; more should mean more forgetting."""
    tasks = len(prediction.dissimilarity[method])
    later = prediction.dissimilarity[method]
    explored = prediction.complexity[method]
    found = {
        TRIVIAL: [float(tasks - task) for task in range(1, tasks)],
        "dissimilarity": list(later[:-1]),
        "dissimilarity of later tasks": [sum(later[task:]) for task in range(1, tasks)],
        "complexity": list(explored[:-1]),
        "predicted forgetting": list(prediction.forgetting[method][:-1]),
    }
    if method != "sgd" and records:
        found["tangent drift"] = np.mean([tangent_drift(record) for record in records], axis=0).tolist()
    return found


def rank_correlation(
    predictor: Sequence[float], measured: Sequence[Sequence[float]], seed: int = 0
) -> Correlation:
    """Of a predictor with forgetting averaged over seeds; the interval resamples the seeds.

    >>> rank_correlation([1.0, 2.0, 3.0], [[2.0, 4.0, 9.0]]).value
    1.0
    """
    values = np.asarray(measured, dtype=float)
    whole = float(_spearman(predictor, values.mean(0)[None])[0])
    if len(values) == 1 or np.isnan(whole):
        return Correlation(whole, whole, whole, len(values))
    chosen = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    draws = _spearman(predictor, values[chosen].mean(1))
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Correlation(whole, float(low), float(high), len(values))


def theory_page(evidence: Evidence, predictions: Mapping[str, Prediction], comparable: bool = True) -> Page:
    """The page from records and predictions."""
    shown = [stream for stream in evidence.streams if stream in predictions]
    rows = correlations(evidence, predictions)
    names = list(dict.fromkeys(name for *_, found in rows for name in found))
    ranks = [("stream", "method", "seeds", *names)]
    for stream, method, found in rows:
        seeds = str(next(iter(found.values())).seeds)
        ranks.append((stream, method, seeds, *(found[n].text() if n in found else "" for n in names)))
    notes = [*_notes(rows)]
    notes += [
        f"{name}: kernel of the {predictions[name].kernel}, {predictions[name].samples} samples per task, ridge "
        f"{predictions[name].ridge:g}."
        for name in shown
    ]
    return Page(
        NAME,
        "The paper's theory beside the runs",
        "Rank correlation (Spearman) of each predictor with the measured forgetting of the tasks of a stream, with a "
        "95 % interval from resampling the seeds. `later tasks` is the trivial predictor: the number of tasks still to "
        "come.",
        words=(
            WordTable("Streams", tuple(_overview(evidence, predictions))),
            WordTable(
                "Forgetting that OGD leaves, in % of plain SGD's", tuple(_shares(evidence, predictions))
            ),
            WordTable("Rank correlations with measured forgetting", tuple(ranks)),
        ),
        verdicts=(verdict(rows),),
        draw=partial(draw, evidence, predictions) if rows else None,
        notes=tuple(notes),
    )


def correlations(
    evidence: Evidence, predictions: Mapping[str, Prediction]
) -> list[tuple[str, str, dict[str, Correlation]]]:
    """(stream, method, correlation of each predictor) wherever there are records and predictions."""
    rows = []
    for stream in evidence.streams:
        for method in METHODS:
            records = evidence.records(stream, method)
            if records and stream in predictions:
                measured = [measured_forgetting(record) for record in records]
                found = predictors(predictions[stream], method, records)
                rows.append(
                    (stream, method, {name: rank_correlation(p, measured) for name, p in found.items()})
                )
    return rows


def verdict(rows: Sequence[tuple[str, str, Mapping[str, Correlation]]]) -> Verdict:
    """Whether the theory's predicted forgetting ranks tasks better than counting the later ones."""
    findings = []
    for stream, method, found in rows:
        theory, trivial = found["predicted forgetting"], found[TRIVIAL]
        answer: Answer = "unclear"
        if theory.seeds > 1:
            answer = "yes" if theory.low > trivial.high else "no" if theory.high < trivial.low else "unclear"
        findings.append(
            Finding(f"{stream} with {method}", answer, f"{theory.text()} against {trivial.text()}")
        )
    claim = "The theory's predicted forgetting ranks tasks better than the number of later tasks does"
    return conclude(
        claim, "sections 5 and 6, not claimed in these words", findings or [Finding("all", "missing")]
    )


def draw(evidence: Evidence, predictions: Mapping[str, Prediction]) -> Figure:
    """One panel per stream: measured forgetting of every task against the predicted one."""
    shown = [stream for stream, *_ in correlations(evidence, predictions)]
    shown = list(dict.fromkeys(shown))
    figure, axes = panels(len(shown))
    for axis, stream in zip(axes, shown, strict=True):
        for method in METHODS:
            records = evidence.records(stream, method)
            if records:
                measured = np.mean([measured_forgetting(record) for record in records], axis=0)
                predicted = predictions[stream].forgetting[method][:-1]
                colour, marker = method_style(method)
                axis.plot(predicted, measured, marker, color=colour, markersize=5, label=method)
        describe(axis, stream, "predicted growth of the squared error", "measured forgetting, %")
    shared_legend(figure, axes)
    return figure


def _overview(evidence: Evidence, predictions: Mapping[str, Prediction]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            "stream",
            "method",
            "dissimilarity",
            "complexity R_T",
            "predicted growth of the squared error",
            "tangent drift",
            "measured loss of accuracy, %",
        )
    ]
    for stream in evidence.streams:
        for method in METHODS:
            records = evidence.records(stream, method)
            if stream not in predictions:
                continue
            known = predictions[stream]
            drift = [np.mean(tangent_drift(record)) for record in records] if method != "sgd" else []
            measured = [np.mean(measured_forgetting(record)) for record in records]
            rows.append(
                (
                    stream,
                    method,
                    f"{np.mean(known.dissimilarity[method]):.3g}",
                    f"{sum(known.complexity[method]):.3g}",
                    f"{np.mean(known.forgetting[method][:-1]):.3g}",
                    f"{np.mean(drift):.3g}" if drift else "",
                    number_text(float(np.mean(measured))) if measured else "not run",
                )
            )
    return rows


def _shares(evidence: Evidence, predictions: Mapping[str, Prediction]) -> list[tuple[str, ...]]:
    """Predicted and measured forgetting in one unit: what OGD leaves of plain SGD's."""
    rows: list[tuple[str, ...]] = [("stream", "predicted, %", "measured, %")]
    for stream in evidence.streams:
        records = {method: evidence.records(stream, method) for method in METHODS}
        if stream in predictions and all(records.values()):
            known = {
                method: float(np.mean(predictions[stream].forgetting[method][:-1])) for method in METHODS
            }
            found = {
                method: float(np.mean([np.mean(measured_forgetting(record)) for record in records[method]]))
                for method in METHODS
            }
            rows.append((stream, *(_share(values["ogd"], values["sgd"]) for values in (known, found))))
    return rows


def _share(part: float, whole: float) -> str:
    """In percent; of nothing, or of less than nothing, there is none."""
    return number_text(100 * part / whole, 0) if whole > 0 else "–"


def _notes(rows: Sequence[tuple[str, str, Mapping[str, Correlation]]]) -> list[str]:
    """How often the theory's numbers rank tasks better than counting the later ones, in sentences."""
    if not rows:
        return []
    trivial = sum(found["predicted forgetting"].value < found[TRIVIAL].value for *_, found in rows)
    against = sum(found["dissimilarity"].value < 0 for *_, found in rows)
    return [
        f"The number of later tasks ranks tasks better than the predicted forgetting in {trivial} of {len(rows)} rows.",
        f"A task's dissimilarity to what came before correlates negatively with how much of it is forgotten in "
        f"{against} "
        f"of {len(rows)} rows: the first tasks are forgotten most, because most tasks follow them.",
        "Predicted and measured forgetting have no unit in common (squared error in closed form, accuracy of the "
        "network), so the second table divides OGD's by plain SGD's. A negative share means that the closed form gets "
        "better on old tasks, where the networks get worse.",
    ]


def _spearman(left: Sequence[float], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's correlation of ranks, ties sharing theirs, with every row; NaN where one side is constant."""
    from scipy.stats import rankdata

    own, others = np.asarray(rankdata(left), dtype=float), np.asarray(rankdata(rows, axis=1), dtype=float)
    own, others = own - own.mean(), others - others.mean(1, keepdims=True)
    sizes = np.sqrt((own**2).sum() * (others**2).sum(1))
    return np.where(sizes > 0, others @ own, np.nan) / np.where(sizes > 0, sizes, 1.0)
