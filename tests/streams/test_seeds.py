from __future__ import annotations

import numpy as np
import torch

from orthocl.streams.seeds import generator


def test_numbers_are_frozen():
    assert generator("permuted", 0, 2).permutation(8).tolist() == [1, 6, 5, 0, 4, 7, 2, 3]
    assert generator("subset", 3, "train").permutation(8).tolist() == [5, 3, 2, 0, 6, 4, 7, 1]


def test_components_seeds_and_parts_are_apart():
    draws = [
        generator(*key).permutation(1024).tolist()
        for key in (("a", 0), ("b", 0), ("a", 1), ("a", 0, 1), ("a", 0, 2), ("a", 0, "train"))
    ]
    assert len({tuple(draw) for draw in draws}) == len(draws)


def test_global_generators_neither_matter_nor_move():
    torch.manual_seed(1)
    np.random.seed(1)
    first = generator("a", 0).permutation(99)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    np.random.seed(2)
    np.random.seed(1)
    assert (generator("a", 0).permutation(99) == first).all()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
