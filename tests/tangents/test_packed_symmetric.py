from __future__ import annotations

import pytest
import torch

from orthocl.tangents.packed_symmetric import SymmetricMatrix


@pytest.mark.parametrize("size", [0, 1, 2, 5, 127, 128, 400, 1000])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_products_are_those_of_the_whole_matrix(size, dtype, rtol):
    torch.manual_seed(size)
    matrix = torch.randn(size, size, dtype=dtype)
    matrix = matrix + matrix.t()
    found = SymmetricMatrix(matrix)
    for _ in range(2):  # the second product overwrites the first
        vector = torch.randn(size, dtype=dtype)
        expected = matrix.double() @ vector.double()
        torch.testing.assert_close((found @ vector).double(), expected, rtol=rtol, atol=10 * rtol)


def test_any_layout_of_the_matrix():
    matrix = torch.randn(9, 9, dtype=torch.float64)
    matrix = (matrix + matrix.t()).repeat_interleave(2, 0)[::2].t()
    vector = torch.randn(9, dtype=torch.float64)
    torch.testing.assert_close(SymmetricMatrix(matrix) @ vector, matrix @ vector)


def test_other_types_are_kept_whole():
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.bfloat16)
    found = SymmetricMatrix(matrix)
    assert (found @ torch.ones(2, dtype=torch.bfloat16)).tolist() == [3.0, 4.0]
    matrix.zero_()  # a copy is kept
    assert (found @ torch.ones(2, dtype=torch.bfloat16)).tolist() == [3.0, 4.0]


def test_one_triangle_is_stored():
    assert SymmetricMatrix(torch.zeros(1500, 1500)).nbytes == (1500 * 1501 // 2 + 2 * 1500) * 4
