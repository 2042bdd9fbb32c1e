from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate

from orthocl.errors import SettingsError
from orthocl.nets import MLP
from orthocl.theory import EmpiricalNTK, InfiniteWidthNTK, TwoLayerNTK, WideMLP
from orthocl.theory.infinite_width import _gap


def textbook(x, z, depth, sw, sb):
    """The recursion with arccos, as in textbooks: accurate away from duplicates."""
    q = sw * x @ z.T / x.shape[1] + sb
    qx = sw * x.square().sum(1) / x.shape[1] + sb
    qz = sw * z.square().sum(1) / z.shape[1] + sb
    kernel = q
    for _ in range(depth):
        norm = (qx[:, None] * qz[None]).sqrt()
        theta = (q / norm).clamp(-1, 1).arccos()
        derivative = sw * (math.pi - theta) / (2 * math.pi)
        q = sw * norm * (theta.sin() + (math.pi - theta) * theta.cos()) / (2 * math.pi) + sb
        qx, qz = sw * qx / 2 + sb, sw * qz / 2 + sb
        kernel = q + derivative * kernel
    return kernel


@pytest.fixture
def inputs():
    return torch.randn(9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_agrees_with_the_textbook_recursion(inputs, depth, bias):
    kernel = InfiniteWidthNTK(depth, 2.0, bias)
    expected = textbook(inputs[:4], inputs[4:], depth, 2.0, bias)
    assert torch.allclose(kernel.gram(inputs[:4], inputs[4:]), expected, rtol=1e-13, atol=1e-13)


def test_one_layer_against_an_integral():
    """E relu(u) relu(v) and E 1[u>0] 1[v>0] by quadrature over the angle."""
    x = torch.tensor([[1.0, 0.0], [math.cos(0.7), math.sin(0.7)]], dtype=torch.float64)
    kernel = InfiniteWidthNTK(1, weight_variance=1.0).gram(2**0.5 * x)
    both = integrate.quad(lambda t: max(0, math.cos(t)) * max(0, math.cos(t - 0.7)), -math.pi, math.pi)[0]
    active = (math.pi - 0.7) / (2 * math.pi)
    # For a standard normal pair of coordinates the mean squared radius is 2.
    nngp = 2 * both / (2 * math.pi)
    assert float(kernel[0, 1]) == pytest.approx(nngp + active * math.cos(0.7), rel=1e-9)


def test_duplicates_and_near_duplicates_are_exact():
    from fractions import Fraction

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    kernel = InfiniteWidthNTK(2, bias_variance=0.1)
    assert torch.allclose(kernel.gram(x, x.clone()).diagonal(), kernel.diagonal(x), rtol=1e-15, atol=0)
    # k(x, x) of depth 2 from the lengths alone, in exact arithmetic.
    for row, value in zip(x, kernel.diagonal(x).tolist(), strict=True):
        q = Fraction(2) * sum(Fraction(float(v)) ** 2 for v in row) / 5 + Fraction(0.1)
        k = q
        for _ in range(2):
            q = q + Fraction(0.1)
            k = q + k
        assert value == pytest.approx(float(k), rel=1e-15)
    # A small rotation by angle a changes k by an amount linear in a (the kink of the kernel), not by noise.
    direction = torch.randn(5, generator=generator, dtype=torch.float64)
    direction -= (direction @ x[0]) / (x[0] @ x[0]) * x[0]
    direction *= x[0].norm() / direction.norm()
    drops = []
    for angle in (1e-6, 1e-7, 1e-8):
        turned = math.cos(angle) * x[0] + math.sin(angle) * direction
        drops.append(
            float(InfiniteWidthNTK(1).gram(x[:1], x[:1]) - InfiniteWidthNTK(1).gram(x[:1], turned[None]))
            / angle
        )
    assert drops[0] == pytest.approx(drops[1], rel=1e-5)
    assert drops[1] == pytest.approx(drops[2], rel=1e-5)


def test_zero_inputs_and_collinear_inputs(inputs):
    with_zero = torch.cat([torch.zeros(1, 7), inputs])
    for bias in (0.0, 0.2):
        assert InfiniteWidthNTK(2, bias_variance=bias).gram(with_zero).isfinite().all()
    assert InfiniteWidthNTK(2).gram(with_zero)[0].abs().max() == 0
    pair = torch.stack([inputs[0], 3 * inputs[0]])
    assert torch.linalg.det(InfiniteWidthNTK(2).gram(pair)).abs() < 1e-12
    assert torch.linalg.det(InfiniteWidthNTK(2, bias_variance=0.1).gram(pair)) > 1e-3


def test_chunks_do_not_matter(inputs, monkeypatch):
    wide = torch.randn(3, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = InfiniteWidthNTK(2).gram(inputs, wide)
    rows = torch.cat([InfiniteWidthNTK(2).gram(inputs[i : i + 1], wide) for i in range(len(inputs))])
    assert torch.allclose(whole, rows, rtol=1e-14)


@pytest.mark.parametrize("bias", [0.0, 0.1])
def test_finite_networks_approach_it_as_they_widen(inputs, bias):
    limit = InfiniteWidthNTK(2, bias_variance=bias).gram(inputs)
    errors = []
    for width in (32, 128, 512):
        relative = [
            float(
                (
                    EmpiricalNTK(WideMLP(7, width, 2, bias_variance=bias, seed=seed)).gram(inputs) - limit
                ).norm()
            )
            for seed in range(4)
        ]
        errors.append(sum(relative) / 4 / float(limit.norm()))
    assert errors[0] > 1.4 * errors[1] > 1.4 * 1.4 * errors[2]
    assert errors[2] < 0.15


def test_mean_over_networks_is_unbiased_enough(inputs):
    limit = InfiniteWidthNTK(1).gram(inputs)
    mean = torch.stack([EmpiricalNTK(WideMLP(7, 512, 1, seed=s)).gram(inputs) for s in range(40)]).mean(0)
    assert float((mean - limit).norm() / limit.norm()) < 0.04


def test_pytorch_parameterisation_matches_default_networks(inputs):
    """Plain nn.Linear initialisation: the kernel grows with the width."""
    diagonals = []
    for width, tolerance in ((64, 0.35), (512, 0.15)):
        limit = InfiniteWidthNTK(2, parameterisation="pytorch", widths=(width, width)).gram(inputs)
        errors = []
        for seed in range(4):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model = MLP((7,), hidden=(width, width), outputs=1)
            errors.append(float((EmpiricalNTK(model).gram(inputs) - limit).norm() / limit.norm()))
        assert sum(errors) / 4 < tolerance
        diagonals.append(float(limit.diagonal().mean()))
    assert diagonals[1] > 3 * diagonals[0]


def test_diagonal_agrees_with_the_matrix(inputs):
    for kernel in (
        InfiniteWidthNTK(3, 1.7, 0.2),
        InfiniteWidthNTK(2, parameterisation="pytorch", widths=(10, 20)),
        InfiniteWidthNTK(2, bias_variance=0.1, trained="last"),
    ):
        assert torch.allclose(kernel.diagonal(inputs), kernel.gram(inputs).diagonal(), rtol=1e-14)


def test_nngp_is_the_covariance_of_random_networks(inputs):
    with torch.no_grad():
        outputs = torch.cat([WideMLP(7, 256, 1, outputs=64, seed=s)(inputs) for s in range(50)], 1)
    covariance = outputs @ outputs.T / outputs.shape[1]
    limit = InfiniteWidthNTK(1, trained="last").gram(inputs)
    assert float((covariance - limit).norm() / limit.norm()) < 0.1


def test_two_layer_kernel_is_the_first_layers_part(inputs):
    unit = inputs / inputs.norm(dim=1, keepdim=True)
    cosine = (unit @ unit.T).clamp(-1, 1)
    expected = cosine * (math.pi - cosine.arccos()) / (2 * math.pi)
    assert torch.allclose(TwoLayerNTK().gram(inputs), expected, atol=1e-7)
    scaled = 7**0.5 * unit
    both = InfiniteWidthNTK(1, weight_variance=1.0).gram(scaled)
    nngp = InfiniteWidthNTK(1, weight_variance=1.0, trained="last").gram(scaled)
    assert torch.allclose(TwoLayerNTK().gram(inputs), both - nngp, atol=1e-12)
    assert torch.allclose(TwoLayerNTK(both=True).gram(inputs), both, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {"depth": 0},
        {"weight_variance": 0.0},
        {"bias_variance": -1.0},
        {"parameterisation": "torch"},
        {"parameterisation": "pytorch"},
        {"widths": (10, 10)},
        {"trained": "first"},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SettingsError):
        InfiniteWidthNTK(**settings)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bias", [0.0, 0.1])
def test_opposite_inputs_against_60_digits(depth, bias):
    """Antipodes and their neighbours: atan2 keeps the digits that arccos loses."""
    import mpmath

    x = torch.randn(1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.cat([-x, -x + 1e-9, -x + 1e-5, x, x + 1e-9])
    found = InfiniteWidthNTK(depth, bias_variance=bias).gram(x, z)[0]
    scale = float(InfiniteWidthNTK(depth, bias_variance=bias).diagonal(x))
    with mpmath.workdps(60):
        for row, value in zip(z.tolist(), found.tolist(), strict=True):
            left, right = [mpmath.mpf(v) for v in x[0].tolist()], [mpmath.mpf(v) for v in row]
            one = 2 * sum(a * a for a in left) / 5 + mpmath.mpf(bias)
            two = 2 * sum(b * b for b in right) / 5 + mpmath.mpf(bias)
            both = 2 * sum(a * b for a, b in zip(left, right, strict=True)) / 5 + mpmath.mpf(bias)
            kernel = both
            for _ in range(depth):
                cosine = max(-1, min(1, both / mpmath.sqrt(one * two)))
                angle = mpmath.acos(cosine)
                both = mpmath.sqrt(one * two) * (mpmath.sin(angle) + (mpmath.pi - angle) * cosine) / mpmath.pi
                both, one, two = both + mpmath.mpf(bias), one + mpmath.mpf(bias), two + mpmath.mpf(bias)
                kernel = both + kernel * (mpmath.pi - angle) / mpmath.pi
            assert abs(value - float(kernel)) < 3e-15 * scale
    if bias == 0 and depth == 1:
        assert abs(float(found[0])) < 1e-15 * scale


def test_small_angles_keep_all_digits():
    """sin t - t cos t is the integral of s sin s from 0 to t, on both sides of where its series ends."""
    angles = torch.tensor([1e-6, 1e-3, 0.03, 0.0999, 0.1001, 0.5, 3.0], dtype=torch.float64)
    for angle, found in zip(angles.tolist(), _gap(angles).tolist(), strict=True):
        exact, _ = integrate.quad(lambda s: s * math.sin(s), 0.0, angle, epsabs=0.0, epsrel=1e-13)
        assert found == pytest.approx(exact, rel=2e-13, abs=0.0)


@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_inputs_of_zero_are_orthogonal_to_all(inputs, bias):
    """Between 0 and x, layer by layer: only biases are alike."""
    zeros = torch.cat([inputs[:2], torch.zeros(1, 7, dtype=torch.float64)])
    kernel = InfiniteWidthNTK(1, 2.0, bias)
    from_left, from_right = kernel.gram(zeros, inputs), kernel.gram(inputs, zeros)
    assert bool(from_right.isfinite().all())
    assert torch.allclose(from_left, from_right.T, rtol=1e-13)
    if bias:
        assert torch.allclose(from_right, textbook(inputs, zeros, 1, 2.0, bias), rtol=1e-12)
    else:
        assert torch.equal(from_right[:, 2], torch.zeros(9, dtype=torch.float64))


@pytest.mark.parametrize("unit", [1e-6, 0.1, 1.0, 1e6])
def test_without_biases_the_kernel_has_the_units_of_its_inputs(inputs, unit):
    """Lengths multiply, angles have no unit; unit inputs of the two-layer kernel have none either."""
    plain = InfiniteWidthNTK(2).gram(inputs, inputs[:4])
    torch.testing.assert_close(InfiniteWidthNTK(2).gram(unit * inputs, inputs[:4]), unit * plain)
    torch.testing.assert_close(InfiniteWidthNTK(2).gram(inputs, unit * inputs[:4]), unit * plain)
    torch.testing.assert_close(
        InfiniteWidthNTK(2).gram(unit * inputs), unit**2 * InfiniteWidthNTK(2).gram(inputs)
    )
    two = TwoLayerNTK(both=True)
    torch.testing.assert_close(two.gram(unit * inputs, inputs[:4]), two.gram(inputs, inputs[:4]))
    small = unit * inputs
    torch.testing.assert_close(
        InfiniteWidthNTK(2, 2.0, 0.1).gram(small[:4], small[4:]), textbook(small[:4], small[4:], 2, 2.0, 0.1)
    )
