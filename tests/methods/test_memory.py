"""Samples of several tasks end to end, and each task's own among them."""

from __future__ import annotations

import torch
from torch import nn

from orthocl.methods import AGEM
from orthocl.nets import MLP, MultiHead
from orthocl.streams import Task, TensorSplit
from orthocl.training import attach


def remembered(heads: dict[str, int], sizes: list[int]):
    """A memory of everything, whose inputs are numbers of their own."""
    several = (
        MultiHead(MLP((1,), hidden=(2,)), dict.fromkeys(heads, 2)) if len(heads) > 1 else nn.Linear(1, 2)
    )
    model = several.double()
    learner = attach(AGEM(memory_per_task=100), model, torch.optim.SGD(model.parameters(), lr=0.1))
    names, number = list(heads), 0
    for place, count in enumerate(sizes):
        inputs = torch.arange(number, number + count, dtype=torch.float64)[:, None]
        split = TensorSplit(inputs, torch.arange(count) % 2)
        number += count
        head = names[place % len(names)]
        with learner.learning(Task(place + 1, str(place), split, split, head=head, outputs=2)):
            pass
    return learner.method.memory


def test_joining_tasks_leaves_each_its_own_samples():
    for heads in ({"shared": 2}, {"a": 2, "b": 2}):
        memory = remembered(heads, [2, 3, 4])
        before = {piece.task: sorted(piece.inputs.flatten().tolist()) for piece in memory}
        assert before == {1: [0, 1], 2: [2, 3, 4], 3: [5, 6, 7, 8]}
        joined = memory.by_head()
        after = {piece.task: sorted(piece.inputs.flatten().tolist()) for piece in memory}
        assert after == before
        assert all(len(piece.targets) == len(piece.inputs) for piece in memory)
        found = {head: sorted(inputs.flatten().tolist()) for head, inputs, _ in joined}
        if len(heads) == 1:
            assert found == {"shared": list(range(9))}
        else:
            assert found == {"a": [0, 1, 5, 6, 7, 8], "b": [2, 3, 4]}
        assert len(memory) == 9
        memory.shrink(2)
        assert [len(piece) for piece in memory] == [2, 2, 2]
        assert len(memory) == sum(len(inputs) for _, inputs, _ in memory.by_head()) == 6
