"""Kernels, ridges and inputs that mean nothing are refused, in the library and at the command line."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.cli.theory import app
from orthocl.errors import DataError, OrthoclError, SettingsError
from orthocl.theory import Curriculum, FunctionKernel, GramKernel, InfiniteWidthNTK, solve_stream
from orthocl.theory.kernels import check_positive, check_symmetric, symmetrise

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TASKS = [(X[:3], torch.ones(3)), (X[3:], -torch.ones(3))]


def linear(x, z):
    return x @ z.T


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda x, z: torch.full((len(x), len(z)), math.inf), "infinite or not numbers"),
        (lambda x, z: torch.full((len(x), len(z)), math.nan), "infinite or not numbers"),
        (lambda x, z: torch.rand(len(x), len(z)), "symmetric"),
        (lambda x, z: x @ z.T + 1e-3 * x[:, :1], "symmetric"),
        (lambda x, z: -(x @ z.T), "positive semi-definite"),
        (lambda x, z: x @ z.T - 5 * x[:, :1] * z[:, 0], "positive semi-definite"),
    ],
)
@pytest.mark.parametrize("ridge", [0.0, 100.0])
def test_kernels_that_are_none(kernel, message, ridge):
    with pytest.raises(DataError, match=message):
        solve_stream(kernel, TASKS, ridge=ridge)
    with pytest.raises(DataError, match=message):
        Curriculum(kernel, TASKS, ridge=ridge)


def test_matrices_that_are_no_kernels():
    with pytest.raises(DataError, match="symmetric"):
        GramKernel(torch.tensor([[1.0, 0.5], [0.1, 1.0]]))
    with pytest.raises(DataError, match="infinite"):
        GramKernel(torch.tensor([[1.0, math.inf], [math.inf, 1.0]]))


def test_inputs_that_overflow():
    huge = [(x * 1e200, y) for x, y in TASKS]
    for kernel in (linear, InfiniteWidthNTK(2)):
        with pytest.raises(DataError, match="infinite or not numbers"):
            solve_stream(kernel, huge)
    with pytest.raises(DataError, match="inputs must be finite"):
        solve_stream(linear, [(X * math.nan, torch.ones(6))])


@pytest.mark.parametrize("ridge", [math.nan, -1.0, math.inf])
def test_ridges(ridge):
    with pytest.raises(SettingsError, match="expected a ridge"):
        solve_stream(linear, TASKS, ridge=ridge)
    with pytest.raises(SettingsError, match="expected a ridge"):
        Curriculum(linear, TASKS, ridge=ridge)


@pytest.mark.parametrize("variance", [math.nan, math.inf, -1.0])
def test_variances(variance):
    with pytest.raises(SettingsError, match="bias_variance"):
        InfiniteWidthNTK(2, bias_variance=variance)
    with pytest.raises(SettingsError, match="weight_variance"):
        InfiniteWidthNTK(2, weight_variance=variance)


@pytest.mark.parametrize("command", ["solve", "bound", "order", "overlay"])
@pytest.mark.parametrize("option", [["--ridge", "nan"], ["--ridge", "-1"], ["--bias-variance", "nan"]])
def test_commands_refuse_them_too(command, option):
    with pytest.raises(OrthoclError, match="expected a"):
        app([command, "--tasks", "2", "--samples", "10", *option], result_action="return_value")


@pytest.mark.parametrize("block", [1, 2, 3, 5, 512])
def test_symmetrised_matrices_are_the_mean_with_their_transpose(block):
    matrix = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = (matrix + matrix.T) / 2
    found = symmetrise(matrix.clone(), block)
    assert torch.equal(found, found.T)
    assert torch.allclose(found, expected, rtol=1e-15)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("most", [4, 512])
def test_positive_matrices_pass_and_others_do_not_in_any_units(scale, most):
    root = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    singular = scale * root @ root.T
    check_positive(singular, most)  # rank 3 of 8: zero up to rounding is no negative eigenvalue
    check_positive(scale * torch.diag(torch.tensor([1.0, 0.0, 2.0])), most)  # an input of zero, say
    check_positive(torch.zeros(4, 4), most)
    check_positive(torch.zeros(0, 0), most)
    bent = singular - 0.1 * scale * torch.ones(8, 8, dtype=torch.float64) * float(root.square().sum(1).max())
    with pytest.raises(DataError, match="positive semi-definite"):
        check_positive(bent, most)
    with pytest.raises(DataError, match="positive semi-definite"):
        check_positive(-singular, most)


@pytest.mark.parametrize("block", [1, 2, 1024])
def test_the_entries_that_differ_are_named(block):
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[3, 4] = 0.5
    with pytest.raises(DataError, match=r"k\(x_3, x_4\) = 0.5 and k\(x_4, x_3\) = 0:"):
        check_symmetric(matrix, block)


def test_diagonals_are_those_of_the_matrix_also_of_no_points():
    kernel = FunctionKernel(lambda x, z: (x @ z.T + 1) ** 2)
    x = torch.randn(130, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(kernel.diagonal(x), (x.square().sum(1) + 1) ** 2)
    assert kernel.diagonal(x[:0]).shape == (0,)
