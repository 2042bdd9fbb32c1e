"""Parts by name, module and file: found, checked, hashed with what they import, and described from objects."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from orthocl import registry
from orthocl.errors import SettingsError
from orthocl.methods import EWC, METHODS
from orthocl.nets import NETS
from orthocl.registry import Registry, recorded_name

LEASH = """
from dataclasses import dataclass
from typing import ClassVar
from orthocl import Method
{imports}

@dataclass
class Leash(Method):
    '''A method of somebody else.'''
    name: ClassVar[str] = "leash"
    strength: float = 0.1

NUMBER = 3
"""


@pytest.fixture
def leash(tmp_path: Path) -> Path:
    path = tmp_path / "leash_of_test.py"
    path.write_text(LEASH.format(imports=""))
    return path


def test_a_file_is_found_by_path_and_object(leash):
    part = METHODS.find(f"{leash}:Leash")
    assert part.value(strength=2.0).strength == 2.0
    assert part.name == "leash_of_test.py:Leash"
    assert part.spec == f"{leash}:Leash"
    assert part.sources == {"leash_of_test.py": leash.read_text()}
    assert METHODS.find(str(leash)).value is part.value  # its only method


def test_built_in_parts_have_no_source():
    part = METHODS.find("ewc")
    assert part.value is EWC
    assert (part.spec, part.name, part.source) == ("ewc", "ewc", "")


def test_a_module_is_found_below_the_working_directory(tmp_path, monkeypatch):
    package = tmp_path / "somebodys_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("STRENGTH = 1\n")
    (package / "method.py").write_text(LEASH.format(imports="from somebodys_parts.inner import STRENGTH"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    part = METHODS.find("somebodys_parts.method:Leash")
    assert part.name == part.spec == "somebodys_parts.method:Leash"
    assert set(part.sources) == {"somebodys_parts/method.py", "somebodys_parts/inner.py"}


def test_the_hash_covers_the_modules_that_a_file_imports(tmp_path):
    neighbour = tmp_path / "neighbour_of_leash.py"
    neighbour.write_text("ONE = 1\n")
    path = tmp_path / "leash_with_neighbour.py"
    path.write_text(LEASH.format(imports="import neighbour_of_leash"))
    part = METHODS.find(f"{path}:Leash")
    assert set(part.sources) == {"leash_with_neighbour.py", "neighbour_of_leash.py"}
    assert len(part.source) == 16
    other = tmp_path / "other"
    other.mkdir()
    (other / "neighbour_of_leash.py").write_text("ONE = 2\n")
    (other / "leash_with_neighbour.py").write_text(path.read_text())
    with pytest.raises(SettingsError, match="another module 'neighbour_of_leash' is loaded already"):
        METHODS.find(f"{other / 'leash_with_neighbour.py'}:Leash")


def test_an_edited_neighbour_is_read_again(tmp_path):
    neighbour = tmp_path / "edited_neighbour.py"
    path = tmp_path / "leash_beside_edited.py"
    path.write_text(LEASH.format(imports="from edited_neighbour import ONE"))
    neighbour.write_text("ONE = 1\n")
    before = METHODS.find(f"{path}:Leash")
    neighbour.write_text("ONE = 2\n")
    path.write_text(path.read_text() + "\n")
    after = METHODS.find(f"{path}:Leash")
    assert before.source != after.source
    assert vars(sys.modules[after.value.__module__])["ONE"] == 2


def test_an_edited_file_is_read_again(leash):
    before = METHODS.find(f"{leash}:Leash")
    leash.write_text(LEASH.format(imports="import math"))
    after = METHODS.find(f"{leash}:Leash")
    assert before.value is not after.value
    assert before.source != after.source


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("odg", "did you mean 'ogd'.*file.py:Object"),
        ("{leash}:Lesh", "did you mean 'Leash'"),
        ("{leash}:NUMBER", "not a class derived from orthocl.Method"),
        ("nowhere.py:Leash", "cannot read .*nowhere.py"),
        ("no_such_module:Leash", "cannot be imported"),
        ("orthocl.methods:Nothing", "unknown object"),
        ("math:pi", "not a class derived"),
    ],
)
def test_what_cannot_be_found_is_said(leash, spec, words):
    with pytest.raises(SettingsError, match=words):
        METHODS.find(spec.format(leash=leash))


def test_a_file_that_fails_is_named_with_its_error(tmp_path):
    path = tmp_path / "broken_part.py"
    path.write_text("raise ValueError('out of order')\n")
    with pytest.raises(SettingsError, match=r"broken_part.py cannot be imported: ValueError: out of order"):
        METHODS.find(f"{path}:Leash")
    path.write_text("class Leash(:\n")
    with pytest.raises(SettingsError, match="SyntaxError"):
        METHODS.find(f"{path}:Leash")


def test_installed_packages_announce_parts(leash, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    points = [
        EntryPoint("method.leash", "leash_of_test:Leash", "orthocl"),
        EntryPoint("net.x", "a:b", "orthocl"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert "leash" in METHODS
    assert "leash" in list(METHODS)
    part = METHODS.find("leash")
    assert part.value.name == "leash"
    assert part.source
    assert "x" in NETS
    assert "x" not in METHODS


def test_parts_can_be_named_in_this_process(leash):
    parts: Registry[object] = Registry("thing", {"one": 1})
    parts.add("two", 2)
    assert list(parts) == ["one", "two"]
    assert parts["two"] == 2
    with pytest.raises(SettingsError, match="built in"):
        parts.add("one", 3)
    with pytest.raises(SettingsError, match="may not contain ':' or '/'"):
        parts.add("a:b", 3)


def test_objects_are_described_by_where_they_can_be_found(leash):
    kind = METHODS.find(f"{leash}:Leash").value
    assert METHODS.describe(kind).spec == f"{leash}:Leash"
    assert METHODS.describe(EWC).spec == "ewc"

    def build(input_shape, outputs=None):
        raise AssertionError("never built")

    local = NETS.describe(build)
    assert local.spec == ""
    assert local.name == "build"
    assert local.source


def test_records_do_not_hold_folders():
    assert recorded_name("/home/somebody/leash.py:Leash") == "leash.py:Leash"
    assert recorded_name("package.module:Leash") == "package.module:Leash"
