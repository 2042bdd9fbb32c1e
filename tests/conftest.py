"""What tests of several folders share."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from orthocl.sources import load_file


@pytest.fixture(scope="session")
def gallery() -> ModuleType:
    """The parts that a user brings along: `write_parts`, `remove_parts`, `EXPERIMENT`."""
    return load_file(Path(__file__).parent / "gallery" / "parts.py")
