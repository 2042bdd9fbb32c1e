"""Split MNIST: the protocol gives hyperparameters for it, the paper prints no table. All methods, all metrics.

The runs are those of `experiments/table_split_mnist.toml`.
"""

from __future__ import annotations

from orthocl.paper.claims import conclude, is_higher
from orthocl.paper.comparison import Comparison, Line
from orthocl.paper.evidence import METRICS, Evidence, aac
from orthocl.paper.page import Page

NAME = "split-mnist"


def split_mnist(evidence: Evidence, comparable: bool = True) -> Page:
    """All metrics of all methods on Split MNIST."""
    lines = [
        Line(stream, method, metric.upper(), evidence.sample(stream, method, measure))
        for stream in evidence.streams
        for metric, measure in METRICS.items()
        for method in evidence.methods(stream)
    ]
    findings = [is_higher(evidence, NAME, "ogd+", "ogd", aac)]
    return Page(
        NAME,
        "Split MNIST: all methods",
        "Not in the paper. Five tasks of two digits, a head each; average accuracy, backward and forward transfer, "
        "-F_T.",
        (Comparison("Percent", tuple(lines), comparable, across=True),),
        verdicts=(conclude("On Split MNIST OGD+ is more accurate than OGD", "not in the paper", findings),),
    )
