"""Users' Python files: loading them, and their source text."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from orthocl.errors import SettingsError

MOST_FILES = 200
"""A part is hashed with the neighbouring modules that it imports: at most this many."""


def load_file(path: Path) -> ModuleType:
    """The module in a Python file, loaded once for each version of the file.

    Modules in the same folder can be imported by it, as if it were run as a script.
    """
    path = path.expanduser().resolve()
    main = sys.modules.get("__main__")
    if main is not None and _file(main) == path:
        return main  # the script that asks: its parts are there, and to execute it again would start it all again
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    name = f"orthocl_part_{path.stem}_{hashlib.sha256(str(path).encode() + content).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    module.__orthocl_part__ = True  # type: ignore[attr-defined]
    _make_importable(path)
    sys.modules[name] = module  # dataclasses look up their module by name
    _LOADING.append(path.name)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise SettingsError(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        _LOADING.pop()
    for neighbour in _imported_files(path, path.parent):
        loaded = sys.modules.get(neighbour.stem)
        if loaded is not None:
            vars(loaded).setdefault("__orthocl_text__", neighbour.read_bytes())
    return module


_LOADING: list[str] = []


def check_not_loading() -> None:
    """Reject an experiment that a file starts while it is only read for its parts."""
    if _LOADING:
        raise SettingsError(
            f"{_LOADING[-1]} starts an experiment, but it is only read for a part that it defines: put the part into a "
            'file of its own, or the experiment under `if __name__ == "__main__":`'
        )


def _file(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _make_importable(path: Path) -> None:
    """Let a file import its neighbours, unless other modules of the same names are already loaded."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    for neighbour in _imported_files(path, path.parent):
        loaded = sys.modules.get(neighbour.stem)
        file = getattr(loaded, "__file__", None)
        if loaded is None or vars(loaded).get("__orthocl_text__") == neighbour.read_bytes():
            continue  # not loaded yet, or an equal copy, which does no harm
        if file is not None and Path(file).resolve() == neighbour:
            del sys.modules[neighbour.stem]  # it has changed since: import it again
        else:
            raise SettingsError(
                f"{path.name} imports its neighbour {neighbour.name}, but another module {neighbour.stem!r} is loaded "
                "already: give it a different name"
            )


@cache
def module_sources(module: ModuleType) -> dict[str, str]:
    """The text of a module's file and of the files of its own package or folder that it imports, by file name.

    As they were when first requested: Python does not re-import a changed file either.
    """
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return {}
    path = Path(file).resolve()
    root = path.parent
    if not getattr(module, "__orthocl_part__", False):
        for _ in range(module.__name__.count(".")):
            root = root.parent
    found: dict[str, str] = {}
    waiting = [path]
    while waiting and len(found) < MOST_FILES:
        each = waiting.pop()
        name = each.relative_to(root).as_posix() if each.is_relative_to(root) else each.name
        if name not in found:
            found[name] = each.read_text(encoding="utf-8", errors="replace")
            waiting += _imported_files(each, root)
    return found


def _imported_files(path: Path, root: Path) -> list[Path]:
    """Files below a folder that a file imports."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (
        SyntaxError,
        ValueError,
    ):  # importing it will report the error; ValueError for NUL before Python 3.12
        return []
    names: list[tuple[Path, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = root
            if node.level:
                start = path.parent
                for _ in range(node.level - 1):
                    start = start.parent
            base = node.module or ""
            names += [(start, base)] if base else []
            names += [(start, f"{base}.{alias.name}".strip(".")) for alias in node.names]
    found = []
    for start, name in names:
        place = start.joinpath(*name.split("."))
        for candidate in (place.with_name(place.name + ".py"), place / "__init__.py"):
            if candidate.is_file() and candidate.resolve() != path:
                found.append(candidate.resolve())
    return found
