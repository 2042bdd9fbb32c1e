"""Wheel and source distribution: built, installed and used outside of the source tree."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the source distribution and the wheel that is made from it."""
    pytest.importorskip("build", reason="the package `build` is not installed")
    pytest.importorskip("hatchling", reason="the build backend `hatchling` is not installed")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_source_distribution_can_be_tested(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/orthocl/__init__.py", "tests/conftest.py"} <= names
    assert {"experiments/protocol.toml", "src/orthocl/streams/datasets/mnist-mini.npz"} <= names


def test_the_wheel_runs_outside_of_the_source_tree(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
    for file in ("LICENSE", "mnist-mini.txt", "authors_cifar100.txt"):
        assert any("licenses/" in name and name.endswith(f"/{file}") for name in names), file
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    assert "\nLicense-Expression: MIT AND CC-BY-SA-3.0\n" in (site / metadata).read_text()
    licence = (site / "orthocl" / "streams" / "datasets" / "mnist-mini.txt").read_text()
    assert "Attribution-Share Alike" in licence
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    words = "run --stream rotated-mnist-mini --method sgd --seed 1 --jobs 1 --store store --report page.html"
    small = ["--set", "stream.tasks=2", "--set", "train.epochs=1", "--set", "stream.train_size=50"]
    for command in ([*words.split(), *small], ["paper", "table-6"]):
        done = subprocess.run(
            [sys.executable, "-m", "orthocl", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    where = subprocess.run(
        [sys.executable, "-c", "import orthocl; print(orthocl.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip().startswith(str(site))
    assert (tmp_path / "page.html").stat().st_size > 50_000


def _imported(path: Path, everywhere: bool) -> set[str]:
    """Packages that a file imports: when it is imported itself, or `everywhere`, in its functions too."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
        only_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not only_types and (everywhere or not isinstance(node, ast.FunctionDef)):
            waiting += ast.iter_child_nodes(node)
    return found - set(sys.stdlib_module_names) - {"orthocl"}


def _declared(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(name for e in extras for name in project["optional-dependencies"][e]),
    ]
    names = {re.split(r"[^\w-]", name)[0].replace("-", "_") for name in asked}
    return names | {"PIL" for name in names if name == "pillow"} | {"mlflow" for n in names if "mlflow" in n}


def test_what_is_imported_is_installed_with_the_package():
    """A plain installation can import every module but the callbacks for other people's trainers."""
    for path in (ROOT / "src").rglob("*.py"):
        trainers = ["integrations"] if "integrations" in path.parts else []
        assert _imported(path, everywhere=False) <= _declared(*trainers), path
        extras = ("ray", "slurm", "parquet", "integrations", "track")
        assert _imported(path, everywhere=True) <= _declared(*extras), path
