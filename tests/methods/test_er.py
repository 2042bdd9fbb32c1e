"""Replay: what is added to the loss is the mean over samples of all tasks, each its own."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from orthocl.methods import ER, DERpp, Joint
from orthocl.nets import MLP, MultiHead
from orthocl.streams import Task, TensorSplit
from orthocl.training import attach


@pytest.mark.parametrize("tasks", [1, 2])
def test_the_whole_memory_is_the_mean_loss_of_all_samples(make, data, learn, tasks):
    learner = make(ER(memory_per_task=12, replay_batch=100, strength=0.7))
    for split in data[:tasks]:
        learn(learner, split)
    inputs, targets = (
        torch.cat(part) for part in zip(*(split.samples() for split in data[:tasks]), strict=True)
    )
    with learner.learning(data[2]):
        found = learner.penalty()
        expected = 0.7 * cross_entropy(learner.model(inputs), targets)
        assert found.item() == pytest.approx(expected.item())
        learner.optimizer.zero_grad()


def test_the_change_of_outputs_is_added_to_the_loss_of_the_labels(make, data, learn):
    learner = make(DERpp(memory_per_task=12, replay_batch=100, strength=0.5, distillation=0.3))
    earlier = []
    for split in data[:2]:
        learn(learner, split)
        earlier.append(learner.model(split.samples()[0]).detach())
    with learner.learning(data[2]):
        found = learner.penalty().item()
        expected = 0.0
        for split, then in zip(data, earlier, strict=False):
            inputs, targets = split.samples()
            now = learner.model(inputs)
            loss = 0.5 * cross_entropy(now, targets) + 0.3 * (now - then).square().mean()
            expected += 0.5 * loss.item()  # half of the samples
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("heads", [False, True])
def test_samples_are_drawn_equally_often_and_through_their_own_heads(heads):
    """Three tasks of 2, 3 and 4 samples with numbers of their own, batches of three."""
    seen: Counter[int] = Counter()
    sizes = []
    several = MultiHead(MLP((1,), hidden=(2,)), {"a": 2, "b": 2, "c": 2})
    model = (several if heads else nn.Linear(1, 2)).double()
    learner = attach(
        ER(memory_per_task=9, replay_batch=3), model, torch.optim.SGD(model.parameters(), lr=0.01)
    )
    number, owners = 0, {}
    for place, count in enumerate((2, 3, 4)):
        inputs = torch.arange(number, number + count, dtype=torch.float64)[:, None]
        owners |= dict.fromkeys(range(number, number + count), "abc"[place])
        number += count
        split = TensorSplit(inputs, torch.zeros(count, dtype=torch.long))
        head = "abc"[place] if heads else "shared"
        with learner.learning(Task(place + 1, str(place), split, split, head=head, outputs=2)):
            pass

    def note(module, given):
        for value in given[0].flatten().tolist():
            seen[int(value)] += 1
            if heads:
                assert model.selected == owners[int(value)]
        sizes.append(len(given[0]))

    handle = model.register_forward_pre_hook(note)
    split = TensorSplit(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.long))
    with learner.learning(Task(4, "new", split, split, head="a" if heads else "shared", outputs=2)):
        seen.clear()
        sizes.clear()
        for _ in range(600):
            learner.penalty()
        drawn = Counter(seen)
        assert sum(sizes) == 1800
    handle.remove()
    assert sorted(drawn) == list(range(9))
    assert all(abs(count - 200) < 60 for count in drawn.values())


def test_joint_training_keeps_every_sample(make, learn):
    learner = make(Joint())
    split = TensorSplit(torch.randn(150, 4, dtype=torch.float64), torch.randint(3, (150,)))
    learn(learner, split, steps=1)
    assert sum(len(piece) for piece in learner.method.memory) == 150
