"""attach under accelerate: the prepared optimizer and model, every setting of the table in docs/trainers.md."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import orthocl

accelerate = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: pip install 'orthocl[integrations]'"
)


@pytest.fixture(autouse=True)
def _fresh_state():
    """The precision of the first Accelerator is kept for the whole process otherwise."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def made(model, setting):
    if setting == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if setting == "momentum" else 0.0)


def train(net, tasks, setting, method):
    steps = 2 if setting == "accumulation" else 1
    precision = "bf16" if setting == "bf16" else "no"
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=steps
    )
    model = net(checkpointing=setting == "checkpointing")
    optimizer = made(model, setting)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    learner = orthocl.attach(method, model, optimizer, seed=0)
    for data in tasks:
        loader = accelerator.prepare(DataLoader(data, batch_size=8))
        with learner.learning(data):
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss + learner.penalty())
                    if setting == "clipping" and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.3)
                    optimizer.step()
                    if setting == "schedule":
                        schedule.step()
                    optimizer.zero_grad()
    return learner


def test_protected(net, tasks, setting, check_protected):
    learner = train(net, tasks, setting, orthocl.OGDPlus(memory_per_task=6))
    check_protected(learner)


def test_the_wrapped_optimizer_is_found(net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared = accelerate.Accelerator(cpu=True).prepare(optimizer)
    assert prepared is not optimizer
    learner = orthocl.attach(orthocl.OGD(memory_per_task=1), model, prepared)
    assert learner.optimizer is optimizer
