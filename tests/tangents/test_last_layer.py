from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orthocl.tangents import collect
from orthocl.tangents.blocks import Factored
from orthocl.tangents.last_layer import by_output


def make_block(outputs, values, inputs=3, bias=True, total=None, source=None):
    """A factored block whose row n has the value `values[n]` at output `outputs[n]`."""
    torch.manual_seed(0)
    total = total or max(outputs) + 1
    deltas = torch.zeros(len(outputs), total, dtype=torch.float64)
    deltas[range(len(outputs)), outputs] = torch.tensor(values, dtype=torch.float64)
    stored = torch.randn(len(outputs) if source is None else max(source) + 1, inputs, dtype=torch.float64)
    names, shapes = (("w", "b"), ((total, inputs), (total,))) if bias else (("w",), ((total, inputs),))
    return Factored(names, shapes, stored, deltas, None if source is None else torch.tensor(source))


def assert_products_agree(block):
    """Both products against those of the factored block."""
    found = by_output(block, torch.float64)
    assert found is not None
    gradient = [torch.randn(shape, dtype=torch.float64) for shape in block.shapes]
    torch.testing.assert_close(found.coefficients(gradient), block.coefficients(gradient))
    for _ in range(2):  # the second time with a buffer that has been used
        weights = torch.randn(block.rows, dtype=torch.float64)
        targets = [torch.randn(shape, dtype=torch.float64) for shape in block.shapes]
        expected = [t + 0.3 * c for t, c in zip(targets, block.combine(weights), strict=True)]
        found.add_combination(weights, targets, 0.3)
        torch.testing.assert_close(targets, expected)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(4, 6), st.integers(1, 5), st.booleans()
)
def test_products_are_those_of_the_factors(outputs, total, inputs, bias):
    block = make_block(outputs, [1.0 + n for n in range(len(outputs))], inputs, bias, total)
    assume(by_output(block, torch.float64) is not None)
    assert_products_agree(block)


def test_all_outputs_and_some():
    assert_products_agree(make_block([0, 1, 2, 2, 1, 0], [1.0, -2.0, 3.0, 1.0, 1.0, 0.5]))
    assert_products_agree(make_block([4, 1, 1, 4], [1.0, 2.0, 3.0, 4.0], total=7))


def test_zero_rows_are_left_out():
    assert_products_agree(make_block([0, 1, 0, 1, 2], [1.0, 0.0, 2.0, 3.0, 0.0]))


def test_rows_of_another_head_share_one_input():
    assert_products_agree(make_block([0, 1, 0, 0, 0], [1.0, 2.0, 0.0, 0.0, 0.0], source=[0, 1, 2, 2, 2]))


@pytest.mark.parametrize(
    "block",
    [
        make_block([0] * 9 + [1, 2], [1.0] * 11),  # badly balanced: padding would triple it
        make_block([0, 1, 0, 1], [1.0] * 4, source=[0, 0, 1, 1]),  # rows that share inputs
        make_block([0, 1], [0.0, 0.0]),  # nothing but zeros
    ],
)
def test_what_is_not_sorted(block):
    assert by_output(block, torch.float64) is None


def test_several_outputs_per_row_are_not_sorted():
    block = make_block([0, 1], [1.0, 1.0])
    block.deltas[0, 1] = 1e-30
    assert by_output(block, torch.float64) is None


def test_the_last_layer_of_a_classifier_is_found(make_problem):
    problem = make_problem("mlp")
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    *_, last = tangents.blocks
    assert by_output(last, torch.float64) is not None
    assert all(by_output(block, torch.float64) is None for block in tangents.blocks[:-1])
