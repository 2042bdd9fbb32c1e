"""All bounds of a task hold together: each at its share of delta."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import BoundSettings, generalisation_bound, solve_stream
from orthocl.theory.certificate import Certificate, certify
from orthocl.theory.generalisation import Bound


def linear(x, z):
    return x @ z.T


def solution(columns=None):
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for _ in range(2):
        x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
        y = (
            x[:, 0].sign()
            if columns is None
            else torch.eye(columns, dtype=torch.float64)[torch.arange(12) % columns]
        )
        tasks.append((x, y))
    return solve_stream(linear, tasks, ridge=0.3)


def test_each_form_has_its_share_of_delta():
    solved = solution()
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    held = (x, x[:, 0].sign())
    settings = BoundSettings(prior="other-samples")
    found = certify(solved, task=2, delta=0.08, held_out=held)
    assert [bound.form for bound in found.bounds] == ["sound", "one-ball", "pac-bayes", "hold-out"]
    assert "with probability 92 %" in found.sentence()
    for bound in found.bounds:
        alone = generalisation_bound(
            solved,
            task=2,
            form=bound.form,
            delta=0.02,
            loss="ramp",
            settings=settings,
            held_out=held if bound.form == "hold-out" else None,
        )
        assert bound.value == pytest.approx(alone.value, rel=1e-12)
        twice = (
            2 if bound.form == "pac-bayes" else 1
        )  # a draw is wrong at least half the time where f is wrong
        assert bound.deterministic == pytest.approx(twice * sum(bound.terms.values()))


def test_forms_that_apply():
    assert [bound.form for bound in certify(solution(), task=1).bounds] == ["sound", "one-ball", "pac-bayes"]
    assert [bound.form for bound in certify(solution(columns=3), task=1).bounds] == ["sound", "one-ball"]
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same = solve_stream(linear, [(x, x[:, 0].sign()), (x, x[:, 1].sign())], ridge=0.3)
    for task in (1, 2):  # a prior of all other samples knows the later task's too
        assert [bound.form for bound in certify(same, task=task).bounds] == ["sound", "pac-bayes"]


def test_what_a_draw_says_of_f_itself_is_said_too():
    """Only the PAC-Bayes form is about draws: 0.2 for a draw is 0.4 for f, or the 0.3 of another form."""

    def say(*bounds: tuple[str, float]) -> str:
        made = tuple(Bound(form, 1, 1, {"all": value}, "the error") for form, value in bounds)
        return Certificate(1, 1, 0.05, made).sentence()

    assert say(("sound", 0.9), ("pac-bayes", 0.2)).endswith(
        "the 0-1 error of f after task 1 is at most 0.4 (pac-bayes; a draw around f: at most 0.2)"
    )
    assert say(("sound", 0.3), ("pac-bayes", 0.2)).endswith(
        "at most 0.3 (sound; a draw around f: at most 0.2)"
    )
    assert say(("sound", 1.3), ("pac-bayes", 0.6)).endswith(
        "0.6 (pac-bayes), which certifies nothing about f itself"
    )
    assert say(("sound", 0.15), ("pac-bayes", 0.2)).endswith("after task 1 is at most 0.15 (sound)")
    assert say(("sound", 1.5), ("pac-bayes", 1.2)).endswith("nothing is certified")
