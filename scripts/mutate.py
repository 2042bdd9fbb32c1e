"""Does a test notice if a line is wrong? A random sample of changes of the source, against the tests that run them.

    make coverage                                    # writes .coverage: which test executes which line
    python scripts/mutate.py 200                     # the sample; `make mutants`
    python scripts/mutate.py 40 --seed 5 src/orthocl/metrics

A changed program that fails a test, hangs or does not start counts as noticed. Every other one is printed with its
place: it asks for a test, or for a reason why it makes no difference. The tests run in forks of one process that has
imported torch, on copies of the repository: nothing here is changed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGES = [f"src/orthocl/{name}" for name in ("tangents", "methods", "theory", "metrics")]
SWAPS: dict[type[ast.AST], ast.AST] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(), ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(), ast.In: ast.NotIn(), ast.NotIn: ast.In(),
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(), ast.FloorDiv: ast.Div(),
    ast.Pow: ast.Mult(), ast.And: ast.Or(), ast.Or: ast.And(),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: a piece of a file's text, and what stands there instead."""

    file: str
    line: int
    start: int
    stop: int
    old: str
    new: str

    def apply(self, text: bytes) -> bytes:
        """The text with the change."""
        return text[: self.start] + self.new.encode() + text[self.stop :]


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
    """Nodes that are executed: no annotations, no texts of errors, no declarations of types."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
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
        if isinstance(node, ast.expr):
            words = f"({words})"
        place = file.relative_to(REPOSITORY).as_posix()
        found.append(Mutant(place, node.lineno, start, stop, text[start:stop].decode(), words))
    return found


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
                line: sorted({name.split("|")[0] for name in names if "::" in name})
                for line, names in lines.items()
            }
    return found


def nearest_first(mutant: Mutant, tests: list[str], chance: random.Random) -> list[str]:
    """The tests of the same part first, the others in any order."""
    part, name = Path(mutant.file).parent.name, Path(mutant.file).stem
    chance.shuffle(tests)
    return sorted(tests, key=lambda test: (f"test_{name}.py" not in test, f"/{part}/" not in test))


def ended(copy: Path, tests: list[str], seconds: float) -> str | None:
    """How these tests end on a copy as it is: in words, None if all pass."""
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        sys.path.insert(0, str(copy / "src"))
        out = os.open(copy / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        import pytest

        code = 4
        try:
            code = int(pytest.main(["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *tests]))
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: None, 1: "a test failed"}.get(code, f"did not run ({code})")
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "never ended"


def noticed(copy: Path, mutant: Mutant, tests: list[str], seconds: float, sound: set[str]) -> str | None:
    """How the tests notice a change, None if they do not. A test that fails without it is no witness.

    Args:
        copy: of the repository.
        mutant: the change.
        tests: that execute the changed line.
        seconds: time for them.
        sound: tests known to pass without a change; more are added.
    """
    place = copy / mutant.file
    original, tests = place.read_bytes(), list(tests)
    try:
        while tests:
            place.write_bytes(mutant.apply(original))
            answer = ended(copy, tests, seconds)
            failed = re.findall(
                r"^FAILED (\S+)", (copy / "tests.log").read_text(errors="replace"), re.MULTILINE
            )
            if answer is None or not failed or failed[0] in sound:
                return answer
            place.write_bytes(original)
            if ended(copy, failed[:1], seconds) is None:
                sound.add(failed[0])
                return answer
            tests = [test for test in tests if test.split("[")[0] != failed[0].split("[")[0]]
    finally:
        place.write_bytes(original)
    return None


def judge(share: list[tuple[Mutant, list[str]]], seconds: float, report: Path) -> None:
    """Try each of these changes on a copy of the repository; one line of JSON for each."""
    import numpy  # noqa: F401  # imported once, for all forks
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="orthocl-mutants-") as folder:
        copy = Path(folder) / "copy"
        left_out = shutil.ignore_patterns(".git", ".venv*", "results*", "site", ".*_cache")
        shutil.copytree(REPOSITORY, copy, ignore=left_out)
        sound: set[str] = set()
        for mutant, tests in share:
            answer = noticed(copy, mutant, tests[:12], seconds, sound)
            if answer is None:
                answer = noticed(copy, mutant, tests[12:150], seconds, sound)
            row = {
                "answer": answer,
                "place": f"{mutant.file}:{mutant.line}",
                "old": mutant.old,
                "new": mutant.new,
            }
            with report.open("a") as lines:
                lines.write(json.dumps(row | {"tests": len(tests)}) + "\n")


def main() -> None:
    """Read the command line, share the work between processes, print what nobody noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("paths", nargs="*", default=PACKAGES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240.0, help="time for the tests of one change")
    parser.add_argument("--coverage", type=Path, default=REPOSITORY / ".coverage")
    parser.add_argument("--report", type=Path, default=REPOSITORY / "mutants.jsonl")
    given = parser.parse_args()
    files = sorted(file for path in given.paths for file in Path(path).resolve().rglob("*.py"))
    every = [mutant for file in files for mutant in mutants(file)]
    tests = tests_of_lines(given.coverage, {mutant.file for mutant in every})
    chance = random.Random(given.seed)
    chosen = chance.sample(every, min(given.count, len(every)))
    work = [
        (each, nearest_first(each, tests.get(each.file, {}).get(each.line, []), chance)) for each in chosen
    ]
    given.report.write_text("")
    untested = [each for each, names in work if not names]
    work = [(each, names) for each, names in work if names]
    children = []
    for worker in range(given.jobs):
        child = os.fork()
        if not child:
            judge(work[worker :: given.jobs], given.seconds, given.report)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    rows = [json.loads(line) for line in given.report.read_text().splitlines()]
    survivors = [row for row in rows if row["answer"] is None]
    for row in survivors:
        print(f"not noticed by {row['tests']} tests  {row['place']}: {row['old']}  ->  {row['new']}")
    for each in untested:
        print(f"no test executes it   {each.file}:{each.line}: {each.old}  ->  {each.new}")
    print(
        f"{len(chosen)} of {len(every)} possible changes: {len(rows) - len(survivors)} noticed, {len(survivors)} not "
        f"noticed, {len(untested)} in lines that no test executes in its own process"
    )


if __name__ == "__main__":
    main()
