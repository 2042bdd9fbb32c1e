"""Tests are found by the name of what they test."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "orthocl"
SUBJECTS = {
    *(
        "bad_input",
        "chaos",
        "cluster",
        "conformance",
        "devices",
        "docs",
        "false_statements",
        "gallery",
        "theorems",
    ),
}
"""Folders that test one subject throughout the library, not one of its packages."""
WHOLE = {
    *("cli/test_manners.py", "integrations/test_other_models.py", "lab/test_golden.py"),
    *("lab/test_committed_records.py", "methods/test_counted_steps.py", "methods/test_displacement.py"),
}
"""Files that test a package as a whole, or what needs no module of its own."""


def _files() -> list[Path]:
    found = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    return sorted(path for path in found if len(path.parts) > 1 and path.parts[0] not in SUBJECTS)


@pytest.mark.parametrize("path", _files(), ids=str)
def test_a_file_is_named_after_a_module(path: Path) -> None:
    """`a/test_b.py` and `a/test_b_aspect.py` test `a/b`; `a/test_tables.py` tests `a/tables_*`."""
    if path.as_posix() in WHOLE:
        return
    name = path.stem.removeprefix("test_")
    modules = {module.stem for module in (SOURCE / path.parent).iterdir()}
    assert any(name == m or name.startswith(f"{m}_") or m.startswith(f"{name}_") for m in modules), modules
