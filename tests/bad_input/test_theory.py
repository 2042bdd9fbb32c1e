"""The theory. Every row: a call or a command, and words that the answer must contain."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.errors import OrthoclError
from orthocl.theory import solve_stream
from orthocl.theory.curriculum import Curriculum

X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6.0, dtype=torch.float64)


def linear(x, z):
    return x @ z.T


def constant(value):
    return lambda x, z: torch.full((len(x), len(z)), value, dtype=torch.float64)


CALLS = {
    "infinite kernel": (lambda: solve_stream(constant(math.inf), [(X, Y)]), "infinite or not numbers"),
    "NaN kernel": (lambda: solve_stream(constant(math.nan), [(X, Y)]), "infinite or not numbers"),
    "asymmetric kernel": (
        lambda: solve_stream(lambda x, z: x.sum(1)[:, None] + 0 * (x @ z.T), [(X, Y)]),
        "symmetric",
    ),
    "negative kernel": (lambda: solve_stream(lambda x, z: -(x @ z.T), [(X, Y)]), "positive semi-definite"),
    "kernel of a wrong shape": (lambda: solve_stream(lambda x, z: x, [(X, Y)]), "must return a matrix"),
    "kernel that returns nothing": (lambda: solve_stream(lambda x, z: None, [(X, Y)]), "matrix of numbers"),
    "kernel that returns a number": (
        lambda: solve_stream(lambda x, z: 3.0, [(X, Y)]),
        "must return a matrix",
    ),
    "inputs that overflow": (lambda: solve_stream(linear, [(X * 1e200, Y)]), "small enough to be squared"),
    "NaN inputs": (lambda: solve_stream(linear, [(X * math.nan, Y)]), "inputs must be finite"),
    "NaN targets": (lambda: solve_stream(linear, [(X, Y * math.nan)]), "targets must be finite"),
    "no tasks": (lambda: solve_stream(linear, []), "at least one task"),
    "a number of tasks": (lambda: solve_stream(linear, 5), "a list of tasks"),
    "tasks of one part": (lambda: solve_stream(linear, [(X,)]), "a list of tasks"),
    "too few targets": (lambda: solve_stream(linear, [(X, Y[:3])]), "expected targets for 6 samples"),
    "unknown rule": (lambda: solve_stream(linear, [(X, Y)], rule="zzz"), "unknown rule"),
    "negative ridge": (lambda: solve_stream(linear, [(X, Y)], ridge=-1.0), "ridge of zero or more"),
    "NaN ridge": (lambda: solve_stream(linear, [(X, Y)], ridge=math.nan), "ridge of zero or more"),
    "text as ridge": (lambda: solve_stream(linear, [(X, Y)], ridge="a"), "ridge of zero or more"),
    "negative memory": (lambda: solve_stream(linear, [(X, Y)], memory=-1), "memory of zero samples or more"),
    "fraction as memory": (lambda: solve_stream(linear, [(X, Y)], memory=1.5), "expected a memory"),
    "memory of other tasks": (
        lambda: solve_stream(linear, [(X, Y)], memory=[[0], [0]]),
        "for 1 tasks, got 2",
    ),
    "memory out of range": (lambda: solve_stream(linear, [(X, Y)], memory=[[6]]), "must lie in 0 .. 5"),
    "orders: ridge": (lambda: Curriculum(linear, [(X, Y)], ridge=-1.0), "ridge of zero or more"),
    "orders: NaN ridge": (lambda: Curriculum(linear, [(X, Y)], ridge=math.nan), "ridge of zero or more"),
    "orders: memory": (lambda: Curriculum(linear, [(X, Y)], memory=-1), "memory of zero samples or more"),
    "orders: rule": (lambda: Curriculum(linear, [(X, Y)], rule="zzz"), "unknown rule"),
}


@pytest.mark.parametrize(("make", "words"), CALLS.values(), ids=CALLS)
def test_calls(make, words):
    with pytest.raises(OrthoclError, match=words):
        make()


SMALL = ["--tasks", "2", "--samples", "10"]
OPTIONS: list[tuple[str, list[str], str]] = [
    *(
        (command, ["--ridge", value], "ridge of zero or more")
        for command in ("solve", "bound", "order", "bridge")
        for value in ("nan", "-1", "inf")
    ),
    *(
        (command, ["--bias-variance", value], "bias_variance >= 0")
        for command in ("solve", "bound", "order")
        for value in ("nan", "inf", "-1")
    ),
    *(
        (command, ["--memory", "-1"], "memory of zero samples or more")
        for command in ("solve", "bound", "order")
    ),
    *((command, ["--depth", "0"], "at least one hidden layer") for command in ("solve", "bound", "order")),
    *(
        (command, ["--figure", "x.xyz"], "unknown figure format 'xyz'")
        for command in ("solve", "bound", "order", "bridge")
    ),
    *(
        (command, ["--seed", "1.5"], "expected a whole number")
        for command in ("solve", "bound", "order", "bridge")
    ),
    *((command, ["--ridge", "a"], "--ridge") for command in ("solve", "bound", "order", "bridge")),
    *((command, ["--kernel", "zzz"], "--kernel") for command in ("solve", "bound", "order")),
    *((command, ["--rule", "zzz"], "--rule") for command in ("solve", "bound", "order")),
]


@pytest.mark.parametrize(
    ("command", "options", "words"), OPTIONS, ids=[f"{c}{' '.join(o)}" for c, o, _ in OPTIONS]
)
def test_commands(refused, command, options, words):
    refused(["theory", command, *SMALL, *options], [words])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["solve", "nostream"], "unknown stream 'nostream'"),
        (["solve", "--tasks", "0"], "tasks"),
        (["solve", "--samples", "0"], "at least one sample"),
        (["solve", "--samples", "-3"], "at least one sample"),
        (["zzz"], "zzz"),
        (["overlay", "--tasks", "0"], "at least one task"),
        (["forecast", "--tasks", "0"], "two tasks"),
    ],
)
def test_other_commands(refused, arguments, words):
    refused(["theory", *arguments], [words])
