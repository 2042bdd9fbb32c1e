"""Orders of tasks: the programme over subsets against all orders, and what counts as realisable."""

from __future__ import annotations

import itertools

import pytest
import torch

from orthocl.errors import SettingsError
from orthocl.theory import Curriculum, solve_stream
from orthocl.theory.complexity import complexity_terms
from orthocl.theory.curriculum import Order


def linear(x, z):
    return x @ z.T


def tasks(count, samples, features, seed=0, columns=None, fitted=False):
    generator = torch.Generator().manual_seed(seed)
    shape = (features,) if columns is None else (features, columns)
    goal = torch.randn(shape, generator=generator, dtype=torch.float64)
    found = []
    for _ in range(count):
        x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
        y = torch.randn((samples, *shape[1:]), generator=generator, dtype=torch.float64)
        found.append((x, x @ goal if fitted else y))
    return found


@pytest.mark.parametrize(("samples", "fitted"), [(2, False), (3, True)])
@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize(("scale", "initial"), [(1.0, 0.0), (1e-4, 0.0), (1.0, 2.0)])
def test_the_programme_over_subsets_finds_the_best_of_all_orders(samples, fitted, columns, scale, initial):
    """Four tasks in nine dimensions: independent points, and points of which some depend on others but fit."""
    given = [(scale * x, y + initial) for x, y in tasks(4, samples, 9, columns=columns, fitted=fitted)]
    curriculum = Curriculum(linear, given, initial=initial)
    assert curriculum.realisable()
    every = {order: curriculum.complexity(order) for order in itertools.permutations(range(1, 5))}
    seen = []
    best = curriculum.best_order("subsets", progress=lambda done, total: seen.append((done, total)))
    assert best.exact
    assert best.complexity == pytest.approx(min(every.values()), rel=1e-9)
    assert every[best.tasks] == pytest.approx(best.complexity, rel=1e-12)
    # The full set has nothing left to learn: it is not visited.
    assert seen == [(number, 16) for number in range(1, 16)]
    assert curriculum.best_order("exhaustive").complexity == pytest.approx(best.complexity, rel=1e-12)
    assert curriculum.best_order().search == "subsets"
    assert best.complexity <= curriculum.greedy_order().complexity <= max(every.values())


def test_what_one_function_fits_is_realisable():
    """Two inputs in one dimension: y = 3 x fits both, 3 and 5 do not, and from f_0 = x other targets do."""
    one, two = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)

    def found(first: float, second: float, **settings) -> bool:
        pairs = [(one, torch.tensor([first])), (two, torch.tensor([second]))]
        return Curriculum(linear, pairs, **settings).realisable()

    assert found(3.0, 6.0)
    assert not found(3.0, 5.0)
    assert not found(3.0, 6.0, initial=1.0)
    assert found(4.0, 7.0, initial=1.0)
    assert not found(2.0, 5.0, initial=1.0)
    assert found(0.0, 0.0)
    flat = [(0 * one, torch.tensor([1.0])), (0 * one, torch.tensor([1.0]))]
    assert not Curriculum(linear, flat).realisable()
    assert Curriculum(linear, [(x, 0 * y) for x, y in flat]).realisable()  # zero is fitted by nothing at all


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_the_table_of_dissimilarities_is_that_of_pairs(rule, ridge):
    curriculum = Curriculum(linear, tasks(3, 2, 7, columns=2), rule=rule, ridge=ridge, initial=0.3)
    table = curriculum.dissimilarity_matrix()
    for j in (1, 2, 3):
        assert float(table[0, j - 1]) == pytest.approx(curriculum.learn([j]).steps[0].dissimilarity)
        for i in (1, 2, 3):
            expected = curriculum.learn([i, j]).steps[1].dissimilarity
            assert float(table[i, j - 1]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_neighbours_by_hand():
    """Targets 1, 2 and 5 at one input without ridge: the cheapest first, then the nearest or the farthest."""
    point = torch.ones(1, 1, dtype=torch.float64)
    curriculum = Curriculum(linear, [(point, torch.tensor([y])) for y in (2.0, 1.0, 5.0)], rule="sgd")
    assert curriculum.neighbours_order().tasks == (2, 1, 3)
    assert curriculum.neighbours_order(similar=False).tasks == (2, 3, 1)
    assert curriculum.complexity([2, 1, 3]) == pytest.approx(1 + 1 + 3)
    assert curriculum.complexity_terms([2, 3, 1]) == pytest.approx([1, 4, 3])


def test_neighbours_of_five_targets_by_hand():
    """At one input S is the squared distance of the targets: from 1 the nearest next one, or the farthest."""
    point = torch.ones(1, 1, dtype=torch.float64)
    targets = (7.0, 1.0, 4.0, 12.0, 2.5)
    curriculum = Curriculum(linear, [(point, torch.tensor([y])) for y in targets], rule="sgd")
    assert curriculum.neighbours_order().tasks == (2, 5, 3, 1, 4)
    assert curriculum.neighbours_order(similar=False).tasks == (2, 4, 5, 1, 3)


@pytest.mark.parametrize("seed", range(4))
def test_tasks_of_different_sizes_are_ordered_by_their_share(seed):
    """1 to 4 samples: each term is divided by its own number of samples."""
    given = [tasks(1, samples, 12, seed=10 * seed + samples)[0] for samples in (1, 2, 3, 4)]
    curriculum = Curriculum(linear, given)
    every = {order: curriculum.complexity(order) for order in itertools.permutations(range(1, 5))}
    best = curriculum.best_order("subsets")
    assert every[best.tasks] == pytest.approx(min(every.values()), rel=1e-12)


def test_exchanges_find_what_a_narrow_search_misses():
    curriculum = Curriculum(linear, tasks(5, 2, 4, seed=3), rule="sgd", ridge=0.1)
    best = min(curriculum.complexity(order) for order in itertools.permutations(range(1, 6)))
    start = Order((5, 4, 3, 2, 1), curriculum.complexity((5, 4, 3, 2, 1)), "given")
    better = curriculum._exchange(start)
    assert better.complexity < start.complexity
    assert better.complexity == pytest.approx(curriculum.complexity(better.tasks))
    assert curriculum.best_order().complexity == pytest.approx(best)
    assert curriculum.best_order("beam", beam_width=120).complexity == pytest.approx(best)
    with pytest.raises(SettingsError, match="programme over subsets"):
        curriculum.best_order("subsets")
    with pytest.raises(SettingsError, match="programme over subsets"):
        Curriculum(linear, tasks(3, 2, 9), memory=1).best_order("subsets")
    assert Curriculum(linear, tasks(3, 2, 9), memory=2).best_order().exact  # all that there is


def test_too_many_orders_are_refused():
    ten = tasks(10, 1, 3)
    with pytest.raises(SettingsError, match="at most 9 tasks"):
        Curriculum(linear, ten, rule="sgd").best_order("exhaustive")
    with pytest.raises(SettingsError, match="got task 0"):
        Curriculum(linear, ten).learn([0])
    with pytest.raises(SettingsError, match="got task 11"):
        Curriculum(linear, ten).learn([11])
    with pytest.raises(SettingsError, match="zero samples or more"):
        Curriculum(linear, ten, memory=-1)
    assert not Curriculum(linear, ten, memory=0).full_memory


def test_the_complexity_is_that_of_the_stream():
    given = tasks(3, 4, 7, columns=2)
    for rule in ("sgd", "ogd"):
        curriculum = Curriculum(linear, given, rule=rule, ridge=0.2)
        solution = solve_stream(linear, [given[2], given[0]], rule=rule, ridge=0.2)
        assert curriculum.complexity_terms([3, 1]) == pytest.approx(complexity_terms(solution))
        assert curriculum.complexity([3, 1]) == pytest.approx(sum(complexity_terms(solution)))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_realisable_in_any_units_of_the_targets(scale):
    fits, does_not = tasks(3, 3, 5, fitted=True), tasks(3, 3, 5)
    assert Curriculum(linear, [(x, scale * y) for x, y in fits]).realisable()
    assert not Curriculum(linear, [(x, scale * y) for x, y in does_not]).realisable()


def test_memory_is_asked_for_before_matrices_are_formed():
    """Three matrices of 8 bytes for 6 x 6 points; the programme over subsets of 2 tasks needs 4/3 of one."""
    given = tasks(2, 3, 9)
    Curriculum(linear, given, memory_limit=3 * 8 * 36)
    with pytest.raises(SettingsError, match="the joint kernel matrix of 6 points"):
        Curriculum(linear, given, memory_limit=3 * 8 * 36 - 1)
    curriculum = Curriculum(linear, given, memory_limit=3 * 8 * 36)
    curriculum.memory_limit = 8 * 36 * 4 // 3
    assert curriculum.best_order("subsets").exact
    curriculum.memory_limit -= 1
    with pytest.raises(SettingsError, match="the programme over subsets of 2 tasks with 6 points"):
        curriculum.best_order("subsets")


def test_greedy_takes_the_cheapest_next_task():
    for seed in range(6):
        curriculum = Curriculum(linear, tasks(5, 2, 4, seed=seed), rule="sgd", ridge=0.1)
        order: tuple[int, ...] = ()
        while len(order) < 5:
            left = [task for task in range(1, 6) if task not in order]
            order = min(((*order, task) for task in left), key=curriculum.complexity)
        found = curriculum.greedy_order()
        assert found.tasks == order
        assert found.complexity == pytest.approx(curriculum.complexity(order), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_after_exchanges_no_reversed_segment_is_cheaper(seed):
    curriculum = Curriculum(linear, tasks(5, 2, 4, seed=seed), rule="sgd", ridge=0.1)
    for start in ((5, 4, 3, 2, 1), (2, 5, 1, 4, 3), (3, 1, 5, 2, 4)):
        found = curriculum._exchange(Order(start, curriculum.complexity(start), "given"))
        assert sorted(found.tasks) == [1, 2, 3, 4, 5]
        assert found.complexity == pytest.approx(curriculum.complexity(found.tasks), rel=1e-12)
        for first, last in itertools.combinations(range(6), 2):
            segment = found.tasks[first:last]
            other = found.tasks[:first] + segment[::-1] + found.tasks[last:]
            assert curriculum.complexity(other) >= found.complexity * (1 - 1e-9)


def test_orders_that_are_tried_are_counted_and_named():
    curriculum, seen = Curriculum(linear, tasks(3, 2, 4), rule="sgd"), []
    found = curriculum.best_order("exhaustive", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 6) for number in range(1, 7)]
    assert (found.search, found.exact) == ("exhaustive", True)
    assert curriculum.neighbours_order().search == "similar neighbours"
    assert curriculum.neighbours_order(similar=False).search == "dissimilar neighbours"
    assert curriculum.greedy_order().search == "greedy"


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_contradiction_of_a_thousandth_is_not_realisable(scale):
    """y = 3 x at 1 and 2, and the same with the second target a thousandth larger."""
    one = torch.ones(1, 1, dtype=torch.float64)

    def found(second: float) -> bool:
        pairs = [(one, 3.0 * scale * one[0]), (2 * one, second * scale * one[0])]
        return Curriculum(linear, pairs).realisable()

    assert found(6.0)
    assert not found(6.006)
