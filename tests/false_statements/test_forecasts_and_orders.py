"""What is said about orders of tasks, and about what a closed form resolves, on data that would make it false."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from orthocl.cli.app import call
from orthocl.theory import Curriculum, solve_stream


def linear(x, z):
    return x @ z.T


def tasks(count=3, samples=4, width=20):
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(samples, width, generator=generator, dtype=torch.float64),
            torch.randn(samples, generator=generator, dtype=torch.float64),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("ridge", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_the_result_is_called_the_same_exactly_where_it_is(rule, ridge):
    data = tasks()
    probes = torch.randn(9, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ends = [
        solve_stream(linear, [data[k] for k in order], rule=rule, ridge=ridge).predict(probes)
        for order in itertools.permutations(range(3))
    ]
    apart = max(float((end - ends[0]).abs().max()) for end in ends)
    assert Curriculum(linear, data, rule=rule, ridge=ridge).same_result() == (apart < 1e-9)


def test_tasks_that_no_function_fits_at_once_are_not_called_the_same():
    point = torch.ones(1, 1, dtype=torch.float64)
    data = [(point, torch.ones(1)), (point, -torch.ones(1))]
    assert not Curriculum(linear, data).same_result()
    assert not Curriculum(linear, tasks(), memory=2).same_result()


@pytest.mark.parametrize(
    ("options", "same"), [([], True), (["--ridge", "1"], False), (["--rule", "sgd"], False)]
)
def test_the_command_says_what_it_compares(options, same, capsys):
    command = ["theory", "order", "permuted-mnist-mini", "--tasks", "3", "--samples", "10", *options]
    assert call([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["what_is_compared"]
    assert ("the final function is the same in every order" in said) == same
    assert ("need not mean a smaller error" in said) != same
    assert call(command) == 0
    printed = capsys.readouterr().out
    assert "best" not in printed
    assert said in " ".join(printed.split())
