"""Randomness of the data, separate from the randomness of a run.

Each component of a stream draws from its own generator, seeded by a hash of the component's name and the data
seed. So methods compared under different run seeds see the same permutations, and a change in one component
(say, the subset of samples) does not affect another (the permutations).
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(component: str, seed: int, *parts: int | str) -> np.random.RandomState:
    """A generator for one component of the data.

    NumPy's `RandomState` is used because its numbers never change; those of torch and of NumPy's newer
    generators may change between versions, and with them every permuted stream.

    >>> int(generator("permuted", 0, 2).permutation(1024)[0])
    757
    """
    text = "/".join(["orthocl", component, str(seed), *map(str, parts)])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4").astype(np.uint32))
