"""Random seeds derived by name, so that the randomness of one component never depends on another's."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(*parts: object) -> int:
    """A seed that depends on every part and nothing else, on any machine.

    >>> derive_seed("permuted", 0) == derive_seed("permuted", 0) != derive_seed("permuted", 1)
    True
    """
    text = "\x1f".join(str(part) for part in ("orthocl", *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def derive_generator(*parts: object) -> torch.Generator:
    """A CPU random generator seeded by `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def draw_seed() -> int:
    """A seed from torch's global generator: `torch.manual_seed` decides what it is.

    >>> _ = torch.manual_seed(1)
    >>> one, other = draw_seed(), draw_seed()
    >>> _ = torch.manual_seed(1)
    >>> draw_seed() == one != other
    True
    """
    return int(torch.randint(2**62, ()))
