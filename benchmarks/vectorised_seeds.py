"""Do several seeds trained as one computation beat the same seeds trained one after another?

The MLP of the MNIST experiments (1024-100-100-10, batch 32) is small, so part of every step is Python. What counts is
the time per seed on one core: with N cores the laboratory runs N processes either way, so a batched form wins only if
one thread finishes S seeds sooner than S separate runs. Time is the processor's, not the clock's, so that other work on
the machine does not distort the ratio; best of interleaved repeats.

    python benchmarks/vectorised_seeds.py            # a table of ratios
    python benchmarks/vectorised_seeds.py --json     # the same, for a file

Plain training is measured with the product's own loops, `train` and `train_members`, tests included, and the weights
are compared to the bit. OGD through the tangent adapter with m remembered directions, in its cheapest form (the input
kernel of the first layer is looked up, not computed), is measured with loops written for this purpose. Time of separate
runs divided by time of the joint form, on two shared cores:

    step rule, hidden layers     1 seed    2     3     5     8 seeds
    plain training, 20             1.92   2.30  2.45  2.63  2.68    all weights and losses equal to the bit
    plain training, 100-100        1.56   1.70  1.76  1.82  1.84    (so are those below)
    plain training, 200-200        1.37   1.41  1.44  1.33  1.20
    plain training, 400-400        1.20   1.17  1.06  1.03  0.99
    OGD, 100 directions                   1.25        1.54
    OGD, 700 directions                   1.08        0.94
    OGD, 1400 directions                  0.93        1.04

So plain training takes quick steps, small networks together (up to five seeds, and never so many that a core is
idle). For OGD the gain is gone after the first tasks: seeds of other methods are separate processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from orthocl.methods import SGD
from orthocl.nets import MLP
from orthocl.streams import Stream, make
from orthocl.training import TrainSettings, attach, train
from orthocl.training.loop import Member, train_members

WIDTHS = (1024, 100, 100, 10)
BATCH = 32
SAMPLES = 4096
RATE = 1e-3
EVALUATED_PER_STEP = 16


@dataclass
class Problem:
    """Inputs shared by all seeds, an order of samples and start weights of each seed, and remembered tangents."""

    inputs: Tensor
    targets: Tensor
    test: Tensor
    order: list[Tensor]  # per seed: (steps, BATCH)
    weights: list[list[Tensor]]  # per seed: W1 (in, out), b1, W2, ...
    factors: list[list[tuple[Tensor, Tensor]]]  # per seed and layer: inputs (m, in) and derivatives (m, out)
    inverse: list[Tensor]  # per seed: (m, m)


def make_problem(seeds: int, steps: int, memory: int) -> Problem:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(SAMPLES, WIDTHS[0], generator=generator)
    targets = torch.randint(0, WIDTHS[-1], (SAMPLES,), generator=generator)
    test = torch.rand(steps * EVALUATED_PER_STEP, WIDTHS[0], generator=generator)
    order, weights, factors, inverse = [], [], [], []
    for _ in range(seeds):
        order.append(torch.randint(0, SAMPLES, (steps, BATCH), generator=generator))
        layers: list[Tensor] = []
        for fan_in, fan_out in itertools.pairwise(WIDTHS):
            bound = fan_in**-0.5
            layers += [
                (2 * torch.rand(fan_in, fan_out, generator=generator) - 1) * bound,
                (2 * torch.rand(fan_out, generator=generator) - 1) * bound,
            ]
        weights.append(layers)
        pieces = [
            (torch.rand(memory, i, generator=generator), torch.randn(memory, o, generator=generator) * 0.1)
            for i, o in itertools.pairwise(WIDTHS)
        ]
        factors.append(pieces)
        gram = sum((d @ d.T) * (a @ a.T + 1) for a, d in pieces) if memory else torch.zeros(0, 0)
        inverse.append(torch.linalg.inv(gram.double() + 1e-6 * torch.eye(memory)).float() if memory else gram)
    return Problem(inputs, targets, test, order, weights, factors, inverse)


def separate(problem: Problem) -> list[list[Tensor]]:
    """One seed after another: modules, autograd and torch.optim.SGD, as in the training loop."""
    return [_one_seed(problem, seed) for seed in range(len(problem.order))]


def _one_seed(problem: Problem, seed: int) -> list[Tensor]:
    layers = [nn.Linear(i, o) for i, o in itertools.pairwise(WIDTHS)]
    for number, layer in enumerate(layers):
        with torch.no_grad():
            layer.weight.copy_(problem.weights[seed][2 * number].T)
            layer.bias.copy_(problem.weights[seed][2 * number + 1])
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    factors, memory = problem.factors[seed], len(problem.inverse[seed])
    alpha = torch.zeros(memory, requires_grad=True)
    kernel = problem.inputs @ factors[0][0].T + 1 if memory else None
    for index in problem.order[seed]:
        optimizer.zero_grad()
        x, targets = problem.inputs[index], problem.targets[index]
        if kernel is None:
            outputs = model(x)
        else:
            alpha.grad = None
            looked_up = kernel[index]
            for number, layer in enumerate(layers):
                reach = looked_up if number == 0 else x @ factors[number][0].T + 1
                x = torch.addmm(layer(x), reach * alpha, factors[number][1])
                x = x.relu() if number < 2 else x
            outputs = x
        cross_entropy(outputs, targets).backward()
        optimizer.step()
        if memory:
            with torch.no_grad():
                alpha.add_(problem.inverse[seed] @ alpha.grad, alpha=RATE)
    with torch.no_grad():
        for chunk in problem.test.split(1000):
            model(chunk).argmax(-1)
    return [value for layer in layers for value in (layer.weight.detach().T, layer.bias.detach())]


def stacked(problem: Problem) -> list[list[Tensor]]:
    """All seeds at once by batched matrix products."""
    seeds = len(problem.order)
    parameters = [torch.stack(values).requires_grad_() for values in zip(*problem.weights, strict=True)]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    memory = problem.inverse[0].shape[0]
    alpha = torch.zeros(seeds, memory, 1, requires_grad=True)
    inputs_t = [torch.stack([f[number][0].T for f in problem.factors]) for number in range(3)]
    outputs_d = [torch.stack([f[number][1] for f in problem.factors]) for number in range(3)]
    kernels = [problem.inputs @ f[0][0].T + 1 for f in problem.factors] if memory else None
    order = torch.stack(problem.order, 1)
    for index in order:
        optimizer.zero_grad()
        x, targets = problem.inputs[index], problem.targets[index]
        if kernels is not None:
            alpha.grad = None
            looked_up = torch.stack([kernel[i] for kernel, i in zip(kernels, index, strict=True)])
        for number in range(3):
            z = torch.baddbmm(parameters[2 * number + 1].unsqueeze(1), x, parameters[2 * number])
            if kernels is not None:
                reach = looked_up if number == 0 else torch.bmm(x, inputs_t[number]) + 1
                z = torch.baddbmm(z, reach * alpha.transpose(1, 2), outputs_d[number])
            x = z.relu() if number < 2 else z
        # The sum over seeds of mean losses: its gradient is each seed's own.
        (cross_entropy(x.flatten(0, 1), targets.flatten(), reduction="sum") / BATCH).backward()
        optimizer.step()
        if memory:
            with torch.no_grad():
                for seed, inverse in enumerate(
                    problem.inverse
                ):  # batched matrix-vector products are 4-8 x slower
                    alpha[seed].add_(inverse @ alpha.grad[seed], alpha=RATE)
    with torch.no_grad():
        for chunk in problem.test.split(1000):
            x = chunk.expand(seeds, *chunk.shape)
            for number in range(3):
                x = torch.baddbmm(parameters[2 * number + 1].unsqueeze(1), x, parameters[2 * number])
                x = x.relu() if number < 2 else x
            x.argmax(-1)
    return [[p[seed].detach() for p in parameters] for seed in range(seeds)]


def plain(seeds: int, epochs: int, repeats: int, hidden: tuple[int, ...] = (100, 100)) -> dict[str, object]:
    """The product's own loops on embedded data."""
    stream = make("rotated-mnist-mini", tasks=3)
    settings = TrainSettings(epochs=epochs, batch_size=BATCH, learning_rate=RATE)

    def members() -> list[Member]:
        return [_member(stream, seed, hidden) for seed in range(seeds)]

    def alone(runs: list[Member]) -> None:
        for run in runs:
            train(run.learner, run.stream, settings, seed=run.seed, progress=run.progress, quick=False)

    best = {"alone": float("inf"), "together": float("inf")}
    for _ in range(repeats):
        made = {name: members() for name in best}
        for name, work in (("alone", alone), ("together", lambda runs: train_members(runs, settings))):
            start = time.process_time()
            work(made[name])
            best[name] = min(best[name], time.process_time() - start)
    equal = all(
        one.progress.losses == other.progress.losses
        and all(map(torch.equal, one.learner.model.parameters(), other.learner.model.parameters()))
        for one, other in zip(made["alone"], made["together"], strict=True)
    )
    return {
        "hidden": "-".join(map(str, hidden)),
        "seeds": seeds,
        "memory": 0,
        "speedup": best["alone"] / best["together"],
        "equal to the bit": equal,
    }


def _member(stream: Stream, seed: int, hidden: tuple[int, ...]) -> Member:
    torch.manual_seed(seed)
    model = MLP(stream.input_shape, hidden, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return Member(attach(SGD(), model, optimizer, seed=seed, batch_norm="keep"), stream, seed)


def measure(
    work: Callable[[Problem], list[list[Tensor]]], problem: Problem
) -> tuple[float, list[list[Tensor]]]:
    start = time.process_time()
    result = work(problem)
    return time.process_time() - start, result


def compare(seeds: int, steps: int, memory: int, repeats: int) -> dict[str, float]:
    """Processor time of the separate form divided by that of each batched form: best of interleaved repeats."""
    problem = make_problem(seeds, steps, memory)
    forms = {"separate": separate, "stacked": stacked}
    best = dict.fromkeys(forms, float("inf"))
    results = {}
    for _ in range(repeats):
        for name, work in forms.items():
            seconds, results[name] = measure(work, problem)
            best[name] = min(best[name], seconds)
    row: dict[str, float] = {"seeds": seeds, "memory": memory}
    row["separate_ms_per_step"] = 1e3 * best["separate"] / (seeds * steps)
    for name in list(forms)[1:]:
        row[f"{name}_speedup"] = best["separate"] / best[name]
        row[f"{name}_difference"] = max(
            float((a - b).norm() / a.norm())
            for one, other in zip(results["separate"], results[name], strict=True)
            for a, b in zip(one, other, strict=True)
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    epochs = max(1, arguments.steps // 150)
    rows = [
        plain(seeds, epochs, arguments.repeats, hidden)
        for hidden in ((20,), (100, 100), (200, 200), (400, 400))
        for seeds in (1, 2, 3, 5, 8)
    ]
    rows += [
        compare(seeds, arguments.steps, memory, arguments.repeats)
        for memory in (100, 700, 1400)
        for seeds in (2, 5)
    ]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        pairs = ((name, value if isinstance(value, str) else f"{value:.3g}") for name, value in row.items())
        print("  ".join(f"{name} {value}" for name, value in pairs), flush=True)


if __name__ == "__main__":
    main()
