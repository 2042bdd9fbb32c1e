"""Every registered method passes every check that `orthocl check` runs on a user's own."""

import pytest

from orthocl.methods import METHODS
from orthocl.testing.conformance import CHECKS, small

CASES = (
    {name: (kind, {}) for name, kind in METHODS.items()}
    | {
        f"{name} by the {engine} engine": (METHODS[name], {"engine": engine})
        for name in ("ogd", "ogd+", "pca-ogd")
        for engine in ("adapter", "project")
    }
    | {f"{name} compressed": (METHODS[name], {"energy": 0.9}) for name in ("ogd", "ogd+", "pca-ogd")}
)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CASES)
def test_method_passes(case: str, check: str):
    kind, fixed = CASES[case]
    # A check raises NonConformingError with the reason when it fails.
    CHECKS[check](lambda **settings: small(kind, {**fixed, **settings}))
