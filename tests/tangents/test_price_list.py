"""GPM's share of a price list, by hand."""

from __future__ import annotations

import torch
from torch import nn

from orthocl.tangents.price_list import price_list


class Words(nn.Module):
    """A layer is held by two containers; an embedding, a norm, biases and a matrix of its own multiply no inputs."""

    def __init__(self):
        super().__init__()
        self.embedding, layer = nn.Embedding(50, 8), nn.Linear(40, 30)
        self.one, self.two = nn.ModuleList([layer]), nn.ModuleList([layer])
        self.norm, self.last = nn.LayerNorm(30), nn.Linear(30, 4)
        self.shift = nn.Parameter(torch.zeros(3, 4))

    def forward(self, x):
        hidden = self.norm(self.one[0](self.embedding(x).flatten(1)))
        return self.last(torch.tanh(hidden)) + self.shift.sum(0)


def test_gpm_keeps_bases_of_the_inputs_of_layers_that_multiply_them():
    """A tenth of 40 and of 30 directions are estimated: 4 of 40 numbers and 3 of 30, in float32."""
    example = torch.zeros(1, 5, dtype=torch.long)
    found = {price.way: price for price in price_list(Words(), example, rows=100, card=10**9)}["GPM"]
    assert found.nbytes == 4 * (40 * 4 + 30 * 3)
    assert found.madds == 2 * (40 * 30 * 4 + 30 * 4 * 3)
