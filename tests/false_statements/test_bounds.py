"""What bounds on the error say, on data that would make it false: it must not be said; on clean data it must be."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.errors import DataError, SettingsError
from orthocl.streams import make
from orthocl.theory import BoundSettings, InfiniteWidthNTK, certify, generalisation_bound, solve_stream
from orthocl.theory.independence import near_copies
from orthocl.theory.points import Points
from orthocl.theory.regression_targets import regression_tasks

WIDE = InfiniteWidthNTK(2, bias_variance=0.1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def flat(x, z):
    return 1 + 0.1 * (x @ z.T)


def noisy_labels(seed, count, grouped):
    """A label of -1 with probability 0.3 whatever the input: no function errs less than that."""
    draw = generator(seed)
    x = torch.randn(count, 5, generator=draw, dtype=torch.float64)
    y = torch.where(torch.rand(count, generator=draw) < 0.3, -1.0, 1.0).double()
    order = y.argsort(stable=True) if grouped else torch.arange(count)
    return x[order], y[order]


@pytest.mark.parametrize("prior", ["other-samples", "earlier-tasks", "initialisation"])
@pytest.mark.parametrize("count", [300, 1000])
def test_rows_grouped_by_class_do_not_make_a_bound_false(count, prior):
    settings = BoundSettings(prior=prior)
    for seed in range(1500 // count):
        solution = solve_stream(flat, [noisy_labels(seed, count, grouped=True)], ridge=50.0)
        found = certify(solution, task=1, settings=settings)
        assert min(bound.value for bound in found.bounds) >= 0.3, found.sentence()


def test_rows_grouped_by_class_and_drawn_rows_say_about_the_same():
    values = [
        certify(solve_stream(flat, [noisy_labels(0, 1000, grouped)], ridge=50.0), task=1).smallest.value
        for grouped in (True, False)
    ]
    assert values[0] == pytest.approx(values[1], abs=0.05)
    assert max(values) < 0.5  # and something is still said


def digits(count, tasks=2, step=10.0, seed=0):
    made = make("rotated-mnist-mini", tasks=tasks, seed=seed, options={"step": step})
    return [task.inputs.flatten(1) for task in regression_tasks(list(made), count, "parity", 1, seed)]


def turned(x, degrees):
    """The images rotated, by the grid sampling of torch."""
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
    images = x.reshape(-1, 1, 32, 32)
    grid = torch.nn.functional.affine_grid(
        turn.to(x).expand(len(x), 2, 3), list(images.shape), align_corners=False
    )
    return torch.nn.functional.grid_sample(images, grid, align_corners=False).reshape(len(x), -1)


COPIES = {
    "noise of 1e-3": lambda x: x + 1e-3 * torch.randn(x.shape, generator=generator(7), dtype=x.dtype),
    "noise of 0.3": lambda x: x + 0.3 * torch.randn(x.shape, generator=generator(7), dtype=x.dtype),
    "5 degrees": lambda x: turned(x, 5),
    "10 degrees": lambda x: turned(x, 10),
    "other brightness": lambda x: 0.9 * x + 0.01,
}


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_near_copies_of_another_task_are_no_new_sample(copy, rule):
    """Random labels, learnt by heart in task 1: on its near copies f is right, on new images wrong half the time."""
    (x,) = digits(300, tasks=1)
    y = torch.randint(0, 2, (300,), generator=generator(1)).double() * 2 - 1
    order = torch.randperm(300, generator=generator(2))
    solution = solve_stream(WIDE, [(x, y), (copy(x)[order], y[order])], rule=rule, ridge=1e-3)
    for task in (1, 2):
        found = certify(solution, task=task)
        assert found.dependent
        assert min(bound.value for bound in found.bounds) >= 0.5, found.sentence()
    with pytest.raises(DataError, match="nearest neighbor is in task 1, and mutual"):
        generalisation_bound(solution, task=2, form="one-ball")
    held = (COPIES["noise of 1e-3"](copy(x)[:100]), y[:100])
    with pytest.raises(DataError, match="nearest neighbor"):
        generalisation_bound(solution, task=2, form="hold-out", held_out=held)


def test_few_copies_among_many_samples_are_found():
    (x,) = digits(500, tasks=1)
    few = Points(COPIES["noise of 1e-3"](x[:60]))
    assert near_copies(WIDE, {1: Points(x)}, 2, few) is not None
    assert near_copies(WIDE, {1: few}, 2, Points(x[:60])) is not None


@pytest.mark.parametrize("step", [0.0, 5.0, 10.0])
def test_different_images_are_no_copies(step):
    first, second = digits(400, step=step)
    assert near_copies(WIDE, {1: Points(first)}, 2, Points(second)) is None
    assert near_copies(WIDE, {1: Points(first)}, 2, Points(second[:40])) is None
    noisy = second + 0.3 * torch.randn(second.shape, generator=generator(), dtype=second.dtype)
    assert near_copies(WIDE, {1: Points(first)}, 2, Points(noisy)) is None
    assert near_copies(WIDE, {1: Points(noisy)}, 2, Points(first)) is None


@pytest.mark.parametrize("dimension", [1, 2, 5, 30])
def test_independent_draws_are_hardly_ever_refused(dimension):
    for seed in range(40):
        draw = generator(seed)
        x, z = (torch.randn(60, dimension, generator=draw, dtype=torch.float64) for _ in range(2))
        wide = InfiniteWidthNTK(1, bias_variance=1.0)
        assert near_copies(wide, {1: Points(x)}, 2, Points(z)) is None


def clean(rule="ogd", count=400, memory=None):
    """Three tasks of one rule on new inputs each: something true is to be said of them."""
    draw = generator(3)
    tasks = []
    for _ in range(3):
        x = torch.randn(count, 4, generator=draw, dtype=torch.float64)
        tasks.append((x, x[:, 0].sign()))
    return solve_stream(lambda x, z: x @ z.T, tasks, rule=rule, ridge=1.0, memory=memory)


def test_the_hypothesis_stands_in_the_sentence():
    solution = clean()
    x = torch.randn(200, 4, generator=generator(9), dtype=torch.float64)
    for task in (1, 2, 3):
        said = certify(solution, task=task).sentence()
        assert "if this task's samples are independent of the others'" in said
        assert "with probability 95 %" in said
        assert "at most 0." in said
        with_held = certify(solution, task=task, held_out=(x, x[:, 0].sign()))
        assert with_held.deterministic.form == "hold-out"
        assert "if the held-out samples are independent of all others" in with_held.sentence()
    earlier = certify(solution, task=2, settings=BoundSettings(prior="earlier-tasks"))
    assert "if this task's samples are independent of those of the tasks before it" in earlier.sentence()
    assert "if " not in certify(clean(), task=2, settings=BoundSettings(prior="initialisation")).sentence()
    for form in ("sound", "one-ball", "pac-bayes"):
        text = str(generalisation_bound(solution, task=2, form=form))
        assert ("if this task's samples" in text) == (form != "sound" and "vacuous" not in text)


def test_a_bound_of_draws_is_not_said_of_the_function():
    found = certify(clean(), task=3)
    (gibbs,) = [bound for bound in found.bounds if bound.form == "pac-bayes"]
    assert found.smallest is gibbs
    own = min(bound.deterministic for bound in found.bounds)
    assert f"the 0-1 error of f after task 3 is at most {own:.3g} " in found.sentence()
    assert f"a draw around f: at most {gibbs.value:.3g}" in found.sentence()
    assert own >= 2 * gibbs.value or found.deterministic.form != "pac-bayes"
    assert f"the 0-1 error of a draw around f is at most {gibbs.value:.1%}" in str(gibbs)


def test_rows_that_somebody_chose_are_no_part_of_a_prior():
    rows = [torch.tensor([1, 5, 9])] * 3
    chosen = clean(memory=rows)
    with pytest.raises(SettingsError, match="without looking at its samples"):
        generalisation_bound(chosen, task=2, form="pac-bayes", settings=BoundSettings(prior="other-samples"))
    said = certify(chosen, task=2).sentence()
    assert "independent of those of the tasks before it" in said
    counted = certify(clean(memory=3), task=2)
    assert "independent of the others'" in counted.sentence()


def test_the_level_does_not_depend_on_what_is_seen_in_the_samples():
    x = torch.randn(300, 4, generator=generator(), dtype=torch.float64)
    y = x[:, 0].sign()
    alone = solve_stream(lambda x, z: x @ z.T, [(x, y)], ridge=1.0)
    twice = solve_stream(lambda x, z: x @ z.T, [(x, y), (x, y)], ridge=1.0)
    settings = BoundSettings(prior="initialisation")
    levels = [
        {
            bound.form: bound.terms["confidence"]
            for bound in certify(each, task=1, after=1, settings=s).bounds
            if "confidence" in bound.terms
        }
        for each, s in ((alone, settings), (twice, BoundSettings(prior="other-samples")))
    ]
    assert levels[0]["sound"] == levels[1]["sound"]
