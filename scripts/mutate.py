"""Do the tests notice if a line is wrong? Changes of the source, one at a time, against the tests that run them.

    make coverage                                    # which test executes which line, and how long tests take
    python scripts/mutate.py 200                     # a sample; `make mutants`
    python scripts/mutate.py all src/orthocl/metrics # every change of a package
    python scripts/mutate.py all --kinds BinOp,Compare --minutes 60 --keep   # goes on with an earlier report

A changed program that fails a test, hangs or does not start counts as noticed. Every other one is printed with its
place: it asks for a test, or for a reason why it makes no difference. Tests are collected once, on a copy of the
repository: nothing here is changed. A change inside of a function is put into the function's code in a fork of that
process, and the tests that execute its line run there, the quickest first. A change that acts when a module is imported
(defaults, constants), or that no test executes in its own process, is written into the copy, and a fork that has only
imported torch runs the tests named after the module and the others of its folder.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from xml.etree import ElementTree

REPOSITORY = Path(__file__).parents[1]
PACKAGES = [f"src/orthocl/{name}" for name in ("tangents", "methods", "theory", "metrics")]
SWAPS: dict[type[ast.AST], ast.AST] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(), ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(), ast.In: ast.NotIn(), ast.NotIn: ast.In(),
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(), ast.FloorDiv: ast.Div(),
    ast.Pow: ast.Mult(), ast.And: ast.Or(), ast.Or: ast.And(),
}  # fmt: skip
ELSEWHERE = ("tests/methods/test_ranks.py", "tests/lab/executors/", "tests/chaos/", "tests/test_packaging.py")
"""Tests of processes of their own, which a change of this process's code does not reach."""
UNKNOWN = 0.1
"""Seconds of a test whose time is not known."""


@dataclass(frozen=True)
class Mutant:
    """One change: a piece of a file's text, and what stands there instead. Later lines keep their numbers."""

    file: str
    line: int
    start: int
    stop: int
    old: str
    new: str
    kind: str

    def apply(self, text: bytes) -> bytes:
        """The text with the change."""
        return text[: self.start] + self.new.encode() + text[self.stop :]

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes it from all others."""
        return key_of(self.row())

    def row(self) -> dict[str, Any]:
        """What the report says about it."""
        words = {"old": self.old, "new": self.new.replace("\n", ""), "kind": self.kind, "start": self.start}
        return {"place": f"{self.file}:{self.line}", **words}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes one row of a report from all others: in a - b - c two operations begin at one place."""
    return row["place"], row["start"], row["old"], row["new"]


def changed(node: ast.AST) -> ast.AST | None:
    """The same node with something wrong, if there is a usual way to get it wrong."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in SWAPS:
            return ast.Compare(left, [SWAPS[type(op)]], right)  # type: ignore[list-item]
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            return ast.BinOp(left, SWAPS[type(op)], right)  # type: ignore[arg-type]
        case ast.BoolOp(op, values):
            return ast.BoolOp(SWAPS[type(op)], values)  # type: ignore[arg-type]
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            return operand
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value)):
            return ast.Constant(value + 1)
        case ast.Constant(float(value)):
            return ast.Constant(value * 2 + 0.1)
        case ast.IfExp(test, body, other):
            return ast.IfExp(test, other, body)
        case ast.Expr(ast.Call()) | ast.AugAssign():
            return ast.Pass()
    return None


def reachable(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that are executed: no annotations, no texts of errors, no declarations of types, no `strict=` of zip."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.AST):
                yield from reachable(child)


def mutants(file: Path) -> list[Mutant]:
    """Every change of one file."""
    text = file.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in reachable(ast.parse(text)):
        new = changed(node)
        if new is None or not isinstance(node, ast.expr | ast.stmt):
            continue
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        words = ast.unparse(ast.fix_missing_locations(new))
        lines = "\n" * text[start:stop].count(b"\n")
        words = f"({words}{lines})" if isinstance(node, ast.expr) else words + lines
        place = file.relative_to(REPOSITORY).as_posix()
        old = text[start:stop].decode()
        found.append(Mutant(place, node.lineno, start, stop, old, words, type(node).__name__))
    return found


# ----------------------------------------------------------------------------------------- which tests, how long


def tests_of_lines(database: Path, files: set[str]) -> dict[str, dict[int, list[str]]]:
    """For each file and line the tests that execute it."""
    from coverage import CoverageData

    data = CoverageData(str(database))
    data.read()
    found: dict[str, dict[int, list[str]]] = {}
    for measured in data.measured_files():
        place = measured[measured.find("src/orthocl") :]
        if place in files:
            lines = data.contexts_by_lineno(measured)
            found[place] = {
                line: sorted(
                    {name.split("|")[0] for name in names if "::" in name and not name.startswith(ELSEWHERE)}
                )
                for line, names in lines.items()
            }
    return found


def times_of_tests(report: Path) -> dict[str, float]:
    """Seconds of every test, by file and name, from a report in JUnit's format; empty without one."""
    if not report.exists():
        return {}
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {f"{case.get('file')}::{case.get('name')}": float(case.get("time", UNKNOWN)) for case in cases}


def quickest_first(mutant: Mutant, tests: list[str], times: dict[str, float]) -> list[str]:
    """The quickest tests first, those of the same module and part before others that take as long."""
    part, name = Path(mutant.file).parent.name, Path(mutant.file).stem

    def cost(test: str) -> float:
        near = 0.2 if f"test_{name}" in test else 0.5 if f"/{part}/" in test else 1.0
        return near * (0.02 + seconds_of(test, times))

    return sorted(tests, key=cost)


def seconds_of(test: str, times: dict[str, float]) -> float:
    """Its time as it was measured."""
    file, _, name = test.partition("::")
    return times.get(f"{file}::{name.split('::')[-1]}", UNKNOWN)


def within(tests: list[str], times: dict[str, float], budget: float) -> list[str]:
    """The first tests that together take no longer than the budget, at least one."""
    chosen: list[str] = []
    for test in tests:
        budget -= seconds_of(test, times)
        if budget < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def tests_of_module(copy: Path, mutant: Mutant) -> list[str]:
    """Files of tests named after the module, then the others of its folder, or those of theorems."""
    file = Path(mutant.file)
    folder = copy / "tests" / file.parent.relative_to("src/orthocl")
    while not folder.exists():
        folder = folder.parent
    near = sorted(folder.glob(f"test_{file.stem}*.py")) or sorted(folder.glob(f"test_{file.parent.name}*.py"))
    others = [path for path in sorted(folder.rglob("test_*.py")) if path not in near]
    return [path.relative_to(copy).as_posix() for path in [*near, *others]]


# --------------------------------------------------------------------------------------------- trying a change


def in_a_fork(work: Callable[[int], None], seconds: float) -> tuple[str | None, str]:
    """How some work ends in a process of its own: in words (None: well), and what it wrote into its pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 4
        try:
            os.setsid()
            os.close(reading)
            work(writing)
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            os._exit(code)
    os.close(writing)
    deadline = time.monotonic() + seconds
    answer: str | None = "never ended"
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            answer = {0: None, 1: "a test failed"}.get(code, f"did not run ({code})")
            break
        time.sleep(0.01)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.set_blocking(reading, False)
    try:
        words = os.read(reading, 10_000).decode(errors="replace")
    except BlockingIOError:
        words = ""
    os.close(reading)
    return answer, words


def replacements(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Codes of functions that differ, None if what is executed on import differs too."""
    inner = [[const for const in code.co_consts if isinstance(const, CodeType)] for code in (old, new)]
    if len(inner[0]) != len(inner[1]):
        return None
    found = []
    for one, other in zip(*inner, strict=True):
        if one != other:
            below = replacements(one, other)
            if one.co_flags & 1:  # a function, not the body of a class
                found += [(one, other), *(below or [])]
            elif below is None:
                return None
            else:
                found += below
    if not old.co_flags & 1:
        plain = [[c for c in code.co_consts if not isinstance(c, CodeType)] for code in (old, new)]
        if old.co_code != new.co_code or old.co_names != new.co_names or repr(plain[0]) != repr(plain[1]):
            return None
    return found


def warm_up() -> None:
    """What torch and others import when they are first used, so that not every fork does."""
    import matplotlib.pyplot as plt
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.func.vmap(torch.func.grad(lambda x: x.square().sum()))(torch.ones(2, 2))
    plt.close("all")


class Collected:
    """Tests collected once, and the functions of the source that they may call. A plugin of pytest."""

    def __init__(self, copy: Path, work: Callable[[Collected], None]) -> None:
        self.copy, self.work = copy, work
        self.sound: set[str] = set()
        self.unsound: set[str] = set()
        self.items: dict[str, Any] = {}
        self.functions: dict[CodeType, list[FunctionType]] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        """Instead of running the tests: find what is there, and do the work."""
        self.items = {item.nodeid: item for item in session.items}
        source = str(self.copy / "src")
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(source):
                self.functions.setdefault(each.__code__, []).append(each)
        warm_up()
        gc.collect()
        gc.freeze()
        self.work(self)
        return True

    def codes(self, mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
        """Which functions get which code; nothing if the change acts on import."""
        path = self.copy / mutant.file
        text = path.read_bytes()
        old, new = (
            compile(each, str(path), "exec", dont_inherit=True) for each in (text, mutant.apply(text))
        )
        pairs = [(f, new) for old, new in replacements(old, new) or [] for f in self.functions.get(old, [])]
        return [(f, code) for f, code in pairs if len(f.__code__.co_freevars) == len(code.co_freevars)]

    def ended(
        self, tests: list[str], codes: list[tuple[FunctionType, CodeType]], seconds: float
    ) -> tuple[str | None, str]:
        """How tests end with these codes, and the first that fails."""
        from _pytest.runner import runtestprotocol

        items = [self.items[test] for test in tests]

        def work(pipe: int) -> None:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            for function, code in codes:
                function.__code__ = code
            for item, following in zip(items, [*items[1:], None], strict=True):
                reports = runtestprotocol(item, log=False, nextitem=following)
                if any(report.failed for report in reports):
                    os.write(pipe, item.nodeid.encode())
                    raise SystemExit(1)

        return in_a_fork(work, seconds)

    def noticed(self, mutant: Mutant, tests: list[str], seconds: float) -> str | None:
        """How the tests notice a change, None if they do not. A test that fails without it is no witness."""
        codes = self.codes(mutant)
        while tests := [test for test in tests if test not in self.unsound]:
            answer, failed = self.ended(tests, codes, seconds)
            if answer is None or not failed or failed in self.sound:
                return answer
            if self.ended([failed], [], seconds)[0] is None:
                self.sound.add(failed)
                return answer
            self.unsound.add(failed)
        return "no sound test"


def noticed_on_import(copy: Path, mutant: Mutant, tests: list[str], seconds: float) -> str | None:
    """The same for a change that acts when its module is imported: a new interpreter's state, files of tests.

    That these many tests do not end in time says nothing: such a change counts as not noticed.
    """

    def work(pipe: int) -> None:
        import pytest

        out = os.open(copy / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        plain = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not slow and not cluster"]
        raise SystemExit(int(pytest.main([*plain, *tests])))

    place = copy / mutant.file
    original = place.read_bytes()
    try:
        place.write_bytes(mutant.apply(original))
        answer, _ = in_a_fork(work, seconds)
        place.write_bytes(original)
        if answer == "a test failed" and in_a_fork(work, seconds)[0] is not None:
            return "no sound test"
    finally:
        place.write_bytes(original)
    return None if answer == "never ended" else answer


# ---------------------------------------------------------------------------------------------------- the whole


@dataclass(frozen=True)
class Plan:
    """Changes with the tests that execute their lines, and limits."""

    work: list[tuple[Mutant, list[str]]]
    times: dict[str, float]
    known: set[str]
    budget: float
    until: float
    report: Path

    def tests(self, mutant: Mutant, names: list[str], collected: dict[str, Any]) -> list[str]:
        """Those that execute the line, and those of the same part that are newer than the coverage."""
        part = Path(mutant.file).parts[2]
        newer = [
            name
            for name in collected
            if name not in self.known and f"/{part}/" in name and not name.startswith(ELSEWHERE)
        ]
        return quickest_first(mutant, [*newer, *(name for name in names if name in collected)], self.times)

    def say(self, mutant: Mutant, answer: str | None, tried: int, known: int) -> None:
        """One more line of the report."""
        row = {"answer": answer, **mutant.row(), "tried": tried, "known": known}
        with self.report.open("a") as lines:
            lines.write(json.dumps(row) + "\n")


def judge(plan: Plan) -> None:
    """Try each of these changes on a copy of the repository; one line of JSON for each."""
    import numpy  # noqa: F401  # imported once, for all forks
    import pytest
    import torch  # noqa: F401
    from hypothesis import settings

    settings.register_profile("mutants", deadline=None, database=None, derandomize=True)
    settings.load_profile("mutants")
    with tempfile.TemporaryDirectory(prefix="orthocl-mutants-") as folder:
        copy = Path(folder) / "copy"
        left_out = shutil.ignore_patterns(".git", ".venv*", "site", ".*_cache", "__pycache__")
        shutil.copytree(REPOSITORY, copy, ignore=left_out)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(copy / "src"))

        def inside(collected: Collected) -> None:
            for mutant, names in plan.work:
                if time.time() > plan.until:
                    return
                tests = plan.tests(mutant, names, collected.items)
                if not names or not collected.codes(mutant):
                    continue
                tried = within(tests, plan.times, plan.budget)
                seconds = 20 + 5 * sum(seconds_of(test, plan.times) for test in tried)
                plan.say(mutant, collected.noticed(mutant, tried, seconds), len(tried), len(tests))

        def work(_: int) -> None:
            out = os.open(copy / "collection.log", os.O_WRONLY | os.O_CREAT)
            for number in (1, 2):
                os.dup2(out, number)
            options = ["--capture=sys", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not cluster"]
            raise SystemExit(int(pytest.main(options, plugins=[Collected(copy, inside)])))

        answer, _ = in_a_fork(work, 10**6)
        if answer not in (None, "did not run (5)"):
            print((copy / "collection.log").read_text()[-3000:], file=sys.stderr)
        done = {key_of(row) for row in rows_of(plan.report)}
        for mutant, _ in plan.work:
            if time.time() > plan.until:
                return
            if mutant.key not in done:
                tests = tests_of_module(copy, mutant)
                plan.say(mutant, noticed_on_import(copy, mutant, tests, 120.0), len(tests), len(tests))


def rows_of(report: Path) -> list[dict[str, Any]]:
    """What the report says so far."""
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def main() -> None:
    """Read the command line, share the work between processes, print what nobody noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", nargs="?", default="200", help="how many changes, or all")
    parser.add_argument("paths", nargs="*", default=PACKAGES)
    parser.add_argument(
        "--kinds", help="only these: BinOp,Compare,BoolOp,UnaryOp,Constant,IfExp,Expr,AugAssign"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests for one change, as measured")
    parser.add_argument("--minutes", type=float, default=10**6, help="then no more changes are tried")
    parser.add_argument(
        "--keep", action="store_true", help="go on with the report: what it holds is not tried"
    )
    parser.add_argument("--again", action="store_true", help="try what the report says was not noticed")
    parser.add_argument("--coverage", type=Path, default=REPOSITORY / ".coverage")
    parser.add_argument("--times", type=Path, default=REPOSITORY / ".test-times.xml")
    parser.add_argument("--report", type=Path, default=REPOSITORY / "mutants.jsonl")
    given = parser.parse_args()
    files = sorted(file for path in given.paths for file in Path(path).resolve().rglob("*.py"))
    every = [mutant for file in files for mutant in mutants(file)]
    if given.kinds:
        every = [mutant for mutant in every if mutant.kind in given.kinds.split(",")]
    count = len(every) if given.count == "all" else min(int(given.count), len(every))
    chosen = random.Random(given.seed).sample(every, count)
    if given.again:
        rows = rows_of(given.report)
        missed = {key_of(row) for row in rows if row["answer"] is None}
        chosen = [each for each in every if each.key in missed]
        kept = [row for row in rows if row["answer"] is not None]
        given.report.write_text("".join(json.dumps(row) + "\n" for row in kept))
    elif not given.keep:
        given.report.write_text("")
    done = {key_of(row) for row in rows_of(given.report)}
    tests = tests_of_lines(given.coverage, {mutant.file for mutant in every})
    work = [(each, tests.get(each.file, {}).get(each.line, [])) for each in chosen if each.key not in done]
    known = {name for lines in tests.values() for names in lines.values() for name in names}
    times, until = times_of_tests(given.times), time.time() + 60 * given.minutes
    report = given.report.resolve()
    children = []
    for worker in range(given.jobs):
        child = os.fork()
        if not child:
            try:
                judge(Plan(work[worker :: given.jobs], times, known, given.seconds, until, report))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    rows = rows_of(report)
    survivors = [row for row in rows if row["answer"] is None]
    for row in survivors:
        print(f"not noticed by {row['tried']} tests  {row['place']}: {row['old']}  ->  {row['new']}")
    unclear = sum(row["answer"] == "no sound test" for row in rows)
    print(
        f"{len(rows)} of {len(every)} possible changes tried: {len(rows) - len(survivors) - unclear} noticed, "
        f"{len(survivors)} not noticed, {unclear} without a test that passes here"
    )


if __name__ == "__main__":
    main()
