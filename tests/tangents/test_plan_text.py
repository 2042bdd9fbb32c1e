"""How a plan prints, letter by letter."""

from __future__ import annotations

from orthocl.tangents.memory_plan import Cost, LayerPlan, Plan
from orthocl.tangents.plan_text import as_text


def test_the_table_of_a_plan():
    """Names are left, numbers right, in columns as wide as their widest entry."""
    layer = LayerPlan("0", 40, "factored", True, 8.0, 80, 20)
    costs = {"dense": Cost(800, 900), "project": Cost(700, 5_200), "adapter": Cost(600, 22_300_000)}
    found = Plan(5, 1, 1, 5, 2, (layer,), costs)
    assert as_text(found).splitlines() == [
        "5 tangents of 40 weights (1 task x 5 samples x 1), batches of 2",
        "way               memory  multiply-adds a step",
        "dense              800 B                   900",
        "project (chosen)   700 B                 5.2 k",
        "adapter            600 B                22.3 M",
    ]
    wide = {"dense": Cost(3 * 2**30, 1), "project": Cost(700, 2), "adapter": Cost(600, 3)}
    lines = as_text(Plan(5, 1, 1, 5, 2, (layer,), wide)).splitlines()[1:]
    assert len({len(line) for line in lines}) == 1
