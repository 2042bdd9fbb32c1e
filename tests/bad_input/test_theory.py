"""The theory. Every row: a call or a command, and words that the answer must contain."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
import torch

from orthocl.checking import argument_types
from orthocl.errors import OrthoclError
from orthocl.theory import (
    BoundSettings,
    Curriculum,
    Descent,
    EmpiricalNTK,
    GramKernel,
    InfiniteWidthNTK,
    Loss,
    Points,
    certify,
    complexity_proxy,
    contraction,
    curriculum_claims,
    early_stopping_ridge,
    forgetting_drift,
    generalisation_bound,
    gradient_alignment,
    ground_truth_rows,
    outputs_during,
    principal_cosines,
    printed_checks,
    rademacher_estimate,
    radius_bound,
    ramp,
    solve_in_feature_space,
    solve_stream,
)

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
    "ridge of 10^30": (lambda: solve_stream(linear, [(X, Y)], ridge=10**301), "ridge of zero or more"),
    **{
        f"tolerance {value}": (
            lambda value=value: solve_stream(linear, [(X, Y)], tolerance=value),
            "tolerance must be",
        )
        for value in (math.nan, math.inf, 1.0, 2.0, -1.0, "a", None)
    },
    **{
        f"orders: tolerance {value}": (
            lambda value=value: Curriculum(linear, [(X, Y)], tolerance=value),
            "tolerance must be",
        )
        for value in (math.nan, 1.0, -1.0)
    },
    "tolerance in feature space": (
        lambda: solve_in_feature_space(
            EmpiricalNTK(torch.nn.Linear(3, 1)), [(X, Y[:, None])], tolerance=math.nan
        ),
        "tolerance must be",
    ),
    "NaN as initial": (lambda: solve_stream(linear, [(X, Y)], initial=math.nan), "initial must be a finite"),
    "text as initial": (lambda: solve_stream(linear, [(X, Y)], initial="a"), "initial must be"),
    "initial function of NaN": (
        lambda: solve_stream(linear, [(X, Y)], initial=lambda p: math.nan * torch.zeros(len(p))),
        "initial function must give finite",
    ),
    "half a row": (lambda: solve_stream(linear, [(X, Y)], memory=[[0.5]]), "whole numbers, got 0.5"),
    "labels with fractions": (
        lambda: solve_stream(linear, [(X, torch.eye(6)[:, :2])], labels=[1.7 * torch.ones(6)]),
        "whole numbers, got 1.7",
    ),
    "complex kernel": (lambda: solve_stream(lambda x, z: (1 + 1j) * (x @ z.T), [(X, Y)]), "real numbers"),
    "complex kernel matrix": (lambda: GramKernel(1j * torch.eye(3)), "real numbers"),
    "complex inputs": (lambda: solve_stream(linear, [(1j * X, Y)]), "real numbers"),
    "complex targets": (lambda: solve_stream(linear, [(X, 1j * Y)]), "real numbers"),
    "tasks of other widths": (lambda: solve_stream(linear, [(X, Y), (X[:, :2], Y)]), "have one shape"),
    "prediction of another width": (
        lambda: solve_stream(linear, [(X, Y)]).predict(X[:, :2]),
        "have one shape",
    ),
    **{
        f"loss with bound {value}": (
            lambda value=value: Loss("mine", lambda u, y: u, bound=value, lipschitz=1.0),
            "bound of the loss 'mine'",
        )
        for value in (math.nan, math.inf, 0.0, -1.0, "a")
    },
    "loss without Lipschitz constant": (
        lambda: Loss("mine", lambda u, y: u, bound=1.0, lipschitz=math.nan),
        "lipschitz of the loss",
    ),
    "tiny unit radius": (lambda: BoundSettings(unit_radius=1e-320), "unit_radius must be at least"),
    "number as prior": (lambda: BoundSettings(prior=0), "unknown prior 0"),
    "no rule": (lambda: solve_stream(linear, [(X, Y)], rule=None), "rule must be"),
    "orders: ridge": (lambda: Curriculum(linear, [(X, Y)], ridge=-1.0), "ridge of zero or more"),
    "orders: NaN ridge": (lambda: Curriculum(linear, [(X, Y)], ridge=math.nan), "ridge of zero or more"),
    "orders: memory": (lambda: Curriculum(linear, [(X, Y)], memory=-1), "memory of zero samples or more"),
    "orders: rule": (lambda: Curriculum(linear, [(X, Y)], rule="zzz"), "unknown rule"),
}


@pytest.mark.parametrize(("make", "words"), CALLS.values(), ids=CALLS)
def test_calls(make, words):
    with pytest.raises(OrthoclError, match=words):
        make()


SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
TASKS = [(X, SIGNS), (X.flip(1) + 0.5, SIGNS)]
SOLUTION = solve_stream(linear, TASKS, ridge=0.3)
ORDERS = Curriculum(linear, TASKS)
GOOD = {
    "solve_stream": (
        solve_stream,
        {"kernel": linear, "tasks": TASKS, "memory": 2, "labels": None, "initial": None},
    ),
    "numbers of solve_stream": (
        solve_stream,
        {
            "kernel": linear,
            "tasks": TASKS,
            "rule": "ogd",
            "ridge": 0.1,
            "tolerance": 1e-12,
            "memory_limit": None,
        },
    ),
    "Curriculum": (
        Curriculum,
        {"kernel": linear, "tasks": TASKS, "rule": "ogd", "ridge": 0.1, "memory": 2, "initial": None},
    ),
    "best_order": (ORDERS.best_order, {"search": "auto", "beam_width": 8}),
    "complexity": (ORDERS.complexity, {"order": [1, 2]}),
    "certify": (certify, {"solution": SOLUTION, "task": 1, "after": 2, "delta": 0.05, "held_out": None}),
    "settings of certify": (certify, {"solution": SOLUTION, "task": 1, "settings": None}),
    "generalisation_bound": (
        generalisation_bound,
        {"solution": SOLUTION, "task": 1, "after": 2, "delta": 0.05, "form": "sound", "loss": "ramp"},
    ),
    "hold-out": (
        generalisation_bound,
        {"solution": SOLUTION, "task": 1, "form": "hold-out", "held_out": (X + 9, SIGNS)},
    ),
    "BoundSettings": (
        BoundSettings,
        {
            "unit_radius": 1.0,
            "empirical": "measured",
            "radius": "exact",
            "kernel_bound": None,
            "independent": False,
        },
    ),
    "ramp": (ramp, {"margin": 0.5, "outputs": 1}),
    "Descent": (Descent, {"learning_rate": 0.1, "steps": 3, "loss": "squared"}),
    "early_stopping_ridge": (early_stopping_ridge, {"samples": 3, "learning_rate": 0.1, "steps": 2}),
    "complexity_proxy": (complexity_proxy, {"solution": SOLUTION, "after": 2}),
    "rademacher_estimate": (rademacher_estimate, {"solution": SOLUTION, "task": 1, "draws": 10, "seed": 0}),
    "radius_bound": (radius_bound, {"solution": SOLUTION, "after": 1}),
    "contraction": (contraction, {"solution": SOLUTION, "task": 1, "learning_rate": 0.1}),
    "outputs_during": (outputs_during, {"solution": SOLUTION, "task": 1, "steps": 3, "learning_rate": 0.1}),
    "forgetting_drift": (forgetting_drift, {"solution": SOLUTION, "after": 2}),
    "gradient_alignment": (gradient_alignment, {"solution": SOLUTION, "task": 2}),
    "printed_checks": (printed_checks, {"solution": SOLUTION, "task": 1, "after": 2}),
    "predict": (SOLUTION.predict, {"x": X, "after": 1}),
    "dissimilarity": (SOLUTION.dissimilarity, {"task": 1}),
    "InfiniteWidthNTK": (
        InfiniteWidthNTK,
        {"depth": 2, "weight_variance": 2.0, "bias_variance": 0.1, "widths": None},
    ),
    "principal_cosines": (
        principal_cosines,
        {"own": torch.eye(2), "cross": torch.eye(2), "other": torch.eye(2), "energy": 1.0},
    ),
    "curriculum_claims": (curriculum_claims, {"kernel": linear, "tasks": TASKS, "rule": "sgd", "ridge": 0.0}),
    "labelled": (Points.labelled, {"inputs": X, "logits": torch.zeros(6)}),
    "every_logit": (Points.every_logit, {"inputs": X, "outputs": 2}),
    "ground_truth_rows": (ground_truth_rows, {"labels": [0, 1], "outputs": 2}),
    "GramKernel": (GramKernel, {"matrix": torch.eye(3)}),
}
STRANGE = [
    None, "a", 5, 1.5, -1, math.nan, math.inf, [], {}, object(), b"x", 1 + 2j, True, [1, 2], 10**18, 1e300,
    torch.zeros(2, 7), np.array(["a"]), np.int64(1), np.float64(0.5),
]  # fmt: skip


@pytest.mark.parametrize(("function", "good"), GOOD.values(), ids=GOOD)
def test_any_value_of_any_argument_works_or_is_refused_in_words(function, good):
    """No raw error of Python or torch: every argument in turn, 20 strange values each."""
    function(**good)
    for name in good:
        for strange in STRANGE:
            with suppress(OrthoclError):
                function(**{**good, name: strange})


def test_the_types_of_every_checked_function_can_be_read():
    """Types that cannot be resolved would leave a function unchecked."""
    for function, good in GOOD.values():
        if not isinstance(function, type):
            assert {*good} <= {*argument_types(function)}


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


def test_the_overlay_has_no_other_network_than_its_own(refused):
    """It compares MLPs of several widths with their limit: another network would be ignored."""
    refused(["theory", "overlay", *SMALL, "--net", "cnn"], ["--net"])
