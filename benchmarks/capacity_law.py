"""Does the capacity law of OGD say which of OGD and SGD is better on an old task, for real networks?

    python benchmarks/capacity_law.py --seeds 3

For pairs of tasks made of the embedded digits (rotations, permutations of some pixels, exchanged labels) an MLP learns
the first task, then the second with SGD and, from the same weights, with OGD that remembers all logits of some of its
samples. Measured: the squared error on test samples of the first task. Predicted, before the second task: OGD is
better iff D / |w_1|^2 < (p - 2n - 1) / p, with measured numbers in place of the law's: p is the participation ratio
(tr K)^2 / tr K^2 of the tangent kernel of test samples of both tasks at the end of the first task; n is p times the
share of the trace of K that lies in the span of the memory. D / |w_1|^2 is measured in two ways: "outputs", the squared
error on the first task of a network that learnt only the second, as a share of that of the network at its start; and
"weights", the squared length of the (slightly ridged) minimum-norm step that fits the second task from the end of the
first, as a share of the squared distance travelled for the first.
"""

from __future__ import annotations

import argparse
import copy
import json

import torch
from torch import Tensor, nn

from orthocl.nets import MLP
from orthocl.streams import make
from orthocl.tangents import collect
from orthocl.theory.ridge import solve_ridge

Task = tuple[Tensor, ...]
SAMPLES, TEST, STEPS, RATE = 60, 200, 200, 0.05


def pairs(seed: int) -> list[tuple[str, Task, Task]]:
    """Pairs of tasks, each (train inputs, one-hot train targets, test inputs, one-hot test targets)."""
    found = []
    generator = torch.Generator().manual_seed(seed)
    for angle in (5.0, 15.0, 30.0, 60.0, 90.0):
        stream = make("rotated-mnist-mini", tasks=2, seed=seed, options={"angles": [0.0, angle]})
        first, second = (_task(stream.task(number), number, generator) for number in (1, 2))
        found.append((f"rotated by {angle:g}", first, second))
    base = make("rotated-mnist-mini", tasks=1, seed=seed).task(1)
    for share in (0.1, 0.3, 0.6, 1.0):
        first, second = _task(base, 1, generator), _task(base, 2, generator)
        width = first[0].shape[1]
        chosen = torch.randperm(width, generator=generator)[: int(share * width)]
        order = torch.arange(width)
        order[chosen] = chosen[torch.randperm(len(chosen), generator=generator)]
        found.append(
            (
                f"{share:.0%} of pixels permuted",
                first,
                tuple(part[:, order] if place % 2 == 0 else part for place, part in enumerate(second)),
            )
        )
    for swapped in (2, 6, 10):
        first, second = _task(base, 1, generator), _task(base, 2, generator)
        order = torch.arange(10)
        order[:swapped] = order[:swapped].roll(1)
        found.append(
            (
                f"{swapped} labels exchanged",
                first,
                tuple(part[:, order] if place % 2 else part for place, part in enumerate(second)),
            )
        )
    return found


def _task(task, number: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    rows = torch.arange((number - 1) * SAMPLES, number * SAMPLES)
    inputs, labels = task.train.samples(rows)
    test, answers = task.test.samples(torch.arange(TEST))
    hot = lambda y: nn.functional.one_hot(y, 10).double()  # noqa: E731
    return small(inputs), hot(labels), small(test), hot(answers)


def small(images: Tensor) -> Tensor:
    """Images at half their resolution, as vectors."""
    return nn.functional.avg_pool2d(images.reshape(len(images), 1, 32, 32).double(), 2).flatten(1)


def descend(model: nn.Module, task: tuple[Tensor, ...], memory: Tensor | None) -> None:
    """Full-batch descent on half the squared error, off the span of the memory."""
    basis = None if memory is None else torch.linalg.qr(memory.T)[0]
    parameters = list(model.parameters())
    for _ in range(STEPS):
        loss = (model(task[0]) - task[1]).square().sum(1).mean() / 2
        step = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        if basis is not None:
            step = step - basis @ (basis.T @ step)
        place = 0
        with torch.no_grad():
            for parameter in parameters:
                size = parameter.numel()
                parameter -= RATE * step[place : place + size].reshape(parameter.shape)
                place += size


def tangents(model: nn.Module, inputs: Tensor) -> Tensor:
    labels = torch.zeros(len(inputs), dtype=torch.long)
    parameters = dict(model.named_parameters())
    return collect(model, inputs, labels, parameters=parameters, variant="all").dense().double()


def threshold_of(model: nn.Module, first: Task, second: Task, memory: Tensor) -> float:
    """The law's (p - 2n - 1) / p with measured p and n."""
    probe = tangents(model, torch.cat([first[2][:25], second[2][:25]]))
    gram = probe @ probe.T
    rank = float(gram.trace() ** 2 / gram.square().sum())
    basis = torch.linalg.qr(memory.T)[0]
    spanned = rank * float((probe @ basis).square().sum() / gram.trace())
    return (rank - 2 * spanned - 1) / rank


def weight_distance(model: nn.Module, second: Task, start: Tensor) -> float:
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]) - start
    rows = tangents(model, second[0])
    with torch.no_grad():
        residual = (second[1] - model(second[0])).reshape(-1, 1)
    own = rows @ rows.T
    step = (rows.T @ solve_ridge(own, residual, 1e-3 * float(own.diagonal().mean()), 1e-12).in_range)[:, 0]
    return float(step.square().sum() / weights.square().sum())


def loss_on(model: nn.Module, task: Task) -> float:
    with torch.no_grad():
        return float((model(task[2]) - task[3]).square().sum(1).mean())


def study(seed: int, name: str, first: Task, second: Task) -> list[dict[str, object]]:
    torch.manual_seed(seed)
    model = MLP((first[0].shape[1],), hidden=(30,), outputs=10).double()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    other = copy.deepcopy(model)
    untrained = loss_on(model, first)
    descend(other, second, None)
    apart = {"outputs": loss_on(other, first) / untrained}
    descend(model, first, None)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    apart["weights"] = weight_distance(model, second, start)
    found: list[dict[str, object]] = []
    descend(model, second, None)
    plain = loss_on(model, first)
    for remembered in (SAMPLES // 6, SAMPLES // 2):
        model.load_state_dict(state)
        memory = tangents(model, first[0][:remembered])
        threshold = threshold_of(model, first, second, memory)
        descend(model, second, memory)
        row = {"pair": name, "seed": seed, "memory": remembered, "threshold": threshold, **apart}
        found.append({**row, "sgd": plain, "ogd": loss_on(model, first)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(options.seeds):
        for name, first, second in pairs(seed):
            for row in study(seed, name, first, second):
                rows.append(row)
                print(json.dumps(row), flush=True)
    for way in ("outputs", "weights"):
        right = sum((row[way] < row["threshold"]) == (row["ogd"] < row["sgd"]) for row in rows)
        print(f"{way}: {right} of {len(rows)} signs right ({right / len(rows):.0%})")
    print(f"OGD was better in {sum(row['ogd'] < row['sgd'] for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
