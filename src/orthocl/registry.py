"""Parts of an experiment (methods, networks, streams, ...) by name, by module or by file.

A *spec* says where a part is, in the same way everywhere: in experiment files, on the command line and in Python.

    ogd+                         a name: built in, announced by an installed package, or added with `Registry.add`
    package.module:Object        anything that can be imported
    path/to/file.py:Object       anything in a file

Installed packages announce parts by entry points of the group `orthocl`, named after the kind and the part:

    [project.entry-points.orthocl]
    "method.leash" = "leash.method:Leash"

The source of a part that is not built in is part of every run's identity, and is kept with the run's record.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from orthocl.errors import SettingsError, unknown_name
from orthocl.sources import load_file, module_sources

T = TypeVar("T")
GROUP = "orthocl"


@dataclass(frozen=True)
class Part(Generic[T]):
    """A part that was found.

    Args:
        spec: how another process finds it: a name, "package.module:Object" or "/path/to/file.py:Object". Empty if it
            can be found in this process only (made in a notebook, or inside a function).
        name: what records call it: the name, the module, or the file without its folder.
        value: the part itself.
        sources: file name -> text of its source; empty for built-in parts.
    """

    spec: str
    name: str
    value: T
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Hash of the sources; empty for built-in parts."""
        if not self.sources:
            return ""
        digest = hashlib.sha256()
        for name, text in sorted(self.sources.items()):
            digest.update(f"{name}\0{text}\0".encode())
        return digest.hexdigest()[:16]


class Registry(Mapping[str, T]):
    """Parts of one kind. As a mapping it shows those that have a name.

    Args:
        kind: such as "method".
        builtin: name -> the part, or "module:Object" to import it when it is first asked for.
        adapt: turns what a spec refers to into a part, or raises SettingsError with what was expected.
        unlisted: names that are found, so that what was made with them can be read, but that no list offers.

    >>> sizes = Registry("size", {"small": 1, "large": 10})
    >>> sizes["large"], sorted(sizes)
    (10, ['large', 'small'])
    >>> sizes.find("math:pi").value
    3.141592653589793
    >>> sizes["lage"]
    Traceback (most recent call last):
    orthocl.errors.SettingsError: unknown size 'lage': did you mean 'large'? The choices are: large, small; or ...
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, T | str],
        adapt: Callable[[Any, str], T] | None = None,
        unlisted: tuple[str, ...] = (),
    ):
        self.kind = kind
        self._unlisted = unlisted
        self._builtin = dict(builtin)
        self._adapt = adapt
        self._added: dict[str, Part[T]] = {}

    def __getitem__(self, spec: str) -> T:
        return self.find(spec).value

    def __contains__(self, spec: object) -> bool:
        """Whether a spec is one of the names: files and modules are not inspected."""
        return spec in self._builtin or spec in self._added or spec in self._announced()

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys([*self._builtin, *self._announced(), *self._added])
        return (name for name in names if name not in self._unlisted)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, name: str, value: Any) -> None:
        """Give a part a name, in this process and, where it can be imported, in those that execute its runs.

        >>> sizes = Registry("size", {"small": 1})
        >>> sizes.add("huge", 100)
        >>> sizes["huge"]
        100
        """
        if name in self._builtin:
            raise SettingsError(f"{self.kind} {name!r} is built in: choose another name")
        if not name or ":" in name or "/" in name:
            raise SettingsError(f"the name of a {self.kind} may not contain ':' or '/', got {name!r}")
        self._added[name] = self.describe(value, name)

    def describe(self, value: Any, name: str = "") -> Part[T]:
        """A Python object as a part: how other processes find it, and its source."""
        for known, built_in in self._builtin.items():
            if built_in is value or (isinstance(built_in, str) and built_in == _qualified(value)):
                return self.find(known)
        spec = _importable(value)
        sources = _sources_of(value)
        recorded = recorded_name(spec) if spec else name or getattr(value, "__name__", self.kind)
        return Part(spec, recorded, self._made(value, spec or recorded), sources)

    def find(self, spec: str) -> Part[T]:
        """The part that a spec refers to.

        Raises:
            SettingsError: for an unknown name, a file or module that cannot be read, or an object that is not such
                a part; it says what was expected.
        """
        if not isinstance(spec, str):
            raise SettingsError(f"a {self.kind} is given by its name or as file.py:Object, got {spec!r}")
        if spec in self._builtin:
            value = self._builtin[spec]
            if isinstance(value, str):
                value = self._builtin[spec] = self._made(_imported(value), spec)
            return Part(spec, spec, value)
        if spec in self._added:
            return self._added[spec]
        announced = self._announced()
        if spec in announced:
            return self._outside(announced[spec], spec)
        location, colon, name = spec.rpartition(":")
        if spec.endswith(".py"):
            location, name = spec, ""
        elif not colon:
            also = f"or give your own {self.kind} as file.py:Object or package.module:Object"
            raise unknown_name(self.kind, spec, self, also)
        if location.endswith(".py"):
            module = load_file(Path(location))
            value = _member(module, name, spec) if name else self._only(vars(module), location)
            found = f"{Path(location).expanduser().resolve()}:{name or value.__qualname__}"
            return Part(found, recorded_name(found), self._made(value, spec), module_sources(module))
        return self._outside(spec, spec)

    def _outside(self, spec: str, name: str) -> Part[T]:
        value = _imported(spec)
        return Part(name, name, self._made(value, spec), _sources_of(value))

    def _made(self, value: Any, spec: str) -> T:
        return value if self._adapt is None else self._adapt(value, spec)

    def _only(self, names: Mapping[str, Any], file: str) -> Any:
        """The one part that a file defines."""
        found = []
        for name, value in names.items():
            if name.startswith("_") or getattr(value, "__module__", None) != names["__name__"]:
                continue
            try:
                self._made(value, name)
            except SettingsError:
                continue
            found.append(value)
        if len(found) != 1:
            which = ", ".join(value.__name__ for value in found) or "none"
            raise SettingsError(f"say which {self.kind} of {file} is meant, as {file}:Object; it has {which}")
        return found[0]

    def _announced(self) -> dict[str, str]:
        """Names that installed packages announce, with their specs."""
        prefix = f"{self.kind}."
        return {
            point.name.removeprefix(prefix): point.value
            for point in entry_points(group=GROUP)
            if point.name.startswith(prefix)
        }


def _imported(spec: str) -> Any:
    module, _, name = spec.partition(":")
    try:
        return _member(importlib.import_module(module), name, spec)
    except ImportError as error:
        # A command has its own folder on the path, not the current one, where people keep their modules.
        here = str(Path.cwd())
        if getattr(error, "name", None) != module.partition(".")[0] or here in sys.path:
            raise SettingsError(f"{spec} cannot be imported: {error}") from error
        sys.path.append(here)
        importlib.invalidate_caches()
        return _imported(spec)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{spec} cannot be imported: {type(error).__name__}: {error}") from error


def _member(module: object, name: str, spec: str) -> Any:
    value = module
    for each in name.split("."):
        if not hasattr(value, each):
            choices = [key for key in vars(module) if not key.startswith("_")]
            raise unknown_name(f"object in {spec.rpartition(':')[0]}:", name, choices)
        value = getattr(value, each)
    return value


def _qualified(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"


def _importable(value: Any) -> str:
    """The spec under which another process finds an object, or "" if it cannot."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    if module is None or not name or "<" in name or _found_again(module, name) is not value:
        return ""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or getattr(module, "__orthocl_part__", False):
        return f"{Path(file).resolve()}:{name}" if file and file.endswith(".py") else ""
    return f"{module.__name__}:{name}"


def _found_again(module: object, name: str) -> Any:
    found: Any = module
    for each in name.split("."):
        found = getattr(found, each, None)
    return found


def _sources_of(value: Any) -> dict[str, str]:
    """The source of the module of an object or, where it has no file, of the object itself."""
    if not isinstance(value, type) and not inspect.isroutine(value):  # data, not code
        return {}
    module = sys.modules.get(value.__module__ or "")
    if module is not None and getattr(module, "__file__", None):
        return dict(module_sources(module))
    try:
        return {f"{getattr(value, '__name__', 'part')}.py": inspect.getsource(value)}
    except (OSError, TypeError):
        return {}


def recorded_name(spec: str) -> str:
    """A spec as records hold it: without the folder of a file.

    >>> recorded_name("/home/me/leash.py:Leash"), recorded_name("ogd+")
    ('leash.py:Leash', 'ogd+')
    """
    location, _, name = spec.rpartition(":")
    return f"{Path(location).name}:{name}" if location.endswith(".py") else spec
