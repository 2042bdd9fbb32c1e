"""The cost model counts what the blocks really store and multiply."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.tangents.blocks import Compressed, Factored, Patches
from orthocl.tangents.blocks.rows import Rows
from orthocl.tangents.costs import (
    LayerShape,
    adapter_is_cheaper,
    projection_madds,
    sparse_rows_are_smaller,
    step_of,
    step_on,
)


@pytest.mark.parametrize(("bias", "groups"), [(True, 1), (False, 1), (True, 2)])
def test_numbers_of_a_compressed_layer_are_those_of_its_block(bias, groups):
    """5 inputs and 4 outputs of each group, 3 and 2 directions of them."""
    names, shapes = ("w", "b"), ((4 * groups, 5), (4 * groups,))
    count = 2 if bias else 1
    block = Compressed(
        names[:count],
        shapes[:count],
        torch.linalg.qr(torch.randn(groups, 5, 3))[0],
        torch.linalg.qr(torch.randn(groups, 4, 2))[0],
        torch.randn(7, groups, 2, 3 + bias),
    )
    shape = LayerShape(5, 4, 1, 5, block.parameters, groups)
    assert shape.core_numbers((3, 2)) == block.cores[0].numel()
    assert shape.basis_numbers((3, 2)) == block.input_basis.numel() + block.output_basis.numel()
    rows, fixed = projection_madds(block)
    assert rows == 2 * block.cores[0].numel()
    # V^T g, of 2 x 4 x 5 multiply-adds, is the smaller side; then its 2 x 5 x 3 products with U; both ways.
    assert fixed == 2 * groups * (2 * 4 * 5 + 2 * 5 * 3)
    assert shape.basis_projection((2, 3)) == 2 * groups * (4 * 5 * 2 + 3 * 4 * 2)


def test_numbers_and_products_of_exact_layers_by_hand():
    convolution = LayerShape(inputs=9, outputs=4, positions=16, input_numbers=36, parameters=40)
    assert convolution.numbers("dense") == 40
    assert convolution.numbers("patches") == 36 + 16 * 4
    assert convolution.numbers("patches", logits=3) == 12 + 16 * 4
    assert convolution.projection("dense") == 80
    assert convolution.projection("patches") == 2 * 16 * 9 * 4
    linear = LayerShape(inputs=10, outputs=3, positions=1, input_numbers=10, parameters=33)
    assert linear.adapter(8) == 8 * (2 * 3 + 2 * 10)
    assert linear.adapter(8, first=True) == 8 * (2 * 3 + 10)
    assert linear.adapter(8, first=True, cached=True) == 8 * 2 * 3


def test_prices_by_hand():
    """Time times numbers; a number takes as long to read, twice, as 16 multiply-adds."""
    shape = LayerShape(inputs=10, outputs=3, positions=1, input_numbers=10, parameters=33)
    dense = 5 * 33 * (5 * 66 + 32 * 5 * 33)
    assert shape.price("dense", rows=5) == dense
    factored = 5 * 13 * (5 * 60 + 32 * 5 * 13)
    assert shape.price("factored", rows=5) == factored
    assert shape.price("factored", rows=5, batch_size=2) == 5 * 13 * (5 * 2 * 26 + 32 * 5 * 13)
    assert shape.price("factored", rows=5, batch_size=100) == factored
    stored = 5 * 2 * 3 + 10 * 2 + 3 * 2
    madds = 2 * (10 * 3 * 2 + 2 * 3 * 2) + 2 * 5 * 2 * 3
    assert shape.price("compressed", rows=5, core=(2, 2)) == stored * (madds + 32 * stored)


def test_where_the_choice_turns():
    shape = LayerShape(inputs=10, outputs=10, positions=1, input_numbers=10, parameters=100)
    assert adapter_is_cheaper(shape, batch_size=4)  # 4 x 40 < 200
    assert not adapter_is_cheaper(shape, batch_size=5)  # the same: the adapter is no gain
    assert step_on(nn.Linear(10, 10), 100, 4) == "adapter"
    assert step_on(nn.Linear(10, 10), 100, 5) == "directly"
    assert step_on(nn.Conv2d(1, 1, 1), 100, 1) == "directly"
    assert step_on(None, 100, 1) == "directly"
    assert sparse_rows_are_smaller(50, 100)
    assert not sparse_rows_are_smaller(51, 100)
    just = LayerShape(inputs=20, outputs=20, positions=2, input_numbers=60, parameters=400)
    assert just.numbers("patches") * 4 == just.parameters
    assert just.choose() == "patches"
    assert LayerShape(20, 20, 2, 61, 400).choose() == "dense"


def test_rows_of_several_outputs_are_moved_by_the_layers_own_step():
    block = Factored(("w", "b"), ((10, 10), (10,)), torch.randn(3, 10), torch.randn(3, 10))
    assert step_of(block, nn.Linear(10, 10), 4, torch.float32) == ("adapter", None)
    assert step_of(block, nn.Linear(10, 10), 32, torch.float32) == ("directly", None)
    assert step_of(block.densified(), nn.Linear(10, 10), 4, torch.float32) == ("directly", None)
    single = Factored(("w", "b"), ((10, 10), (10,)), torch.randn(3, 10), torch.eye(10)[:3])
    way, rows = step_of(single, nn.Linear(10, 10), 4, torch.float32)
    assert (way, rows is not None) == ("by output", True)


@pytest.mark.parametrize("groups", [1, 2])
def test_products_of_blocks_are_counted_by_their_sizes(groups):
    """Five positions, three inputs and two outputs of each group; an embedding's two rows of width four."""
    shapes = ((2 * groups, 3), (2 * groups,))
    inputs, deltas = torch.randn(7, 5, 3 * groups), torch.randn(7, 5, 2 * groups)
    block = Patches(("w", "b"), shapes, inputs, deltas, groups=groups)
    assert projection_madds(block) == (2 * 5 * 3 * 2 * groups, 0)
    dense = block.densified()
    assert projection_madds(dense) == (2 * dense.parameters, 0)
    rows = Rows(("w",), ((9, 4),), torch.zeros(7, 2, dtype=torch.long), torch.randn(7, 2, 4))
    assert projection_madds(rows) == (2 * 2 * 4, 0)
