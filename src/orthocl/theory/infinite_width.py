"""Kernels of infinitely wide fully connected ReLU networks, stable on duplicated and on opposite inputs.

Paper: section 3.3; Remark 2 (`rem:weight-dist`) for the two-layer case of Liu et al. and Arora et al.

Derivation. In the NTK parameterisation h_1 = sqrt(s_w/d) W x + sqrt(s_b) b and
h_{l+1} = sqrt(s_w/n) W relu(h_l) + sqrt(s_b) b with standard normal W, b. The covariance of one unit of h_l
is S_l; with theta the angle of S_l between two inputs,
    S_{l+1}  = s_w sqrt(S_xx S_zz) (sin theta + (pi - theta) cos theta) / (2 pi) + s_b,
    S'_{l+1} = s_w (pi - theta) / (2 pi),           K_{l+1} = S_{l+1} + S'_{l+1} K_l,       K_1 = S_1.
Written with cos theta, an angle near zero or near pi loses half its digits in arccos. The code therefore carries
t = 1 - cos theta and o = 1 + cos theta, which start as half the squared lengths of the difference and of the sum
of the unit inputs, and are never differences of nearly equal numbers where they are small. Then
    theta = 2 atan2(sqrt t, sqrt o),   pi - theta = 2 atan2(sqrt o, sqrt t),
    t_{l+1} = t_l - (sin theta - theta cos theta) / pi   before the bias, and o = 2 - t (a ReLU leaves o >= 1);
a bias s_b turns lengths q into q + s_b and, with G = sqrt(q_x q_z) and N = sqrt((q_x + s_b)(q_z + s_b)),
t into (s_b (sqrt q_x - sqrt q_z)^2 / (N + G + s_b) + G t) / N and
o into ((s_b (q_x + q_z) + s_b^2) / (N + G) + s_b + G o) / N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from orthocl.checking import checked
from orthocl.errors import DataError, SettingsError, unknown_name
from orthocl.theory.kernels import Kernel, symmetrise
from orthocl.theory.points import Points, PointsLike, row_chunks

Parameterisation = Literal["ntk", "pytorch"]


@dataclass(frozen=True)
class _Layer:
    """Variances of one layer, and by how much the gradients of its weights and bias count."""

    weight_variance: float
    bias_variance: float
    weight_gain: float = 1.0
    bias_gain: float = 1.0


class InfiniteWidthNTK(Kernel):
    """The tangent kernel of a fully connected ReLU network whose hidden layers are infinitely wide.

    Args:
        depth: number of hidden layers.
        weight_variance: s_w; 2 keeps the scale of the signal through ReLU layers.
        bias_variance: s_b; 0 is a network without biases.
        parameterisation: "ntk", or "pytorch" for `nn.Linear` as PyTorch initialises it: weights and biases
            uniform in +-1/sqrt(fan_in), the variances above are then ignored. The tangents of a layer count
            fan_in times more than in "ntk", so the kernel grows with the width and `widths` must be given.
        widths: hidden sizes, for "pytorch" only.
        trained: "all" layers, or "last" for the NNGP kernel (only the output layer learns).

    >>> kernel = InfiniteWidthNTK(depth=1)
    >>> kernel.gram(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([[2.0000, 0.3183],
            [0.3183, 2.0000]], dtype=torch.float64)
    """

    @checked(besides=("weight_variance", "bias_variance", "widths"))
    def __init__(
        self,
        depth: int = 2,
        weight_variance: float = 2.0,
        bias_variance: float = 0.0,
        parameterisation: Parameterisation = "ntk",
        widths: Sequence[int] | None = None,
        trained: Literal["all", "last"] = "all",
    ):
        if depth < 1:
            raise SettingsError(f"expected at least one hidden layer, got depth={depth}")
        numbers = isinstance(weight_variance, int | float) and isinstance(bias_variance, int | float)
        if not numbers or not (0 < weight_variance < math.inf and 0 <= bias_variance < math.inf):
            raise SettingsError(
                "expected a finite weight_variance > 0 and a finite bias_variance >= 0, "
                f"got {weight_variance} and {bias_variance}"
            )
        if parameterisation not in ("ntk", "pytorch"):
            raise unknown_name("parameterisation", parameterisation, ["ntk", "pytorch"])
        if trained not in ("all", "last"):
            raise unknown_name("choice of trained layers", trained, ["all", "last"])
        if widths is not None and not isinstance(widths, Sequence):
            raise SettingsError(f"expected widths as a list of hidden sizes, got {widths!r}")
        if (parameterisation == "pytorch") != (widths is not None) or (widths and len(widths) != depth):
            raise SettingsError(
                'parameterisation="pytorch" needs widths= with one hidden size per layer '
                f'(and "ntk" takes none): got depth={depth}, widths={widths}'
            )
        self.depth = depth
        self.weight_variance = weight_variance
        self.bias_variance = bias_variance
        self.parameterisation = parameterisation
        self.widths = None if widths is None else tuple(widths)
        self.trained = trained

    def _layers(self, features: int) -> list[_Layer]:
        if self.widths is None:
            return [_Layer(self.weight_variance, self.bias_variance)] * (self.depth + 1)
        # nn.Linear: W = sqrt(s_w / fan_in) omega and b = sqrt(s_b) beta with s_w = 1/3, s_b = 1/(3 fan_in),
        # omega and beta of unit variance. d/dW = sqrt(fan_in / s_w) d/domega, d/db = d/dbeta / sqrt(s_b).
        fans = [features, *self.widths]
        return [_Layer(1 / 3, 1 / (3 * fan), 3.0 * fan, 3.0 * fan) for fan in fans]

    def _gram(self, x: Points, z: Points | None) -> Tensor:
        left = _flat(x)
        right = left if z is None else _flat(z)
        if left.shape[1] != right.shape[1]:
            raise DataError(f"inputs of {left.shape[1]} and of {right.shape[1]} numbers cannot be compared")
        layers = self._layers(left.shape[1])
        kernel = left.new_empty(len(left), len(right))
        # A few rows at a time: the recursion holds about eight matrices of this size.
        step = max(1, 4_000_000 // max(1, len(right)))
        for start in range(0, len(left), step):
            rows = slice(start, start + step)
            kernel[rows] = _relu_recursion(left[rows], right, layers, self.trained == "last")
        return symmetrise(kernel) if z is None else kernel

    def diagonal(self, x: PointsLike) -> Tensor:
        """k(x, x) from the lengths alone: the angle of an input with itself is zero in every layer."""
        flat = _flat(self.points(x))
        first, *rest = self._layers(flat.shape[1])
        length = first.weight_variance * flat.square().mean(1)
        kernel = first.weight_gain * length + first.bias_gain * first.bias_variance
        for before, layer in zip([first, *rest], rest, strict=False):
            length = layer.weight_variance / 2 * (length + before.bias_variance)
            term = layer.weight_gain * length + layer.bias_gain * layer.bias_variance
            kernel = term if self.trained == "last" else term + layer.weight_variance / 2 * kernel
        return kernel


class TwoLayerNTK(Kernel):
    """The two-layer kernel of Arora et al. and Liu et al.: x.z (pi - arccos x.z) / (2 pi), unit inputs.

    It is the first layer's part of `InfiniteWidthNTK(depth=1, weight_variance=1)` at inputs scaled by
    sqrt(d): they freeze the output layer. With `both=True` the output layer learns too, which adds the
    NNGP kernel. Inputs are normalised to unit length, as both papers assume.

    Paper: Remark 2 (`rem:weight-dist`), H^infinity.

    >>> TwoLayerNTK().gram(torch.tensor([[1.0, 0.0]]))
    tensor([[0.5000]], dtype=torch.float64)
    """

    def __init__(self, both: bool = False):
        self.both = both

    def _gram(self, x: Points, z: Points | None) -> Tensor:
        left = _flat(x)
        right = left if z is None else _flat(z)
        t, o = _one_minus_and_plus_cosine(left, right)
        kernel = (1 - t) * _angle(o, t) / (2 * math.pi)
        if self.both:
            kernel = kernel + (1 - t + _gap(_angle(t, o)) / math.pi) / 2
        return symmetrise(kernel) if z is None else kernel


def _flat(points: Points) -> Tensor:
    return points.row_inputs().detach().double().flatten(1)


def _relu_recursion(x: Tensor, z: Tensor, layers: Sequence[_Layer], last_only: bool) -> Tensor:
    """K of the module docstring, one term per layer with its gain."""
    features = x.shape[1]
    first, *rest = layers
    length_x = first.weight_variance * x.square().sum(1) / features
    length_z = first.weight_variance * z.square().sum(1) / features
    t, o = _one_minus_and_plus_cosine(x, z)
    length_x, length_z, t, o, kernel = _add_layer(length_x, length_z, t, o, first)
    for layer in rest:
        theta = _angle(t, o)
        derivative = layer.weight_variance * _angle(o, t) / (2 * math.pi)
        halves = layer.weight_variance / 2
        t = t - _gap(theta) / math.pi
        length_x, length_z, t, o, term = _add_layer(halves * length_x, halves * length_z, t, 2 - t, layer)
        kernel = term if last_only else term + derivative * kernel
    return kernel


def _add_layer(
    length_x: Tensor, length_z: Tensor, t: Tensor, o: Tensor, layer: _Layer
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Add the bias to the lengths, to t and to o, and give this layer's own term of the kernel."""
    bias = layer.bias_variance
    geometric = (length_x[:, None] * length_z[None]).sqrt()
    term = layer.weight_gain * geometric * (1 - t) + layer.bias_gain * bias
    if bias == 0:
        return length_x, length_z, t, o, term
    norm = ((length_x[:, None] + bias) * (length_z[None] + bias)).sqrt()
    apart = (length_x.sqrt()[:, None] - length_z.sqrt()[None]).square()
    excess = bias * (length_x[:, None] + length_z[None] + bias) / (norm + geometric)
    t = (bias * apart / (norm + geometric + bias) + geometric * t) / norm
    o = (excess + bias + geometric * o) / norm
    return length_x + bias, length_z + bias, t, o, term


def _angle(t: Tensor, o: Tensor) -> Tensor:
    """The angle whose cosine is 1 - t = o - 1; with the arguments exchanged, pi minus that angle."""
    return 2 * torch.atan2(t.clamp_min(0).sqrt(), o.clamp_min(0).sqrt())


def _gap(theta: Tensor) -> Tensor:
    """The difference sin theta - theta cos theta, by its series where the difference would cancel."""
    square = theta.square()
    series = theta * square * (1 / 3 - square * (1 / 30 - square * (1 / 840 - square / 45360)))
    return torch.where(theta < 1e-1, series, theta.sin() - theta * theta.cos())


def _one_minus_and_plus_cosine(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """1 - cos and 1 + cos of the angle between rows; a zero row counts as orthogonal to all.

    The matrix product gives them to 1e-16 absolute, which is exact enough away from zero; pairs that nearly
    coincide, or are nearly opposite, are computed again from their difference or their sum.
    """
    norm_x, norm_z = x.norm(dim=1, keepdim=True), z.norm(dim=1, keepdim=True)
    unit_x = x / torch.where(norm_x > 0, norm_x, 1.0)
    unit_z = z / torch.where(norm_z > 0, norm_z, 1.0)
    t = 1 - unit_x @ unit_z.T
    o = 2 - t
    for values, sign in ((t, -1), (o, 1)):
        rows, columns = torch.nonzero(values < 1e-2, as_tuple=True)
        for near in row_chunks(len(rows), 2_000_000 // max(1, x.shape[1])):
            i, j = rows[near], columns[near]
            values[i, j] = (unit_x[i] + sign * unit_z[j]).square().sum(1) / 2
    zero = (norm_x == 0) | (norm_z == 0).T
    return torch.where(zero, 1.0, t), torch.where(zero, 1.0, o)
