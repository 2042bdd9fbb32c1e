"""Sizes that are estimated from shapes alone, by hand."""

from __future__ import annotations

from math import ceil, log10

import pytest
import torch
from torch import nn

from orthocl.tangents.compress import Compression
from orthocl.tangents.remembering import Remembering
from orthocl.tangents.survey import estimated_core, survey


@pytest.mark.parametrize(
    ("left_out", "share"),
    [
        (0.5, 0.01),
        (0.1, 0.01),
        (0.01, 0.01),
        (0.002, 0.01 * 4.5 ** -log10(0.2)),
        (0.001, 0.045),
        (0.0003, 0.045 * (0.12 / 0.045) ** -log10(0.3)),
        (0.0001, 0.12),
        (0.00002, 0.12 * (0.12 / 0.045) ** -log10(0.2)),
        (0.0, 1.0),
    ],
)
def test_shares_of_cores_between_and_beyond_the_points(left_out, share):
    """Powers between two points, the last power beyond them; a core's share is the product of two sides."""
    inputs, outputs = estimated_core(10**6, 10**5, 10**9, 1 - left_out)
    assert inputs == pytest.approx(share**0.5 * 10**6, rel=1e-5)
    assert outputs == pytest.approx(share**0.5 * 10**5, rel=1e-4)
    assert estimated_core(10**6, 10**5, 7, 1 - left_out) == (7, 7)


def test_only_sums_of_outer_products_are_planned_as_compressed():
    """An embedding stays what it is whatever is left out, and nothing is compressed where nothing may be."""
    model = nn.Sequential(
        nn.Embedding(500, 16), nn.Linear(16, 300), nn.LayerNorm(300), nn.Flatten(), nn.Linear(1500, 300)
    )
    x, parameters = torch.zeros(1, 5, dtype=torch.long), dict(model.named_parameters())
    kinds = {}
    for energy in (1.0, 0.9):
        blocks = survey(model, x, parameters, Remembering(), Compression(energy=energy, rows=10_000)).blocks
        kinds[energy] = {block.names[0]: block.kind for block in blocks}
    assert set(kinds[1.0].values()) <= {"dense", "factored", "patches", "rows"}
    assert kinds[0.9]["1.weight"] == "compressed"
    assert (kinds[1.0]["0.weight"], kinds[1.0]["2.weight"]) == ("rows", "dense")
    assert (kinds[0.9]["0.weight"], kinds[0.9]["2.weight"]) == ("rows", "dense")
    (found,) = [block for block in blocks if block.names[0] == "1.weight"]
    assert found.ranks == (ceil(0.1 * 16), ceil(0.1 * 300))
