"""Derivatives at one position of each sample."""

import torch

from orthocl.tangents.attention import Use
from orthocl.tangents.single_positions import AtOnePosition, at_one_position, stacked


def test_single_positions_are_found_and_put_back():
    d = torch.zeros(3, 4, 2)
    d[0, 2], d[2, 1] = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0])  # the second sample has none
    found = at_one_position(d)
    assert isinstance(found, AtOnePosition)
    assert found.place[[0, 2]].tolist() == [2, 1]
    assert torch.equal(found.whole(), d)
    d[0, 3, 0] = 1e-30
    assert at_one_position(d) is d


def test_uses_of_one_position_are_single_rows():
    x, z = torch.randn(2, 4, 3), torch.zeros(2, 4, 5)
    one, two = torch.zeros(2, 4, 5), torch.zeros(2, 4, 5)
    one[0, 1], one[1, 3], two[0, 0] = 1.0, 2.0, 3.0
    use, d = stacked(Use(x, z), [at_one_position(one), at_one_position(two)])
    assert (use.x.shape, d.shape) == ((4, 3), (4, 1, 5))
    assert torch.equal(use.x[:3], torch.stack([x[0, 1], x[0, 0], x[1, 3]]))
    assert d[:, 0, 0].tolist() == [1.0, 3.0, 2.0, 0.0]


def test_one_output_that_sees_several_positions_is_enough_to_keep_all():
    x, wide = torch.randn(2, 4, 3), torch.randn(2, 4, 5)
    narrow = torch.zeros(2, 4, 5)
    narrow[:, 1] = 1.0
    use, d = stacked(Use(x, wide), [at_one_position(narrow), at_one_position(wide)])
    assert use.x is x
    assert torch.equal(d, torch.stack([narrow, wide], 1))
