"""What a user brings along, written into a folder: a method, a network, photographs, arrays, a function of data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from orthocl.lab import Store, load_experiment, make_table, run_experiment
from orthocl.lab.reporting.report import write_report
from orthocl.streams import save_npz

METHOD = '''
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl import Learner, Method
from strengths import STRENGTH


@dataclass
class Leash(Method):
    """Penalty strength * ||w - w*||^2 with w* the weights at the end of the last task."""

    name: ClassVar[str] = "leash"
    strength: float = STRENGTH
    anchor: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def penalty(self, learner: Learner) -> Tensor | None:
        if not self.anchor:
            return None
        pairs = zip(learner.parameters.values(), self.anchor, strict=True)
        return self.strength * torch.stack([(p - a).square().sum() for p, a in pairs]).sum()

    def end_task(self, learner: Learner) -> None:
        self.anchor = [p.detach().clone() for p in learner.parameters.values()]
'''

NET = '''
from math import prod

from torch import nn


def build(input_shape, outputs=None, width: int = 8):
    """One hidden layer."""
    layers = [nn.Flatten(), nn.Linear(prod(input_shape), width), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.Linear(width, outputs)] if outputs else []))
'''

DATA = '''
import numpy as np


def make(tasks: int = 2, shift: float = 1.0):
    """Two clouds of points that move from task to task."""
    random = np.random.RandomState(1)
    y, z = np.arange(30) % 2, np.arange(20) % 2
    return [
        (random.rand(30, 5) + y[:, None] + shift * t, y, random.rand(20, 5) + z[:, None] + shift * t, z)
        for t in range(tasks)
    ]
'''

FILES = ("my_method.py", "strengths.py", "my_net.py", "my_data.py", "tasks.npz")


def write_parts(folder: Path) -> None:
    """Write everything into a folder."""
    (folder / "my_method.py").write_text(METHOD)
    (folder / "strengths.py").write_text("STRENGTH = 0.1\n")
    (folder / "my_net.py").write_text(NET)
    (folder / "my_data.py").write_text(DATA)
    random = np.random.RandomState(0)
    for label in range(4):
        place = folder / "photos" / f"class-{label}"
        place.mkdir(parents=True)
        for number in range(10):
            pixels = (random.rand(12, 12, 3) * 100 + 35 * label).astype("uint8")
            Image.fromarray(pixels).save(place / f"{number}.png")
    y, z = np.arange(30) % 3, np.arange(15) % 3
    save_npz(
        folder / "tasks.npz",
        [(random.rand(30, 6) + y[:, None], y, random.rand(15, 6) + z[:, None], z) for _ in range(2)],
    )


def remove_parts(folder: Path) -> None:
    """Delete everything that was written."""
    for name in FILES:
        (folder / name).unlink()
    for image in sorted((folder / "photos").rglob("*"), reverse=True):
        image.unlink() if image.is_file() else image.rmdir()
    (folder / "photos").rmdir()


EXPERIMENT = """
name = "gallery"
seeds = [1, 2]
methods = ["my_method.py:Leash", "ogd"]
table.metrics = ["aac", "forgetting"]

[net]
name = "my_net.py:build"
width = 6

[train]
epochs = 1

[method]
memory_per_task = 4

[streams.birds]
folder = "photos"
size = 8

[streams.arrays]
arrays = "tasks.npz"

[streams.clouds]
stream = "my_data.py:make"
shift = 2.0
"""


def use_on_a_cluster(folder: Path, backend: str, settings: dict[str, object]) -> None:
    """Run the experiment on a cluster, delete the parts, and read the store without them."""
    write_parts(folder)
    (folder / "gallery.toml").write_text(EXPERIMENT)
    experiment = load_experiment(folder / "gallery.toml", seeds=[1])
    store = Store(folder / "store")
    results = run_experiment(
        experiment, store, backend=backend, backend_settings=settings, on_event=lambda event: None
    )
    assert [outcome.reason for outcome in results.failures] == []
    assert len(results.pairs) == 6
    remove_parts(folder)
    records = list(store.records())
    assert {record.settings.stream_label for record in records} == {"birds", "arrays", "clouds"}
    assert {record.settings.method_label for record in records} == {"leash", "ogd"}
    leash = next(record for record in records if record.settings.method_label == "leash")
    assert leash.settings.method.name == "my_method.py:Leash"
    assert len(make_table([(record.settings, record) for record in records]).rows) == 6
    page = write_report(folder / "page.html", [(r.settings, r) for r in records], title="gallery")
    assert "leash" in page.read_text()
