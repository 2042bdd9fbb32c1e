"""Speed and memory of OGD's projection: factors and tangent adapter against the published dense algorithm.

All times are medians, in milliseconds of CPU time of the one thread used (so that other work on the machine counts as
little as possible), of steps taken in turn within one run: read the ratios. "dense" is the published algorithm: an
orthonormal p x m basis of explicit gradients and two passes over it at every step. "sgd" is the step of
`torch.optim.SGD` after autograd's backward pass, which "dense", "project" and "adapter" take too.

    python benchmarks/projection.py                  targets: about 5 minutes, up to 12 GB
    python benchmarks/projection.py --growth         cost against m and against width
    python benchmarks/projection.py --huge           a network whose dense basis would need 120 GB
    python benchmarks/projection.py --plot FOLDER    --growth, and its figure
    add --quick for a smaller, faster run
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from orthocl.formatting import size_text
from orthocl.nets import MLP, LeNet
from orthocl.tangents import Adapter, Subspace, collect
from orthocl.tangents.memory_plan import available_bytes

BATCH, TASK_SAMPLES, CACHED_SAMPLES = 32, 60_000, 4_000
console = Console(width=110)


@dataclass
class Setting:
    """A network with a memory of m samples."""

    model: nn.Module
    shape: tuple[int, ...]
    outputs: int
    memory: int
    samples: int = CACHED_SAMPLES
    data: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    subspace: Subspace = field(init=False)

    def __post_init__(self):
        torch.manual_seed(0)
        self.model.eval()
        self.data = torch.rand(self.samples, *self.shape) * (torch.rand(self.samples, *self.shape) < 0.3)
        self.labels = torch.randint(0, self.outputs, (self.samples,))
        self.subspace = Subspace(dict(self.model.named_parameters()))
        self.remember()

    def drawn(self, count: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        x = torch.rand(count, *self.shape, generator=generator)
        return x, torch.randint(0, self.outputs, (count,), generator=generator)

    def remember(self) -> None:
        """Build or refresh the memory."""
        x, y = self.drawn(self.memory)
        parameters = dict(self.model.named_parameters())
        self.subspace.replace([(1, collect(self.model, x, y, parameters=parameters))])

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def dense_bytes(self) -> int:
        return 4 * self.parameters * self.memory


def gram_schmidt(setting: Setting, progress: Progress) -> Tensor:
    """The published construction: one backward pass per sample, then orthonormalise against all before."""
    x, y = setting.drawn(setting.memory)
    own = list(setting.model.parameters())
    basis = torch.zeros(setting.parameters, setting.memory)
    for i in progress.track(range(setting.memory), description="per-sample loop and Gram-Schmidt"):
        setting.model.zero_grad()
        setting.model(x[i : i + 1])[0, y[i]].backward()
        row = torch.cat([p.grad.reshape(-1) for p in own])
        if i:
            row -= basis[:, :i] @ (row @ basis[:, :i])
        basis[:, i] = row / row.norm()
    setting.model.zero_grad()
    return basis


def random_basis(setting: Setting) -> Tensor | None:
    """A basis of the right size (times do not depend on its values), if it fits in the free memory."""
    if setting.dense_bytes > 0.7 * (available_bytes() or 0):
        return None
    basis = torch.empty(setting.parameters, setting.memory)
    for rows in basis.split(4096):
        rows.normal_().div_(setting.parameters**0.5)
    return basis


def steps(setting: Setting, basis: Tensor | None) -> tuple[dict[str, Callable[[], None]], dict[str, Adapter]]:
    """One training step per way, each on its own copy of the model."""
    ways = [
        "sgd",
        "project",
        "adapter",
        "adapter, cached",
        "adapter, cached in a file",
        *(["dense"] if basis is not None else []),
    ]
    adapters: dict[str, Adapter] = {}
    found: dict[str, Callable[[], None]] = {}
    for way in ways:
        model = copy.deepcopy(setting.model)
        if way.startswith("adapter"):
            adapter = Adapter(model, setting.subspace, dict(model.named_parameters()), batch_size=BATCH)
            scratch = Path(tempfile.gettempdir()) if way.endswith("file") else None
            if "cached" in way and not adapter.cache_inputs(setting.data, scratch=scratch):
                adapter.remove()
                continue
            adapters[way] = adapter
        found[way] = _step(setting, model, way, adapters.get(way), basis)
    return found, adapters


def _step(
    setting: Setting, model: nn.Module, way: str, adapter: Adapter | None, basis: Tensor | None
) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    own = list(model.parameters())
    sizes = [p.numel() for p in own]

    def project() -> None:
        if way == "project":
            changed = setting.subspace.outside([p.grad for p in own])
        else:
            gradient = torch.cat([p.grad.reshape(-1) for p in own])
            gradient -= basis @ (gradient @ basis)
            changed = [part.view_as(p) for part, p in zip(gradient.split(sizes), own, strict=True)]
        for parameter, part in zip(own, changed, strict=True):
            parameter.grad = part

    def step() -> None:
        index = torch.randint(0, setting.samples, (BATCH,))
        x, y = setting.data[index], setting.labels[index]
        if adapter is not None and adapter.cached_bytes:
            adapter.batch_index = index
        start = time.thread_time()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        if way in ("project", "dense"):
            project()
        optimizer.step()
        if adapter is not None:
            adapter.step(1e-3)
        step.times.append(1e3 * (time.thread_time() - start))

    step.times = []
    return step


def measure(
    found: dict[str, Callable[[], None]], rounds: int, progress: Progress, what: str
) -> dict[str, float]:
    """Medians of steps taken in turn: slow ways take fewer, and all see the same machine."""
    for _ in range(3):
        for step in found.values():
            step()
    counts = {way: max(1, min(40, int(150 / median(step.times)))) for way, step in found.items()}
    for step in found.values():
        step.times.clear()
    for _ in progress.track(range(rounds), description=what):
        for way, step in found.items():
            for _ in range(counts[way]):
                step()
    return {way: median(step.times) for way, step in found.items()}


def report(setting: Setting, times: dict[str, float], adapters: dict[str, Adapter]) -> dict[str, object]:
    """One table of a setting, and the same as JSON values."""
    table = Table("way", "ms a step", "x SGD", "dense / it", "bytes", "of dense", box=None, pad_edge=False)
    memory = {"dense": setting.dense_bytes, "project": setting.subspace.nbytes}
    for way, adapter in adapters.items():
        # A whole task's input kernel, not only the part that this benchmark computes.
        cached = 0 if way.endswith("file") else adapter.cached_bytes
        memory[way] = (
            setting.subspace.nbytes + adapter.nbytes + cached * (TASK_SAMPLES // setting.samples - 1)
        )
    for way, ms in times.items():
        faster = f"{times['dense'] / ms:.1f}" if "dense" in times else "-"
        stored = memory.get(way)
        share = "" if stored is None else f"{100 * stored / setting.dense_bytes:.2f} %"
        table.add_row(
            way,
            f"{ms:.2f}",
            f"{ms / times['sgd']:.2f}",
            faster,
            "" if stored is None else size_text(stored),
            share,
        )
    console.print(table)
    return {
        "m": setting.memory,
        "p": setting.parameters,
        "ms": times,
        "bytes": memory,
        "dense": setting.dense_bytes,
    }


def compare(
    title: str, setting: Setting, basis: Tensor | None, rounds: int, progress: Progress
) -> dict[str, object]:
    console.print(f"\n[bold]{title}[/]: p = {setting.parameters:,}, m = {setting.memory:,}", highlight=False)
    found, adapters = steps(setting, basis)
    times = measure(found, rounds, progress, f"{title}, m = {setting.memory}")
    result = report(setting, times, adapters)
    for adapter in adapters.values():
        adapter.remove()
    return result


def leak_over_a_task(setting: Setting, count: int, progress: Progress) -> float:
    """Share of the displacement in the protected span after many adapter steps in float32."""
    model = copy.deepcopy(setting.model)
    parameters = dict(model.named_parameters())
    before = [p.detach().clone() for p in parameters.values()]
    adapter = Adapter(model, setting.subspace, parameters, batch_size=BATCH)
    step = _step(setting, model, "adapter", adapter, None)
    for _ in progress.track(range(count), description="leak over a task"):
        step()
    adapter.remove()
    return setting.subspace.leak([p.detach() - q for p, q in zip(parameters.values(), before, strict=True)])


def targets(quick: bool, progress: Progress) -> dict[str, object]:
    rounds = 3 if quick else 15
    samples = (
        CACHED_SAMPLES if quick else TASK_SAMPLES
    )  # a whole task: its cached kernel fits in no processor's cache
    setting = Setting(MLP((1, 32, 32), (100, 100), 10), (1, 32, 32), 10, 300 if quick else 1500, samples)
    clock = time.perf_counter()
    basis = gram_schmidt(setting, progress)
    published = time.perf_counter() - clock
    refreshes = []
    for _ in range(5):
        clock = time.perf_counter()
        setting.remember()
        refreshes.append(time.perf_counter() - clock)
    result = {"mlp": compare("MLP 1024-100-100-10", setting, basis, rounds, progress)}
    console.print(
        f"building the memory: {median(refreshes):.2f} s against {published:.1f} s for the per-sample loop and "
        f"Gram-Schmidt: 1 / {published / median(refreshes):.0f}",
        highlight=False,
    )
    del basis
    leaked = leak_over_a_task(setting, 200 if quick else 2000, progress)
    console.print(f"leak of the displacement after {200 if quick else 2000} adapter steps: {leaked:.1e}")
    result["build"] = {"published": published, "ours": median(refreshes)}
    result["leak"] = leaked
    for memory in (200,) if quick else (200, 500, 1000, 2000):
        setting = Setting(LeNet((3, 32, 32), 200, 10), (3, 32, 32), 10, memory)
        result[f"lenet {memory}"] = compare("LeNet, hidden 200", setting, random_basis(setting), 3, progress)
    for memory in (200,) if quick else (200, 500, 1000):
        setting = Setting(MLP((9216,), (256,), 128), (9216,), 128, memory)
        result[f"cub {memory}"] = compare(
            "CUB head 9216-256-128", setting, random_basis(setting), 3, progress
        )
    return result


def growth(quick: bool, progress: Progress) -> dict[str, object]:
    result: dict[str, object] = {"m": [], "width": []}
    for memory in (100, 400) if quick else (100, 200, 500, 1000, 1500, 3000, 6000):
        setting = Setting(MLP((1, 32, 32), (100, 100), 10), (1, 32, 32), 10, memory)
        result["m"].append(compare("MLP 1024-100-100-10", setting, random_basis(setting), 5, progress))
    for width in (100, 200) if quick else (100, 200, 400, 1000, 2000, 4000):
        setting = Setting(MLP((1, 32, 32), (width, width), 10), (1, 32, 32), 10, 1500)
        title = f"MLP 1024-{width}-{width}-10"
        result["width"].append(
            {"width": width, **compare(title, setting, random_basis(setting), 3, progress)}
        )
    return result


def huge(quick: bool, progress: Progress) -> dict[str, object]:
    wide = 500 if quick else 2000
    clock = time.perf_counter()
    setting = Setting(MLP((3072,), (wide, wide), 100), (3072,), 100, 300 if quick else 3000)
    built = time.perf_counter() - clock
    console.print(
        f"dense would need {size_text(setting.dense_bytes)}; memory built in {built:.1f} s", highlight=False
    )
    result = compare(f"MLP 3072-{wide}-{wide}-100", setting, random_basis(setting), 3, progress)
    return {"built": built, **result}


def plot(result: dict[str, object], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "orthocl", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(8.5, 6), layout="constrained", sharex="col")
    styles = {
        "sgd": ("plain SGD", "0.6", ":"),
        "dense": ("dense, as published", "tab:red", "-"),
        "project": ("factors, projected", "tab:orange", "-"),
        "adapter": ("adapter", "tab:blue", "-"),
        "adapter, cached": ("adapter, cached inputs", "tab:green", "-"),
    }
    for column, (key, label) in enumerate(
        (("m", "remembered samples m"), ("width", "hidden width (m = 1,500)"))
    ):
        rows = result[key]
        for way, (name, colour, line) in styles.items():
            style = {"label": name, "color": colour, "linestyle": line, "marker": "."}
            points = [(row[key], row["ms"][way]) for row in rows if way in row["ms"]]
            axes[0, column].loglog(*zip(*points, strict=True), **style)
            stored = [
                (row[key], (row["dense"] if way == "dense" else row["bytes"].get(way, 0)) / 1e6)
                for row in rows
            ]
            if way != "sgd":
                axes[1, column].loglog(*zip(*[s for s in stored if s[1]], strict=True), **style)
        axes[1, column].set_xlabel(label)
    axes[0, 0].set_ylabel("ms a step")
    axes[1, 0].set_ylabel("memory, MB")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "projection.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console.print(f"torch {torch.__version__}, one thread, load of the machine {os.getloadavg()[0]:.1f}")
    result: dict[str, object] = {}
    with Progress(console=console, transient=True) as progress:
        if arguments.growth or arguments.plot:
            result["growth"] = growth(arguments.quick, progress)
        if arguments.huge:
            result["huge"] = huge(arguments.quick, progress)
        if not result:
            result["targets"] = targets(arguments.quick, progress)
    console.print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    if arguments.plot:
        plot(result["growth"], arguments.plot)


if __name__ == "__main__":
    main()
