"""Sums of touched rows and outer products, against the explicit matrix."""

import pytest
import torch

from orthocl.tangents.blocks import Block, Dense, Factored, Patches, Rows, Summed, added, from_state, join

NAMES, SHAPES = ("w",), ((7, 3),)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def touched(rows: int, positions: int) -> Rows:
    words = torch.randint(0, 7, (rows, positions))
    words[:, 0] = words[:, -1]  # a word twice
    return Rows(NAMES, SHAPES, words, random(rows, positions, 3))


def summed(rows: int, kind: str, positions: int = 4) -> Summed:
    if kind == "factored":
        return Summed(touched(rows, positions), Factored(NAMES, SHAPES, random(rows, 3), random(rows, 7)))
    source = torch.arange(rows) // 2 if kind == "shared inputs" else None
    inputs = random(rows if source is None else (rows + 1) // 2, 2, 3)
    return Summed(touched(rows, positions), Patches(NAMES, SHAPES, inputs, random(rows, 2, 7), source))


KINDS = ["factored", "patches", "shared inputs"]


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_explicit_rows(kind):
    torch.manual_seed(0)
    block, other = summed(5, kind), summed(3, "factored", 2)
    matrix = torch.stack(
        [
            torch.zeros(7, 3, dtype=torch.float64).index_add(0, words, values).add(part.view(7, 3)).flatten()
            for words, values, part in zip(
                block.parts[0].words, block.parts[0].values, block.parts[1].dense(), strict=True
            )
        ]
    )
    torch.testing.assert_close(block.dense(), matrix)
    torch.testing.assert_close(block.gram(block), matrix @ matrix.t())
    torch.testing.assert_close(block.gram(other), matrix @ other.dense().t())
    torch.testing.assert_close(block.squares(), matrix.square().sum(1))
    gradient, weights = random(7, 3), random(5)
    torch.testing.assert_close(block.coefficients([gradient]), matrix @ gradient.flatten())
    torch.testing.assert_close(block.combine(weights)[0].flatten(), matrix.t() @ weights)
    target = gradient.clone()
    block.add_combination(weights, [target], scale=-2.0)
    torch.testing.assert_close(target, gradient - 2 * block.combine(weights)[0])
    torch.testing.assert_close(block.select(torch.tensor([3, 0])).dense(), matrix[[3, 0]])
    torch.testing.assert_close(block.densified().vectors, matrix)
    again = from_state(block.meta(), block.tensors())
    assert isinstance(again, Summed)
    assert torch.equal(again.dense(), block.dense())
    rounded = block.to(torch.bfloat16)
    assert rounded.nbytes < block.nbytes / 2
    torch.testing.assert_close(rounded.dense().double(), matrix, rtol=0.05, atol=0.05)


def others() -> list[Block]:
    return [
        Dense(NAMES, SHAPES, random(4, 21)),
        Factored(NAMES, SHAPES, random(4, 3), random(4, 7)),
        Patches(NAMES, SHAPES, random(4, 2, 3), random(4, 2, 7)),
        touched(4, 3),
    ]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_products_with_blocks_of_other_kinds(place, kind):
    torch.manual_seed(1)
    block, other = summed(5, kind), others()[place]
    torch.testing.assert_close(block.gram(other), block.dense() @ other.dense().t())
    torch.testing.assert_close(other.gram(block), other.dense() @ block.dense().t())
    both = join([block, other])
    torch.testing.assert_close(both.dense(), torch.cat([block.dense(), other.dense()]))


@pytest.mark.parametrize("place", [1, 2])
def test_rows_and_outer_products_multiply_without_explicit_rows(place, monkeypatch):
    torch.manual_seed(2)
    rows, other = touched(5, 4), others()[place]
    expected = rows.dense() @ other.dense().t()
    monkeypatch.setattr(Rows, "dense", None)
    torch.testing.assert_close(rows.gram(other), expected)
    torch.testing.assert_close(other.gram(rows), expected.t())


@pytest.mark.parametrize("kind", ["factored", "patches"])
def test_sums_are_joined_part_by_part(kind):
    torch.manual_seed(3)
    one, two = summed(5, kind, positions=4), summed(3, kind, positions=2)
    both = join([one, two])
    assert isinstance(both, Summed)
    torch.testing.assert_close(both.dense(), torch.cat([one.dense(), two.dense()]))


def test_layers_on_sequences_of_different_lengths_are_joined_as_sums_of_outer_products():
    torch.manual_seed(4)
    names, shapes = ("w", "b"), ((7, 3), (7,))
    one = Patches(names, shapes, random(2, 5, 3), random(4, 5, 7), torch.tensor([0, 0, 1, 1]))
    two = Patches(names, shapes, random(3, 2, 3), random(3, 2, 7))
    both = join([one, two])
    assert both.kind == "patches"
    torch.testing.assert_close(both.dense(), torch.cat([one.dense(), two.dense()]))


def test_uses_of_one_weight_add_up():
    torch.manual_seed(5)
    rows, patches = touched(4, 3), Patches(NAMES, SHAPES, random(4, 2, 3), random(4, 2, 7))
    expected = rows.dense() + 2 * patches.dense()
    (found,) = added([rows, patches, patches])
    assert isinstance(found, Summed)
    torch.testing.assert_close(found.dense(), expected)
