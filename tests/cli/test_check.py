"""`orthocl check`: the conformance suite on a user's file."""

from pathlib import Path

import pytest

from orthocl.cli.check import check, methods_in
from orthocl.errors import OrthoclError, SettingsError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["own_method.py", "own_projection.py"])
def test_the_examples_pass(capsys, name):
    check(EXAMPLES / name)
    assert "all checks passed" in capsys.readouterr().out


BROKEN = {
    "first-task-is-sgd": """
    def penalty(self, learner):
        return sum(p.sum() for p in learner.parameters.values())
""",
    "resumes-bit-identically": """
    def penalty(self, learner):
        self.unsaved = getattr(self, "unsaved", 0) + 1e-3
        return self.unsaved * next(iter(learner.parameters.values())).square().sum()
""",
    "detach-restores": """
    def begin_task(self, learner):
        learner.model[1].register_forward_hook(print)
""",
    "projection-laws": """
    projects = True
""",
    "tiny-memories": """
    def end_task(self, learner):
        1 / 0
""",
}


@pytest.mark.parametrize("failing", BROKEN)
def test_a_method_that_breaks_a_promise_is_found_out(tmp_path, capsys, monkeypatch, failing):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "broken.py"
    path.write_text(
        "import torch\nfrom dataclasses import dataclass\nfrom orthocl import Method\n\n\n@dataclass\n"
        f"class Broken(Method):\n    name = 'broken'\n    memory_per_task: int = 3\n{BROKEN[failing]}"
    )
    with pytest.raises(SystemExit) as stop:
        check(path)
    assert stop.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(failing in line and "failed" in line for line in lines), "\n".join(lines)


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(SettingsError, match="cannot read"):
        methods_in(str(tmp_path / "nowhere.py"))
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    with pytest.raises(SettingsError, match="no class derived"):
        methods_in(str(empty))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f(:\n")
    with pytest.raises(OrthoclError, match="cannot be imported: SyntaxError"):
        methods_in(str(wrong))


OWN = """
from dataclasses import dataclass
from orthocl import Method


@dataclass
class Own(Method):
    name = "own"

    def transform(self, learner, gradient):
        return {result}
"""


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("0.5 * gradient", "(own.py, line 11, in transform): it is given a list of tensors"),
        ("gradient[0]", "own.py, line 10: `transform` of own must return a list of tensors"),
        ("gradient[:1]", "got a list of 1"),
        ("[g.sum() for g in gradient]", "got other shapes"),
        ("None", "got a NoneType"),
    ],
)
def test_a_transform_of_the_wrong_type_is_one_error_with_its_place(
    tmp_path, capsys, monkeypatch, result, words
):
    monkeypatch.setenv("COLUMNS", "600")
    path = tmp_path / "own.py"
    path.write_text(OWN.format(result=result))
    with pytest.raises(SystemExit):
        check(path)
    out = capsys.readouterr().out
    assert out.count(words) == 1, out
    assert out.count("failed: as first-task-is-sgd") > 5


def test_laws_that_say_nothing_about_a_method_are_not_passed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / "own.py"
    path.write_text(
        OWN.format(result="[0.5 * g for g in gradient]").replace(
            '"own"', '"own"\n    first_task_is_sgd = False'
        )
    )
    check(path)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    for name in ("projection-laws", "nothing-leaks"):
        assert "not applicable: it does not project" in lines[name]
    assert "not applicable" in lines["first-task-is-sgd"]
    assert "not applicable" in lines["tiny-memories"]
    assert "passed" in lines["any-optimizer"]
