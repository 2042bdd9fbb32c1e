"""Every kind of block: its products are those of the explicit rows, whatever is shared, grouped, rounded or cut up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from orthocl.tangents.blocks import Block, Compressed, Dense, Factored, Patches
from orthocl.tangents.blocks import dense as dense_module
from orthocl.tangents.blocks.dense import inner_products, slices
from orthocl.tangents.blocks.joining import join
from orthocl.tangents.blocks.patches import Unfold
from orthocl.tangents.blocks.rows import Rows

SOURCE = torch.tensor([2, 0, 0, 1, 2])
NAMES, WEIGHT, BIAS = ("w", "b"), (4, 3), (4,)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def outer(deltas: Tensor, inputs: Tensor, bias: bool) -> Tensor:
    """Row by row, position by position: the sum of d (x) [a, 1]."""
    rows = []
    for d_of_row, a_of_row in zip(deltas, inputs, strict=True):
        weight = sum(torch.outer(d, a) for d, a in zip(d_of_row, a_of_row, strict=True))
        rows.append(torch.cat([weight.flatten(), d_of_row.sum(0)] if bias else [weight.flatten()]))
    return torch.stack(rows)


def factored(bias: bool, shared: bool) -> tuple[Block, Tensor]:
    inputs, deltas = numbers(3 if shared else 5, 3), numbers(5, 4)
    source = SOURCE if shared else None
    count = 2 if bias else 1
    block = Factored(NAMES[:count], (WEIGHT, BIAS)[:count], inputs, deltas, source)
    return block, outer(deltas[:, None], (inputs[SOURCE] if shared else inputs)[:, None], bias)


def patches(
    bias: bool, shared: bool, positions: int = 2, width: tuple[int, int] = (4, 3)
) -> tuple[Block, Tensor]:
    inputs, deltas = numbers(3 if shared else 5, positions, width[1]), numbers(5, positions, width[0])
    count = 2 if bias else 1
    block = Patches(NAMES[:count], (width, width[:1])[:count], inputs, deltas, SOURCE if shared else None)
    return block, outer(deltas, inputs[SOURCE] if shared else inputs, bias)


def grouped(bias: bool) -> tuple[Block, Tensor]:
    """A convolution of two groups: 2 x 2 patches of maps of two channels, two outputs in each group."""
    maps, deltas = numbers(5, 2, 3, 3), numbers(5, 4, 4)
    count = 2 if bias else 1
    unfold = Unfold((2, 2), (1, 1), (0, 0), (1, 1))
    block = Patches(NAMES[:count], ((4, 1, 2, 2), BIAS)[:count], maps, deltas, None, unfold, 2)
    rows = []
    for row in range(5):
        weight = torch.zeros(4, 1, 2, 2, dtype=torch.float64)
        for place, (top, left) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            for output in range(4):
                patch = maps[row, output // 2, top : top + 2, left : left + 2]
                weight[output, 0] += deltas[row, place, output] * patch
        rows.append(torch.cat([weight.flatten(), deltas[row].sum(0)] if bias else [weight.flatten()]))
    return block, torch.stack(rows)


def sparse() -> tuple[Block, Tensor]:
    words, values = torch.tensor([[0, 2], [1, 1], [3, 0], [2, 2], [3, 1]]), numbers(5, 2, 3)
    full = torch.zeros(5, 4, 3, dtype=torch.float64)
    for row in range(5):
        for place in range(2):
            full[row, words[row, place]] += values[row, place]
    return Rows(("w",), (WEIGHT,), words, values), full.flatten(1)


def compressed(bias: bool, k: int = 2, r: int = 3) -> tuple[Block, Tensor]:
    u, v = torch.linalg.qr(numbers(3, k))[0], torch.linalg.qr(numbers(4, r))[0]
    cores = numbers(5, 1, r, k + bias)
    count = 2 if bias else 1
    block = Compressed(NAMES[:count], (WEIGHT, BIAS)[:count], u[None], v[None], cores)
    rows = []
    for core in cores[:, 0]:
        weight = (v @ core[:, :k] @ u.T).flatten()
        rows.append(torch.cat([weight, v @ core[:, k]]) if bias else weight)
    return block, torch.stack(rows)


MAKERS: dict[str, Callable[[], tuple[Block, Tensor]]] = {
    "dense": lambda: (Dense(NAMES, (WEIGHT, BIAS), numbers(5, 16)), numbers(5, 16)),
    "factored": lambda: factored(bias=True, shared=False),
    "factored, no bias": lambda: factored(bias=False, shared=False),
    "factored, shared": lambda: factored(bias=True, shared=True),
    "patches": lambda: patches(bias=True, shared=False),
    "patches, no bias, shared": lambda: patches(bias=False, shared=True),
    "patches, few positions": lambda: patches(bias=True, shared=True, positions=2, width=(11, 12)),
    "patches, few positions, no bias": lambda: patches(bias=False, shared=False, positions=2, width=(11, 12)),
    "groups": lambda: grouped(bias=True),
    "groups, no bias": lambda: grouped(bias=False),
    "rows": sparse,
    "compressed": lambda: compressed(bias=True),
    "compressed, no bias, more inputs": lambda: compressed(bias=False, k=3, r=2),
}


@pytest.fixture(params=["at once", "in pieces"], autouse=True)
def _workspace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in pieces":
        monkeypatch.setattr(dense_module, "WORKSPACE", 20)
        monkeypatch.setattr(dense_module, "SYMMETRIC_BLOCK", 2)


@pytest.fixture(params=list(MAKERS))
def pair(request: pytest.FixtureRequest) -> tuple[Block, Tensor]:
    return MAKERS[request.param]()


def test_products_are_those_of_the_explicit_rows(pair: tuple[Block, Tensor]) -> None:
    block, rows = pair
    sizes = [torch.Size(shape).numel() for shape in block.shapes]
    assert block.rows == 5
    assert block.parameters == rows.shape[1]
    torch.testing.assert_close(block.dense(), rows)
    torch.testing.assert_close(block.dense(slice(1, 3)), rows[1:3])
    torch.testing.assert_close(block.densified().vectors, rows)
    vector, weights = numbers(rows.shape[1]), numbers(5)
    gradient = [part.view(shape) for part, shape in zip(vector.split(sizes), block.shapes, strict=True)]
    torch.testing.assert_close(block.coefficients(gradient), rows @ vector)
    combined = torch.cat([part.flatten() for part in block.combine(weights)])
    torch.testing.assert_close(combined, rows.T @ weights)
    torch.testing.assert_close(block.squares(), rows.square().sum(1))
    torch.testing.assert_close(block.gram(block), rows @ rows.T)
    pieces = torch.cat([piece.vectors for piece in block.split()], 1)
    torch.testing.assert_close(pieces, rows)


def test_a_combination_is_added_in_place(pair: tuple[Block, Tensor]) -> None:
    block, rows = pair
    weights = numbers(5)
    for contiguous in (True, False):
        targets = [numbers(*shape) for shape in block.shapes]
        if not contiguous:
            targets[0] = targets[0].transpose(0, 1).contiguous().transpose(0, 1)
        before = torch.cat([target.flatten() for target in targets])
        block.add_combination(weights, targets, scale=-0.5)
        after = torch.cat([target.flatten() for target in targets])
        torch.testing.assert_close(after, before - 0.5 * rows.T @ weights)


def test_some_rows_and_other_blocks(pair: tuple[Block, Tensor]) -> None:
    block, rows = pair
    chosen = torch.tensor([4, 1, 2])
    part = block.select(chosen)
    assert part.rows == 3
    torch.testing.assert_close(part.dense(), rows[chosen])
    torch.testing.assert_close(block.gram(part), rows @ rows[chosen].T)
    plain = Dense(block.names, block.shapes, rows[chosen] + 1)
    torch.testing.assert_close(plain.gram(block), (rows[chosen] + 1) @ rows.T)
    torch.testing.assert_close(block.gram(plain), rows @ (rows[chosen] + 1).T)
    both = join([block, part])
    assert both.kind == block.kind
    torch.testing.assert_close(both.dense(), torch.cat([rows, rows[chosen]]))
    mixed = join([part, plain])
    torch.testing.assert_close(mixed.dense(), torch.cat([rows[chosen], rows[chosen] + 1]))


def test_half_precision_is_stored_and_computed_with_in_float32(pair: tuple[Block, Tensor]) -> None:
    block, rows = pair
    rounded = block.to(torch.bfloat16)
    assert rounded.nbytes < block.nbytes
    assert rounded.dense().dtype == torch.float32
    torch.testing.assert_close(rounded.dense().double(), rows, rtol=0.02, atol=0.1)
    sizes = [torch.Size(shape).numel() for shape in block.shapes]
    vector = numbers(rows.shape[1])
    gradient = [part.view(shape) for part, shape in zip(vector.split(sizes), block.shapes, strict=True)]
    exact = rounded.dense(dtype=torch.float64) @ vector
    torch.testing.assert_close(rounded.coefficients(gradient), exact, rtol=1e-6, atol=1e-6)


def test_one_coefficient_of_a_factored_block() -> None:
    for bias, shared in ((True, False), (True, True), (False, True)):
        block, rows = factored(bias, shared)
        assert isinstance(block, Factored)
        weight, shift = numbers(4, 3), numbers(4)
        vector = torch.cat([weight.flatten(), shift]) if bias else weight.flatten()
        found = [block.coefficient(row, weight, shift if bias else None) for row in range(5)]
        assert found == pytest.approx((rows @ vector).tolist())


def test_pieces_cover_all_rows_once_and_fit_in_the_workspace() -> None:
    room = dense_module.WORKSPACE
    found = list(slices(7, room // 3))
    assert [(piece.start, piece.stop) for piece in found] == [(0, 3), (3, 6), (6, 7)]
    assert [(piece.start, piece.stop) for piece in slices(3, 10 * room)] == [(0, 1), (1, 2), (2, 3)]
    assert list(slices(0, 5)) == []


def test_symmetric_products_of_more_rows_than_a_block() -> None:
    rows = numbers(2 * 256 + 3, 4).float()
    torch.testing.assert_close(inner_products(rows, rows), rows.double() @ rows.double().T)
