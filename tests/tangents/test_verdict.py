"""Plans in words: counted arithmetic, the part that is affordable, and how plans print."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import orthocl
from orthocl.tangents.memory_plan import Cost, LayerPlan, Plan
from orthocl.tangents.plan_text import rows_of
from orthocl.tangents.planner import plan
from orthocl.tangents.verdict import PlainStep, cheap_part, plain_step, times_plain, verdict


def network():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10))


def test_arithmetic_of_a_plain_step():
    by_hand = 3 * 4 * (64 * 8 * 27 + 8 * 64 * 10)  # three products, batch of 4, both layers
    assert plain_step(network(), torch.zeros(1, 3, 8, 8), 4, timed=False) == PlainStep(by_hand)


def test_timing_changes_nothing():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = plain_step(model, torch.zeros(1, 3, 8, 8), 4)
    assert found.seconds is not None
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_cheap_part_is_within_its_price():
    model, example = network(), torch.zeros(1, 3, 8, 8)
    found = plan(model, example, tasks=5, memory_per_task=20)
    plain = plain_step(model, example, 32, timed=False)
    whole = times_plain(found, plain)
    assert whole == 1 + found.costs[found.choice].madds / plain.madds
    assert abs(times_plain(found, plain, found.layers) - whole) < 1e-9
    part = cheap_part(found, plain, most=(1 + whole) / 2)
    assert len(part) < len(found.layers)
    assert not part or times_plain(found, plain, part) <= (1 + whole) / 2
    assert "times the arithmetic" in verdict(found, plain)[0]


def test_plans_bounds_and_solutions_are_readable():
    found = plan(network(), torch.zeros(1, 3, 8, 8), tasks=5, memory_per_task=20)
    assert repr(found).startswith("Plan(100 tangents of 5,354 weights: ")
    assert "(chosen)" in str(found)
    assert str(found).count("\n") == 4
    assert "<table>" in found._repr_html_()
    tight = plan(network(), torch.zeros(1, 3, 8, 8), tasks=5, memory_per_task=20, budget=1000)
    assert "nothing fits" in repr(tight)
    assert "Nothing fits" in str(tight)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    solution = orthocl.solve_stream(orthocl.InfiniteWidthNTK(), [(x, x[:, 0].sign())] * 2, ridge=0.1)
    assert solution._repr_html_().count("<tr>") == 3
    bound = orthocl.generalisation_bound(solution, task=1, form="sound")
    assert f"= {bound.value:.4g}, vacuous" in str(bound)
    assert repr(bound) == f"Bound({bound})"
    assert "<table>" in bound._repr_html_()


@pytest.mark.parametrize("path", ["adapter", "project"])
def test_all_layers_cost_what_the_plan_costs_also_when_compressed(path):
    torch.manual_seed(0)
    example = torch.randn(40, 3, 8, 8)
    settings = {"tasks": 5, "memory_per_task": 100, "energy": 0.99}
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(1024, 50)
    )
    found = plan(model, example, **settings)
    if path == "project":  # what only the leaner of the two fits in
        found = plan(model, example, **settings, budget=found.costs["project"].nbytes)
    assert found.choice == path
    assert any(layer.fixed_madds for layer in found.layers)
    plain = PlainStep(10**5)
    assert times_plain(found, plain, found.layers) == pytest.approx(times_plain(found, plain), rel=1e-12)


def test_the_seconds_of_a_protected_step_are_so_many_plain_ones():
    found = plan(network(), torch.zeros(1, 3, 8, 8), tasks=5, memory_per_task=20)
    madds = found.costs[found.choice].madds
    (sentence, *_) = verdict(found, PlainStep(madds, seconds=0.5))
    assert "a step is 2 times" in sentence
    assert "about 1 s, where a plain one took 500 ms" in sentence
    assert verdict(found, PlainStep(2 * madds)) == [
        verdict(found, PlainStep(2 * madds))[0]
    ]  # 1.5 times: no warning
    assert len(verdict(found, PlainStep(2 * madds - 1))) > 1


def test_timing_takes_less_than_the_process_has_run():
    assert 0 <= plain_step(network(), torch.zeros(1, 3, 8, 8), 4).seconds < 5


def test_the_choice_is_marked_and_nothing_else():
    for budget in (None, 50_000):
        found = plan(network(), torch.zeros(1, 3, 8, 8), tasks=1, memory_per_task=5, budget=budget)
        marked = [name for name, _, _ in rows_of(found) if name.endswith(" (chosen)")]
        assert marked == ([f"{found.choice} (chosen)"] if found.choice else [])


def test_the_cheap_part_begins_with_the_most_weights_for_the_price():
    """Prices of 2.8, 2.5 and 2.6 a weight, the dearer of both ways; there is room for the first or the two others."""
    layers = tuple(
        LayerPlan(name, 100, "factored", True, 8.0, projection, step)
        for name, projection, step in (("a", 100, 280), ("b", 200, 250), ("c", 260, 10))
    )
    costs = {"dense": Cost(1, 1), "project": Cost(1, 10**6), "adapter": Cost(1, 10)}
    found = Plan(1, 1, 1, 1, 1, layers, costs)
    assert found.choice == "adapter"
    room = 1.2815  # steps of 280, or of 250 and 10, and the product with the inverse, of 1
    assert [layer.name for layer in cheap_part(found, PlainStep(1000), most=room)] == ["b", "c"]
    assert [layer.name for layer in cheap_part(found, PlainStep(1000), most=1.2515)] == ["b"]
