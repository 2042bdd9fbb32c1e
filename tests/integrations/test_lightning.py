"""The Lightning callback, every setting of the table in docs/trainers.md."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import orthocl
from orthocl.errors import TrainingError, UnsupportedError

pl = pytest.importorskip(
    "lightning.pytorch", reason="lightning is not installed: pip install 'orthocl[integrations]'"
)
OrthoclCallback = pytest.importorskip("orthocl.integrations.lightning").OrthoclCallback


class Module(pl.LightningModule):
    def __init__(self, net, setting):
        super().__init__()
        self.net, self.setting = net, setting

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        if self.setting == "adamw":
            return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.1)
        optimizer = torch.optim.SGD(
            self.parameters(), lr=0.1, momentum=0.9 if self.setting == "momentum" else 0.0
        )
        if self.setting != "schedule":
            return optimizer
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def fit(module, data, callbacks, setting="sgd", **more):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=callbacks,
            gradient_clip_val=0.3 if setting == "clipping" else None,
            accumulate_grad_batches=2 if setting == "accumulation" else 1,
            precision="bf16-mixed" if setting == "bf16" else "32-true",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **more,
        ).fit(module, DataLoader(data, batch_size=8))


def test_protected(net, tasks, setting, check_protected):
    module = Module(net(checkpointing=setting == "checkpointing"), setting)
    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=6), seed=0)
    for data in tasks:
        fit(module, data, [callback], setting)
    assert callback.learner.tasks_done == 2
    check_protected(callback.learner)


def test_without_the_callback_outputs_change_to_first_order(net, tasks):
    module = Module(net(), "sgd")
    fit(module, tasks[0], [callback := OrthoclCallback(orthocl.OGDPlus(memory_per_task=6), seed=0)])
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fit(module, tasks[1], [])
    callback.learner.latest_task = 2
    (remembered,) = callback.learner.certificate(before=before).probes
    assert remembered.protected.first_order > 1e-2


def test_a_penalty_is_added(net, tasks):
    results = []
    for strength in (0.0, 100.0):
        module = Module(net(), "sgd")
        callback = OrthoclCallback(orthocl.EWC(strength=strength), seed=0)
        for data in tasks:
            fit(module, data, [callback])
        results.append(callback.certificate().moved)
    assert results[1] < 0.9 * results[0]


def test_a_failed_fit_leaves_the_memory_as_it_was(net, tasks):
    class Broken(Module):
        def on_train_batch_end(self, outputs, batch, number):
            if number == 2:
                raise RuntimeError("power cut")

    callback = OrthoclCallback(orthocl.OGD(memory_per_task=4), seed=0)
    model = net()
    fit(Module(model, "sgd"), tasks[0], [callback])
    with pytest.raises(RuntimeError, match="power cut"):
        fit(Broken(model, "sgd"), tasks[1], [callback])
    assert callback.learner.tasks_done == 1
    assert callback.method.subspace.rank == 4
    fit(Module(model, "sgd"), tasks[1], [callback])
    assert callback.learner.tasks_done == 2


def test_refusals(net, tasks):
    class Two(Module):
        def configure_optimizers(self):
            self.automatic_optimization = False
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net.first, self.net.second)]

    callback = OrthoclCallback(orthocl.OGD(memory_per_task=4))
    with pytest.raises(TrainingError, match="nothing was learnt"):
        callback.certificate()
    with pytest.raises(UnsupportedError, match="one optimizer"):
        fit(Two(net(), "sgd"), tasks[0], [callback])


def test_memory_travels_in_a_file(net, tasks, tmp_path, check_protected):
    module = Module(net(), "sgd")
    first = OrthoclCallback(orthocl.OGDPlus(memory_per_task=6), seed=0)
    fit(module, tasks[0], [first])
    first.save(tmp_path / "memory.safetensors")
    second = OrthoclCallback(orthocl.OGDPlus(memory_per_task=6), seed=0)
    second.load(tmp_path / "memory.safetensors")
    fit(module, tasks[1], [second])
    check_protected(second.learner)
