from __future__ import annotations

import pytest
import torch

from orthocl.tangents.symmetric import SymmetricMatrix


@pytest.mark.parametrize("size", [0, 1, 2, 5, 127, 128, 129, 255, 256, 400, 1000])
def test_products_are_those_of_the_whole_matrix(size):
    torch.manual_seed(size)
    matrix = torch.randn(size, size, dtype=torch.float64)
    matrix = matrix + matrix.t()
    found = SymmetricMatrix(matrix)
    for _ in range(2):  # the second product overwrites the first
        vector = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(found @ vector, matrix @ vector, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("panel", [1, 3, 7, 10, 11])
def test_panels_of_any_height(panel):
    torch.manual_seed(panel)
    matrix = torch.randn(10, 10, dtype=torch.float64)
    matrix = matrix + matrix.t()
    vector = torch.randn(10, dtype=torch.float64)
    torch.testing.assert_close(SymmetricMatrix(matrix, panel) @ vector, matrix @ vector)


def test_large_matrices_are_stored_in_less_than_two_thirds():
    assert SymmetricMatrix(torch.zeros(1500, 1500)).nbytes == (7 * 1500**2 // 12 + 2 * 1500) * 4
