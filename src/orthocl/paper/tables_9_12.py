"""Tables 9 to 12: average accuracy, backward and forward transfer and forgetting of all methods, one stream each.

Paper: Tables 9 to 12 (`tab:app:exp:bench:*`), appendix. The runs are those of Table 2.
"""

from __future__ import annotations

from functools import partial

from orthocl.formatting import joined
from orthocl.paper.authors import authors_value
from orthocl.paper.claims import (
    Finding,
    Verdict,
    conclude,
    is_above_median,
    is_equal,
    is_higher,
    printed_spread,
    working,
)
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.evidence import METRICS, Evidence
from orthocl.paper.page import Page
from orthocl.paper.published import find_printed, published_item
from orthocl.paper.table_2 import BASELINES, COEFFICIENTS

STREAMS = {
    "table-9": "permuted-mnist",
    "table-10": "rotated-mnist",
    "table-11": "split-cifar100",
    "table-12": "cub200",
}


def all_metrics(name: str, evidence: Evidence, comparable: bool = True) -> Page:
    """One of Tables 9 to 12 from the records of its runs."""
    stream = STREAMS[name]
    comparisons = tuple(
        Comparison(f"{metric.upper()}, %", tuple(_lines(name, evidence, stream, metric)), comparable)
        for metric in METRICS
    )
    return Page(
        name,
        f"Table {name.partition('-')[2]}: all metrics, {stream}",
        published_item(name).caption,
        comparisons,
        verdicts=verdicts(name, evidence),
        notes=("The printed Stable SGD row comes from another pipeline: see Table 2.",),
    )


table_9 = partial(all_metrics, "table-9")
table_10 = partial(all_metrics, "table-10")
table_11 = partial(all_metrics, "table-11")
table_12 = partial(all_metrics, "table-12")


def verdicts(name: str, evidence: Evidence) -> tuple[Verdict, ...]:
    """What the appendix says about this table."""
    stream = STREAMS[name]
    if name == "table-9":
        rivals, left_out = working(evidence, stream, BASELINES)
        best = [
            _renamed(is_higher(evidence, stream, "ogd+", other, METRICS["aac"]), other) for other in rivals
        ]
        return (
            conclude(
                "OGD+ is more accurate than every baseline",
                "appendix, Table 9",
                best or [Finding(stream, "unclear" if left_out else "missing")],
                note=left_out.removeprefix("; ").capitalize(),
                everywhere=True,
                preposition="against",
            ),
            _competitive(evidence, stream, ("afm", "bwt"), name),
        )
    if name == "table-10":
        better = [
            _renamed(
                is_higher(
                    evidence,
                    stream,
                    "ogd+",
                    "ogd",
                    METRICS[metric],
                    printed_spread(name, stream, ("ogd", "ogd+"), metric),
                ),
                metric.upper(),
            )
            for metric in ("aac", "bwt", "afm")
        ]
        return (
            _competitive(evidence, stream, ("aac", "afm"), name),
            conclude("OGD+ is better than OGD on AAC, BWT and AFM", "appendix, Table 10", better),
        )
    alike = [
        _renamed(
            is_equal(
                evidence,
                stream,
                "ogd+",
                "ogd",
                METRICS[metric],
                printed_spread(name, stream, ("ogd", "ogd+"), metric),
            ),
            metric.upper(),
        )
        for metric in METRICS
    ]
    place = f"Table {name.partition('-')[2]}"
    return (
        _competitive(evidence, stream, ("aac", "bwt", "afm"), name, wanted=False),
        conclude("OGD+ does as well as OGD on all metrics", f"appendix, {place}", alike),
    )


def _competitive(
    evidence: Evidence, stream: str, metrics: tuple[str, ...], name: str, wanted: bool = True
) -> Verdict:
    findings = [
        _renamed(is_above_median(evidence, stream, "ogd+", BASELINES, metric, name, wanted), metric.upper())
        for metric in metrics
    ]
    side, words = ("above", "competitive") if wanted else ("below", "not competitive")
    where = joined([metric.upper() for metric in metrics])
    claim = f'On {where} OGD+ is {side} the median of the baselines ("{words}")'
    note = COEFFICIENTS if stream == "cub200" and evidence.records(stream, "ewc") else ""
    return conclude(claim, f"appendix, Table {name.partition('-')[2]}", findings, note)


def _renamed(finding: Finding, where: str) -> Finding:
    return Finding(where, finding.answer, finding.detail)


def _lines(name: str, evidence: Evidence, stream: str, metric: str) -> list[Line]:
    return [
        Line(
            stream,
            method,
            metric.upper(),
            evidence.sample(stream, method, METRICS[metric]),
            find_printed(name, stream, method, metric),
            authors_value(stream, method, metric),
        )
        for method in evidence.methods(stream)
    ]
