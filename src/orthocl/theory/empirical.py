"""The tangent kernel of a real network: finite width, any weights, any logits.

Paper: section 3.3, phi(x) = grad_w f(x) at the weights where the network is linearised.

Built on the factored tangents: a linear layer's share of k is a product of two small Gram matrices, so no
Jacobian is formed. Parameters that have no factors are differentiated sample by sample (`torch.func`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from orthocl.checking import check_value
from orthocl.errors import DataError, SettingsError, UnsupportedError, unknown_name
from orthocl.nets import MultiHead
from orthocl.tangents import Tangents, collect
from orthocl.theory.kernels import Kernel, check_memory
from orthocl.theory.points import Points, PointsLike, as_points, row_chunks

Outputs = Literal["scalar", "gtl", "all"]


class EmpiricalNTK(Kernel):
    """The tangent kernel of a network at its current weights, in eval mode and in float64.

    The network is copied: later training does not change the kernel. A multi-head network uses the head that
    is selected now.

    Args:
        model: any module with outputs (samples,) or (samples, outputs).
        outputs: which rows an input has: "scalar" (a network of one output), a logit's number, "gtl" (points
            come as `Points.labelled(x, labels)`, one logit each) or "all" (one row per logit).
        parameters: names of the parameters that learn; all that require gradients by default.
        chunk: samples per forward pass.
        dtype: precision of the network's copy and of the tangents; the matrix is float64 anyway.
        memory_limit: bytes a matrix and its tangents may take; by default what is free.

    >>> from orthocl.nets import MLP
    >>> kernel = EmpiricalNTK(MLP((4,), hidden=(8,), outputs=3), outputs="all")
    >>> kernel.gram(torch.randn(5, 4)).shape
    torch.Size([15, 15])
    """

    def __init__(
        self,
        model: nn.Module,
        outputs: Outputs | int = "scalar",
        *,
        parameters: Sequence[str] | None = None,
        chunk: int = 256,
        dtype: torch.dtype = torch.float64,
        memory_limit: int | None = None,
    ):
        check_value("model", model, nn.Module)
        check_value("outputs", outputs, str | int)
        check_value("chunk", chunk, int, minimum=1)
        if isinstance(outputs, str) and outputs not in ("scalar", "gtl", "all"):
            raise unknown_name("choice of outputs", outputs, ["scalar", "gtl", "all"])
        self.model = copy.deepcopy(model).to(dtype).eval()
        self.parameters = _learnt(self.model, parameters)
        self.choice: Outputs | int = outputs
        self.chunk = chunk
        self.dtype = dtype
        self.memory_limit = memory_limit
        self._count: int | None = None
        if outputs == "all":
            self._count = _known_outputs(self.model)
            if self._count is not None:
                self.outputs = self._count

    # -- points -----------------------------------------------------------------------------------------

    def points(self, x: PointsLike) -> Points:
        """The rows that these inputs stand for."""
        points = as_points(x)
        if points.logit is not None:
            return points
        if self.choice == "gtl":
            raise DataError(
                "a kernel of ground-truth logits needs to know them: pass Points.labelled(inputs, labels), "
                'or use outputs="all" to predict every logit'
            )
        if points.sample is not None:
            raise DataError("points with sample numbers need logit numbers too: use Points.every_logit")
        if self.choice == "all":
            self.outputs = self._output_count(points.inputs)
            return Points.every_logit(points.inputs, self.outputs)
        logit = 0 if self.choice == "scalar" else int(self.choice)
        return Points.labelled(points.inputs, torch.full((len(points.inputs),), logit))

    def _output_count(self, inputs: Tensor) -> int:
        if self._count is None:
            if len(inputs) == 0:
                raise DataError("expected at least one input, got none")
            self._count = self._run(inputs[:1]).shape[1]
        return self._count

    def _run(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            values: Tensor = self.model(inputs.to(self.dtype) if inputs.is_floating_point() else inputs)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or len(values) != len(inputs):
            raise UnsupportedError(
                f"expected outputs of shape (samples, outputs), got {tuple(values.shape)} "
                f"for {len(inputs)} samples"
            )
        if self.choice == "scalar" and values.shape[1] != 1:
            raise SettingsError(
                f'outputs="scalar" needs a network of one output, this one has {values.shape[1]}: '
                'choose a logit by number, or outputs="gtl" or "all"'
            )
        return values

    def initial(self, x: Points) -> Tensor:
        """The network's own outputs at these points: f_0."""
        pieces = [self._run(x.inputs[rows]) for rows in row_chunks(len(x.inputs), self.chunk)]
        values = torch.cat(pieces).double()
        sample = torch.arange(len(x.inputs)) if x.sample is None else x.sample
        if x.logit is None:
            raise DataError(
                "these points do not say which logit they refer to: create them with kernel.points"
            )
        self._check_logits(x.logit, values.shape[1])
        return values[sample, x.logit]

    @staticmethod
    def _check_logits(logit: Tensor, count: int) -> None:
        if len(logit) and not 0 <= int(logit.min()) <= int(logit.max()) < count:
            raise DataError(
                f"logit numbers must lie in 0 .. {count - 1}, got {int(logit.min())} .. {int(logit.max())}"
            )

    # -- matrices ---------------------------------------------------------------------------------------

    def tangents(self, x: PointsLike) -> Tangents:
        """The tangents of these points, as factors."""
        points = self.points(x)
        inputs = points.inputs.to(self.dtype) if points.inputs.is_floating_point() else points.inputs
        logit = points.logit if points.logit is not None else torch.zeros(len(points), dtype=torch.long)
        count = self._output_count(inputs)
        self._check_logits(logit, count)
        if points.sample is None:
            return collect(
                self.model, inputs, logit, parameters=self.parameters, variant="gtl", chunk=self.chunk
            )
        if len(points) <= 2 * len(points.inputs):
            return collect(
                self.model,
                inputs[points.sample],
                logit,
                parameters=self.parameters,
                variant="gtl",
                chunk=self.chunk,
            )
        every = collect(
            self.model,
            inputs,
            torch.zeros(len(inputs), dtype=torch.long),
            parameters=self.parameters,
            variant="all",
            chunk=self.chunk,
        )
        rows = points.sample * count + logit
        whole = len(rows) == every.rows and bool((rows == torch.arange(every.rows)).all())
        return every if whole else every.select(rows)

    def features(self, x: PointsLike) -> Tensor:
        """The tangents themselves, (points, parameters) float64: for small networks, and `solve_in_feature_space`."""
        points = self.points(x)
        pieces = [
            self.tangents(points.select(rows)).dense().double()
            for rows in row_chunks(len(points), self.chunk * self.outputs)
        ]
        if pieces:
            return torch.cat(pieces)
        width = sum(parameter.numel() for parameter in self.parameters.values())
        return torch.zeros(0, width, dtype=torch.float64)

    def price(self, x: PointsLike, z: PointsLike | None = None) -> int:
        """Bytes that `gram(x, z)` needs, from the tangents of one input."""
        left = self.points(x)
        right = left if z is None else self.points(z)
        probe = self.tangents(left.select(torch.zeros(1, dtype=torch.long)))
        tangents = probe.nbytes // max(1, probe.rows) * (len(left) + (0 if z is None else len(right)))
        # The result, the tangents, and for one pair of pieces two layers' products.
        piece = self.chunk * self.outputs
        return 8 * len(left) * len(right) + tangents + 4 * 8 * min(piece, len(left)) * min(piece, len(right))

    def _gram(self, x: Points, z: Points | None) -> Tensor:
        size = f"{len(x)} x {len(x) if z is None else len(z)}"
        if len(x) == 0 or (z is not None and len(z) == 0):
            return torch.zeros(len(x), len(x) if z is None else len(z), dtype=torch.float64)
        advice = "take fewer samples, one logit instead of all, or dtype=torch.float32"
        check_memory(self.price(x, z), self.memory_limit, f"the kernel matrix of {size} points", advice)
        # Piece by piece: only the layers' products of one pair are held in addition to the result.
        left = self._pieces(x)
        right = left if z is None else self._pieces(z)
        matrix = torch.empty(len(x), len(x) if z is None else len(z), dtype=torch.float64)
        for place, (rows, mine) in enumerate(left):
            for columns, theirs in right[place:] if z is None else right:
                if mine is theirs:
                    block = mine.gram()
                    matrix[rows, rows] = (block + block.T) / 2
                    continue
                matrix[rows, columns] = mine.gram(theirs)
                if z is None:
                    matrix[columns, rows] = matrix[rows, columns].T
        return matrix

    def _pieces(self, points: Points) -> list[tuple[slice, Tangents]]:
        return [
            (slice(int(rows[0]), int(rows[-1]) + 1), self.tangents(points.select(rows)))
            for rows in row_chunks(len(points), self.chunk * self.outputs)
        ]

    def diagonal(self, x: PointsLike) -> Tensor:
        """k(x, x), a few points at a time."""
        points = self.points(x)
        pieces = [
            self.tangents(points.select(rows)).gram().diagonal() for rows in row_chunks(len(points), 128)
        ]
        return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)


def _learnt(model: nn.Module, names: Sequence[str] | None) -> Mapping[str, nn.Parameter]:
    known = dict(model.named_parameters())
    if names is None:
        chosen = {name: parameter for name, parameter in known.items() if parameter.requires_grad}
    else:
        for name in names:
            if name not in known:
                raise unknown_name("parameter", name, known)
        chosen = {name: known[name] for name in names}
    if not chosen:
        raise SettingsError("expected at least one parameter that learns, got none (requires_grad is False)")
    return chosen


def _known_outputs(model: nn.Module) -> int | None:
    """The number of outputs where the module shows it: the last linear layer of a plain sequence or a head."""
    if isinstance(model, MultiHead):
        return int(model.heads[model.names.index(model.selected)].out_features)  # type: ignore[arg-type]
    if isinstance(model, nn.Linear):
        return model.out_features
    if isinstance(model, nn.Sequential) and len(model):
        return _known_outputs(model[-1])
    return None
