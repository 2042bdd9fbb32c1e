"""Every registered method passes every check that `orthocl check` runs on a user's own."""

import pytest

from orthocl.methods import METHODS
from orthocl.training.conformance import CHECKS, small


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("method", METHODS)
def test_method_passes(method: str, check: str):
    # A check raises NonConformingError with the reason when it fails.
    CHECKS[check](lambda **settings: small(METHODS[method], settings))
