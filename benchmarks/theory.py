"""Speed and memory of the theory, as ratios measured in one run on one thread.

    python benchmarks/theory.py            all targets: about 6 minutes, up to 5 GB
    python benchmarks/theory.py --quick    a smaller run of the same

- gram: the tangent kernel of 2,000 samples of the MNIST MLP 1024-100-100-10 (ground-truth logits) against `vmap(grad)`
  then J J^T, both from the same float32 network. Ours is the float64 matrix, from float64 tangents ("float64") and
  from float32 ones ("float32").
- recursion: 15 tasks of 1,000 samples on a given kernel matrix against the bare `torch.linalg.cholesky` of the same
  sizes: one of K_t + lam I per task, and for OGD one of the memory (14,000).
- order: the exact best order of 12 tasks, by the programme over subsets.

Times are CPU seconds of the process, so that other work on the machine counts little; memory is the peak above the
start, each in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.func import functional_call, grad, vmap

from orthocl.nets import MLP
from orthocl.theory import Curriculum, EmpiricalNTK, GramKernel, InfiniteWidthNTK, Points, solve_stream

Result = dict[str, float]


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _child(work: Callable[[], Result], pipe) -> None:
    torch.set_num_threads(1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, start = _status("VmRSS"), time.process_time()
    found = work()
    seconds = time.process_time() - start
    pipe.send({"seconds": seconds, "peak": float(_status("VmHWM") - before), **(found or {})})


def measured(work: Callable[[], Result | None]) -> Result:
    """CPU seconds and peak bytes of a function in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, sender))
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        raise SystemExit(f"{work.__name__} died: not enough memory?") from None
    process.join()
    return found


def mnist_like(samples: int) -> tuple[MLP, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(samples, 1024) * (torch.rand(samples, 1024) < 0.3)
    return MLP((1024,), outputs=10).eval(), x, torch.randint(0, 10, (samples,))


def gram_benchmark(samples: int) -> list[tuple[str, Result]]:
    model, x, labels = mnist_like(samples)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def chosen(weights, one, label):
        return functional_call(model, weights, (one[None],))[0].gather(0, label[None])[0]

    def plain() -> None:
        rows = vmap(grad(chosen), (None, 0, 0))(weights, x, labels)
        jacobian = torch.cat([part.flatten(1) for part in rows.values()], 1)
        del rows
        jacobian @ jacobian.T

    def factored(dtype: torch.dtype) -> None:
        EmpiricalNTK(model, "gtl", dtype=dtype).gram(Points.labelled(x, labels))

    reference = EmpiricalNTK(model, "gtl").gram(Points.labelled(x[:50], labels[:50]))
    rows = vmap(grad(chosen), (None, 0, 0))(weights, x[:50], labels[:50])
    jacobian = torch.cat([part.flatten(1) for part in rows.values()], 1).double()
    error = float((reference - jacobian @ jacobian.T).norm() / reference.norm())
    Console().print(f"gram: relative difference to explicit float32 gradients on 50 samples {error:.1e}")
    return [
        ("vmap(grad), J J^T", measured(plain)),
        ("factored, float64", measured(lambda: factored(torch.float64))),
        ("factored, float32", measured(lambda: factored(torch.float32))),
    ]


def recursion_benchmark(tasks: int, samples: int) -> list[tuple[str, Result]]:
    total = tasks * samples
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(total, 400, generator=generator, dtype=torch.float64)
    gram = features @ features.T / 400
    gram.diagonal().add_(0.5)
    kernel = GramKernel(gram)
    targets = torch.randn(total, generator=generator, dtype=torch.float64).sign()
    data = [
        (torch.arange(t * samples, (t + 1) * samples), targets[t * samples : (t + 1) * samples])
        for t in range(tasks)
    ]

    def bare(memory: bool) -> None:
        for rows, _ in data:
            own = slice(int(rows[0]), int(rows[-1]) + 1)
            block = gram[own, own].clone()
            block.diagonal().add_(0.1)
            torch.linalg.cholesky(block)
        if memory:
            torch.linalg.cholesky(gram[: total - samples, : total - samples])

    def solve(rule: str) -> None:
        solve_stream(kernel, data, rule=rule, ridge=0.1)

    return [
        ("bare factorisations, SGD", measured(lambda: bare(False))),
        ("solve_stream, SGD", measured(lambda: solve("sgd"))),
        ("bare factorisations, OGD", measured(lambda: bare(True))),
        ("solve_stream, OGD", measured(lambda: solve("ogd"))),
    ]


def order_benchmark(tasks: int, samples: int) -> list[tuple[str, Result]]:
    generator = torch.Generator().manual_seed(0)
    data = [
        (
            torch.randn(samples, 20, generator=generator, dtype=torch.float64),
            torch.randn(samples, generator=generator, dtype=torch.float64).sign(),
        )
        for _ in range(tasks)
    ]

    def search() -> Result:
        curriculum = Curriculum(InfiniteWidthNTK(2, bias_variance=0.1), data, rule="ogd")
        best = curriculum.best_order("subsets")
        greedy = curriculum.greedy_order()
        return {"best": best.complexity, "greedy": greedy.complexity}

    return [(f"{tasks} tasks of {samples} samples", measured(search))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["gram", "recursion", "order"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=100)
    missed = 0
    if options.only in (None, "gram"):
        rows = gram_benchmark(500 if options.quick else 2000)
        base = rows[0][1]
        table = Table("kernel matrix", "seconds", "MB", "times faster", "times less memory")
        for name, found in rows:
            faster, smaller = base["seconds"] / found["seconds"], base["peak"] / max(found["peak"], 1)
            table.add_row(
                name,
                f"{found['seconds']:.2f}",
                f"{found['peak'] / 1e6:.0f}",
                f"{faster:.1f}",
                f"{smaller:.1f}",
            )
        missed += max(base["seconds"] / found["seconds"] for _, found in rows[1:]) < 20
        missed += max(base["peak"] / found["peak"] for _, found in rows[1:]) < 20
        console.print(table, "target: 20 times faster, 20 times less memory")
    if options.only in (None, "recursion"):
        rows = recursion_benchmark(6 if options.quick else 15, 300 if options.quick else 1000)
        table = Table("recursion", "seconds", "MB", "times the bare factorisations")
        for (bare, base), (name, found) in zip(rows[::2], rows[1::2], strict=True):
            table.add_row(bare, f"{base['seconds']:.2f}", f"{base['peak'] / 1e6:.0f}", "1")
            ratio = found["seconds"] / base["seconds"]
            table.add_row(name, f"{found['seconds']:.2f}", f"{found['peak'] / 1e6:.0f}", f"{ratio:.2f}")
            missed += ratio > 3
        console.print(table, "target: at most 3")
    if options.only in (None, "order"):
        table = Table("exact order", "seconds", "R_T", "greedy R_T")
        for tasks, samples in ((10, 10),) if options.quick else ((12, 11), (12, 50)):
            for name, found in order_benchmark(tasks, samples):
                table.add_row(
                    name, f"{found['seconds']:.1f}", f"{found['best']:.3f}", f"{found['greedy']:.3f}"
                )
        console.print(table, "target: seconds")
    if missed and not options.quick:
        console.print(f"[red]{missed} targets missed")
        raise SystemExit(1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
