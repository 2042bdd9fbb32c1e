"""attach under accelerate: the prepared optimizer and model, every setting of the table in docs/trainers.md."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import orthocl
from orthocl.errors import StoreError, TrainingError

accelerate = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: pip install 'orthocl[integrations]'"
)
keep_memory = pytest.importorskip("orthocl.integrations.accelerate").keep_memory


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


def resumable(net, method, data, folder, at=None, resume=None, done=None):
    """Task 2 in a loop of accelerate with a checkpoint after step `at`, or going on from one."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = net()
    if done is not None:
        model.load_state_dict(done)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    learner = orthocl.attach(method, model, optimizer, seed=0 if resume is None else 5)
    keep_memory(accelerator, learner)
    if resume is not None:
        accelerator.load_state(resume)
    elif done is not None:
        learner.load(folder / "memory.safetensors")
    x, y = data.tensors
    with learner.learning(data, resumed=resume is not None):
        for step in range(8):
            if resume is not None and step <= 2:
                continue
            rows = slice(step % 4 * 8, step % 4 * 8 + 8)
            accelerator.backward(nn.functional.cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
            optimizer.zero_grad()
            if step == at:
                accelerator.save_state(folder / "checkpoint")
    return model, learner


@pytest.mark.parametrize("engine", ["project", "adapter"])
def test_a_resumed_loop_ends_as_if_it_was_never_interrupted(net, tasks, tmp_path, engine, copied, leak):
    def method():
        return orthocl.OGD(memory_per_task=6, engine=engine)

    model, learner = resumable(net, method(), tasks[0], tmp_path)
    learner.save(tmp_path / "memory.safetensors")
    learnt, index = copied(model), learner.method.remembered[1]
    model, learner = resumable(net, method(), tasks[1], tmp_path, at=2, done=learnt)
    end, certificate = copied(model), learner.certificate()

    model, learner = resumable(net, method(), tasks[1], tmp_path, resume=tmp_path / "checkpoint")
    resumed = copied(model)
    assert all(torch.allclose(end[name], resumed[name], atol=1e-6) for name in end)
    assert learner.certificate().moved == pytest.approx(certificate.moved, rel=1e-4)
    samples = tuple(part[index] for part in tasks[0].tensors)
    assert leak(model, [samples], learnt, resumed) < 1e-5


def test_a_checkpoint_without_the_memory_is_not_loaded(net, tasks, tmp_path):
    resumable(net, orthocl.OGD(memory_per_task=6), tasks[0], tmp_path, at=2)
    (tmp_path / "checkpoint" / "orthocl.safetensors").unlink()
    with pytest.raises(StoreError, match="does not contain the memory"):
        resumable(net, orthocl.OGD(memory_per_task=6), tasks[0], tmp_path, resume=tmp_path / "checkpoint")


def test_a_loaded_checkpoint_must_be_resumed(net, tasks, tmp_path):
    _, learner = resumable(net, orthocl.OGD(memory_per_task=6), tasks[0], tmp_path, at=2)
    learner.load(tmp_path / "checkpoint" / "orthocl.safetensors")
    with pytest.raises(TrainingError, match="resumed=True"), learner.learning(tasks[1]):
        pass


@pytest.mark.parametrize("engine", ["project", "adapter"])
@pytest.mark.parametrize("what", ["best", "average"])
def test_weights_put_in_place_inside_the_block_are_protected(net, tasks, engine, what, copied, leak):
    accelerator = accelerate.Accelerator(cpu=True)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    learner = orthocl.attach(orthocl.OGD(memory_per_task=6, engine=engine), model, optimizer, seed=0)
    ends = []
    for data in tasks:
        x, y = data.tensors
        seen = []
        with learner.learning(data):
            for _ in range(6):
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                seen.append(copied(model))
            mean = {name: torch.stack([one[name] for one in seen]).mean(0) for name in seen[0]}
            model.load_state_dict(mean if what == "average" else seen[2])
        ends.append(copied(model))
    samples = tuple(part[learner.method.remembered[1]] for part in tasks[0].tensors)
    assert leak(model, [samples], *ends) < 1e-5
