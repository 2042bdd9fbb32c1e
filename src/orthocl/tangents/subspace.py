"""Subspace: the span of the remembered tangents, and the parts of a gradient inside and outside it.

Paper: Algorithm 1 (E, the span; the update is taken along its orthogonal complement).

With G the m x p matrix of tangents and K = G G^T, the projector onto the span is G^T K^-1 G. The tangents stay
factors, K is computed from them in float64, and its Cholesky factor grows with the memory; no vector of
length m p is ever formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError, StoreError
from orthocl.tangents.cholesky import GrowingCholesky
from orthocl.tangents.tangents import Tangents, norm

DTYPES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Subspace:
    """The span of tangents, by owner (the number of the task they come from).

    A tangent that adds no direction (a repeated sample, a zero gradient) is not part of the basis. It is set aside
    rather than discarded, so that it returns when the owner of the row it depends on is removed.

    With `components=k`, `append` protects only the k principal directions of the new tangents (PCA-OGD):
    with K = U diag(s) U^T they are (up to their length) diag(s)^-1/2 U_k^T G, combinations of the rows, kept as a k x m
    mixing matrix next to the factors. All else is the same.

    Args:
        parameters: the protected parameters by name; gradients and updates are sequences aligned with them.
        tolerance: a tangent whose squared distance from the span of the others is at most this fraction of
            the largest squared norm adds no direction.
        dtype: storage type of the factors: float64, float32 or bfloat16; by default as they come. The
            tangents ARE their rounded factors: what is protected is exactly what is stored.

    >>> from orthocl.nets import MLP
    >>> from orthocl.tangents import collect
    >>> model = MLP((4,), hidden=(8,), outputs=3)
    >>> parameters = dict(model.named_parameters())
    >>> subspace = Subspace(parameters)
    >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> subspace.append(collect(model, x, y, parameters=parameters), owner=1)
    5
    >>> update = subspace.outside([torch.ones_like(p) for p in parameters.values()])
    >>> subspace.leak(update) < 1e-5
    True
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        tolerance: float = 1e-12,
        dtype: torch.dtype | None = None,
    ):
        if dtype is not None and dtype not in DTYPES:
            raise SettingsError(f"tangents are stored in {', '.join(DTYPES.values())}, not in {dtype}")
        if not 0 < tolerance < 1:
            raise SettingsError(f"expected a rank tolerance between 0 and 1, got {tolerance}")
        self.names = tuple(parameters)
        self.shapes = tuple(tuple(parameter.shape) for parameter in parameters.values())
        self.tolerance = tolerance
        self.dtype = dtype
        self._clear()

    def _clear(self) -> None:
        self.tangents: Tangents | None = None  # the rows of all pieces, in order
        self._pieces: list[tuple[int, int, Tensor | None]] = []  # owner, rows, mixing
        self._places: list[Tensor] = []  # for each piece, the positions of its rows among the tangents given
        self._aside: list[tuple[int, Tangents]] = []  # tangents that added no direction
        self._factor = GrowingCholesky()
        self.largest = 0.0  # largest squared norm of a tangent so far

    # ---- what is in it

    @property
    def rank(self) -> int:
        """Number of protected directions."""
        return self._factor.size

    @property
    def size(self) -> int:
        """Number of tangents kept as rows."""
        return 0 if self.tangents is None else self.tangents.rows

    @property
    def errors(self) -> Tensor | None:
        """For each tangent kept how far it is from the true gradient, relative to its norm; None if exact."""
        return None if self.tangents is None else self.tangents.errors

    @property
    def owners(self) -> tuple[int, ...]:
        """The owners of directions, in order of first arrival."""
        return tuple(dict.fromkeys(owner for owner, _, _ in self._pieces))

    @property
    def nbytes(self) -> int:
        """Bytes of factors, Cholesky factor and mixing matrices, tangents set aside included."""
        mixing = sum(m.numel() * m.element_size() for _, _, m in self._pieces if m is not None)
        aside = sum(tangents.nbytes for _, tangents in self._aside)
        return mixing + aside + self._factor.nbytes + (0 if self.tangents is None else self.tangents.nbytes)

    # ---- what changes it

    def append(self, tangents: Tangents, owner: int, components: int | None = None) -> int:
        """Protect more tangents, or their `components` principal directions; returns how many are new."""
        if tangents.names != self.names or tangents.shapes != self.shapes:
            raise DataError(
                f"these tangents are of parameters {list(tangents.names)[:3]}..., "
                f"the subspace protects {list(self.names)[:3]}..."
            )
        if self.dtype is not None:
            tangents = tangents.to(self.dtype)
        gram = tangents.gram()
        if not bool(gram.isfinite().all()):
            raise DataError("tangents that are not finite: the network has diverged or its outputs overflow")
        self.largest = max(self.largest, float(gram.diagonal().max()))
        threshold = self.tolerance * self.largest
        if components is not None:
            return self._append_components(tangents, owner, gram, components, threshold)
        alive = places = (gram.diagonal() > threshold).nonzero()[:, 0]
        if len(alive) < tangents.rows:  # zero tangents protect nothing, now or later
            tangents, gram = tangents.select(alive), gram[alive][:, alive]
        if tangents.rows == 0:
            return 0
        kept = self._factor.extend(self._cross(tangents), gram, self.largest, self.tolerance)
        if len(kept) < tangents.rows:
            rest = torch.ones(tangents.rows, dtype=torch.bool, device=kept.device)
            rest[kept] = False
            self._aside.append((owner, tangents.select(rest.nonzero()[:, 0])))
        if len(kept):
            in_order = torch.equal(kept, torch.arange(tangents.rows, device=kept.device))
            self._join(tangents if in_order else tangents.select(kept), owner, None, places[kept])
        return len(kept)

    def _append_components(
        self, tangents: Tangents, owner: int, gram: Tensor, components: int, threshold: float
    ) -> int:
        if components < 1:
            raise SettingsError(f"expected at least one principal component, got {components}")
        values, vectors = torch.linalg.eigh(gram)
        first = values.flip(0)[:components] > threshold
        # Directions as long as the longest tangent: one scale, and one tolerance, for both kinds.
        lengths = (self.largest / values.flip(0)[:components][first]).sqrt()
        mixing = (vectors.flip(1)[:, :components][:, first] * lengths).t()
        if len(mixing) == 0:
            return 0
        kept = self._extend_mixed(tangents, gram, mixing)
        if len(kept):
            self._join(tangents, owner, mixing[kept], torch.arange(tangents.rows))
        return len(kept)

    def _extend_mixed(self, tangents: Tangents, gram: Tensor, mixing: Tensor) -> Tensor:
        cross = self._cross(tangents) @ mixing.t()
        return self._factor.extend(cross, mixing @ gram @ mixing.t(), self.largest, self.tolerance)

    def _cross(self, tangents: Tangents) -> Tensor:
        """Inner products of the present directions with new tangents."""
        if self.tangents is None:
            return next(iter(tangents.blocks[0].tensors().values())).new_zeros(
                0, tangents.rows, dtype=torch.float64
            )
        return self._mix(self.tangents.gram(tangents))

    def _join(self, tangents: Tangents, owner: int, mixing: Tensor | None, places: Tensor) -> None:
        self.tangents = tangents if self.tangents is None else Tangents.concatenate([self.tangents, tangents])
        self._pieces.append((owner, tangents.rows, mixing))
        self._places.append(places.cpu())

    def find(self, owner: int, places: Tensor) -> tuple[Tangents, Tensor] | None:
        """Tangents that an owner gave last, by their places among those given, and the places that are kept."""
        ends = [0]
        for _, count, _ in self._pieces:
            ends.append(ends[-1] + count)
        last = max((i for i, piece in enumerate(self._pieces) if piece[0] == owner), default=None)
        if last is None or self.tangents is None:
            return None
        here = torch.isin(self._places[last], places).nonzero()[:, 0]
        return (self.tangents.select(here + ends[last]), self._places[last][here]) if len(here) else None

    def grow(self, parameters: Mapping[str, nn.Parameter], change: Callable[[Tangents], Tangents]) -> None:
        """Protect the same directions among more parameters.

        Args:
            parameters: the protected parameters by name, as they are now.
            change: turns tangents of the earlier parameters into those of the present ones, inner products unchanged.
        """
        self.names = tuple(parameters)
        self.shapes = tuple(tuple(parameter.shape) for parameter in parameters.values())
        self.tangents = None if self.tangents is None else change(self.tangents)
        self._aside = [(owner, change(tangents)) for owner, tangents in self._aside]

    def replace(self, pieces: Sequence[tuple[int, Tangents]], components: int | None = None) -> int:
        """Discard everything and protect these tangents instead (OGD+); returns the new rank."""
        self._clear()
        for owner, tangents in pieces:
            self.append(tangents, owner, components)
        return self.rank

    def remove(self, owner: int) -> int:
        """Stop protecting an owner's tangents; returns how many directions were removed."""
        before = self.rank
        if owner not in self.owners and owner not in {who for who, _ in self._aside}:
            raise SettingsError(f"no tangents of owner {owner}; the owners are {list(self.owners)}")
        rows = self.tangents
        pieces, aside = self._pieces, [(who, tangents) for who, tangents in self._aside if who != owner]
        all_places = self._places
        self._clear()
        start = 0
        for (who, count, mixing), places in zip(pieces, all_places, strict=True):
            if who != owner and rows is not None:
                self._restore(rows.select(torch.arange(start, start + count)), who, mixing, places)
            start += count
        for who, tangents in aside:
            self.append(tangents, who)
        return before - self.rank

    def _restore(self, tangents: Tangents, owner: int, mixing: Tensor | None, places: Tensor) -> None:
        """Put back a piece whose directions are known to be independent."""
        if mixing is None:
            if self.append(tangents, owner):
                self._places[-1] = places[self._places[-1]]
            return
        gram = tangents.gram()
        self.largest = max(self.largest, float(gram.diagonal().max()))
        kept = self._extend_mixed(tangents, gram, mixing)
        self._join(tangents, owner, mixing[kept], places)

    # ---- what it does to a gradient

    def _mix(self, rows: Tensor) -> Tensor:
        """From one number (or line) per row to one per direction."""
        if all(mixing is None for _, _, mixing in self._pieces):
            return rows
        parts = torch.split(rows, [count for _, count, _ in self._pieces])
        return torch.cat(
            [part if m is None else m @ part for part, (_, _, m) in zip(parts, self._pieces, strict=True)]
        )

    def _unmix(self, directions: Tensor) -> Tensor:
        """The transpose of `_mix`."""
        if all(mixing is None for _, _, mixing in self._pieces):
            return directions
        sizes = [count if m is None else len(m) for _, count, m in self._pieces]
        parts = torch.split(directions, sizes)
        return torch.cat(
            [part if m is None else m.t() @ part for part, (_, _, m) in zip(parts, self._pieces, strict=True)]
        )

    def solve(self, coefficients: Tensor) -> Tensor:
        """The weights w of the rows with G^T w = the projection of g onto the span, from coefficients G g."""
        return self._unmix(self._factor.solve(self._mix(coefficients.double()))).to(coefficients.dtype)

    def whitening(self) -> Tensor:
        """R, directions x rows, such that the rows of R G are an orthonormal basis of the span; float64.

        R = L^-1, or L^-1 M with principal components M. Unlike K^-1, it keeps its accuracy for tangents that are almost
        copies of each other.
        """
        lower = self._factor.lower()
        unit = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower, unit, upper=False)
        return self._unmix(inverse.t()).t()

    def inverse(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The matrix of `solve`, rows x rows: K^-1, or M^T (M K M^T)^-1 M with principal components."""
        if self.rank == 0:
            return torch.zeros(self.size, self.size, dtype=dtype)
        inverse = torch.cholesky_inverse(self._factor.lower())
        if any(mixing is not None for _, _, mixing in self._pieces):
            inverse = self._unmix(self._unmix(inverse).t())
        return inverse.to(dtype)

    def inside(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The part of a gradient or displacement inside the span of the protected tangents."""
        outside = self.outside(vectors)
        return [whole.detach() - part for whole, part in zip(vectors, outside, strict=True)]

    def outside(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The part of a gradient or displacement that is orthogonal to every protected tangent.

        In two passes, so that rounding leaves nothing behind; `Projector` is for the steps of a task.
        """
        if len(vectors) != len(self.names):
            raise DataError(f"expected a gradient of {len(self.names)} tensors, got {len(vectors)}")
        outside = [part.detach().clone() for part in vectors]
        if self.tangents is None:
            return outside
        for _ in range(2):
            inside = self.tangents.combine(self.solve(self.tangents.coefficients(outside)))
            outside = [part - more for part, more in zip(outside, inside, strict=True)]
        return outside

    def leak(self, gradient: Sequence[Tensor]) -> float:
        """The norm of the protected part of a gradient or update, as a fraction of its norm."""
        whole = float(norm(gradient))
        if self.tangents is None or whole == 0.0:
            return 0.0
        coefficients = self.tangents.coefficients([part.detach().double() for part in gradient])
        inside = self._factor.solve_lower(self._mix(coefficients)[:, None])
        return float(inside.norm()) / whole

    def squares_inside(self, tangents: Tangents) -> Tensor:
        """Squared norm of the part of each tangent inside the span."""
        return self._factor.solve_lower(self._cross(tangents)).square().sum(0)

    # ---- saving

    def state_dict(self) -> dict[str, object]:
        """Tensors and JSON values, nested."""
        return {
            "names": list(self.names),
            "tolerance": self.tolerance,
            "dtype": None if self.dtype is None else DTYPES[self.dtype],
            "largest": self.largest,
            "pieces": [
                {"owner": owner, "rows": rows, "mixing": mixing, "places": places}
                for (owner, rows, mixing), places in zip(self._pieces, self._places, strict=True)
            ],
            "tangents": None if self.tangents is None else self.tangents.state_dict(),
            "aside": [{"owner": owner, "tangents": tangents.state_dict()} for owner, tangents in self._aside],
            "factor": list(self._factor.panels),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore a saved state; the protected parameters must be the same."""
        if state["names"] != list(self.names):
            raise StoreError(
                f"the saved subspace protects {state['names']}, this one {list(self.names)}: "
                "build it with the parameters of the run that saved it"
            )
        self._clear()
        self.tolerance = float(state["tolerance"])  # type: ignore[arg-type]
        self.dtype = {name: dtype for dtype, name in DTYPES.items()}.get(str(state["dtype"]))
        self.largest = float(state["largest"])  # type: ignore[arg-type]
        self._factor = GrowingCholesky(state["factor"])  # type: ignore[arg-type]
        for piece in state["pieces"]:  # type: ignore[attr-defined]
            self._pieces.append((int(piece["owner"]), int(piece["rows"]), piece["mixing"]))
            places = piece.get("places")
            self._places.append(torch.arange(int(piece["rows"])) if places is None else places)
        for part in state["aside"]:  # type: ignore[attr-defined]
            self._aside.append((int(part["owner"]), Tangents.from_state_dict(part["tangents"])))
        if state["tangents"] is not None:
            self.tangents = Tangents.from_state_dict(state["tangents"])  # type: ignore[arg-type]
