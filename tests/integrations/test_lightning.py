"""The Lightning callback, every setting of the table in docs/trainers.md."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import orthocl
from orthocl.errors import StoreError, TrainingError, UnsupportedError

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

    def validation_step(self, batch, batch_idx):
        """Nothing to measure, but an average is swapped in for it."""

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


def fit(module, data, callbacks, setting="sgd", resume=None, **more):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning", message="(?!.*(taken again|bypassed))")
        settings = {"max_epochs": 1, "enable_checkpointing": False, **more}
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=callbacks,
            gradient_clip_val=0.3 if setting == "clipping" else None,
            accumulate_grad_batches=2 if setting == "accumulation" else 1,
            precision="bf16-mixed" if setting == "bf16" else "32-true",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **settings,
        )
        loader = DataLoader(data, batch_size=8)
        trainer.fit(module, loader, loader if "limit_val_batches" in more else None, ckpt_path=resume)
    return trainer


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


def remembered(callback, tasks, number):
    index = callback.method.remembered[number]
    return tuple(part[index] for part in tasks[number - 1].tensors)


class Saving(pl.callbacks.ModelCheckpoint):
    """A checkpoint after each epoch."""

    def __init__(self, folder):
        super().__init__(dirpath=folder, filename="{epoch}", save_top_k=-1)


SAVED = {"enable_checkpointing": True, "max_epochs": 3}
METHODS = {
    "project": lambda: orthocl.OGD(memory_per_task=6, engine="project"),
    "adapter": lambda: orthocl.OGD(memory_per_task=6, engine="adapter"),
    "ogd+": lambda: orthocl.OGDPlus(memory_per_task=6),
}


@pytest.mark.parametrize(
    ("name", "setting"),
    [("adapter", "sgd"), ("adapter", "momentum"), ("project", "adamw"), ("ogd+", "schedule")],
)
def test_a_resumed_fit_ends_as_if_it_was_never_interrupted(net, tasks, tmp_path, name, setting, copied, leak):
    module, callback = Module(net(), setting), OrthoclCallback(METHODS[name](), seed=0)
    fit(module, tasks[0], [callback], setting)
    learnt = copied(module)
    fit(module, tasks[1], [callback, Saving(tmp_path)], setting, **SAVED)
    end, certificate = copied(module), callback.certificate()

    fresh, other = Module(net(), setting), OrthoclCallback(METHODS[name](), seed=5)
    fit(fresh, tasks[1], [other], setting, str(tmp_path / "epoch=0.ckpt"), max_epochs=3)
    resumed = copied(fresh)
    assert all(torch.allclose(end[name], resumed[name], atol=1e-6) for name in end)
    assert other.learner.tasks_done == 2
    again = other.certificate()
    assert again.moved == pytest.approx(certificate.moved, rel=1e-4)
    assert again.leak < 1e-5
    assert leak(fresh, [remembered(other, tasks, 1)], learnt, resumed) < 1e-5


def test_a_memory_of_other_weights_is_noticed(net, tasks, tmp_path, copied):
    module, first = Module(net(), "sgd"), OrthoclCallback(METHODS["ogd+"](), seed=0)
    fit(module, tasks[0], [first])
    learnt = copied(module)
    first.save(tmp_path / "memory.safetensors")
    for other in (False, True):
        fresh = OrthoclCallback(METHODS["ogd+"](), seed=0)
        fresh.load(tmp_path / "memory.safetensors")
        module.load_state_dict(learnt)
        if other:
            module.load_state_dict({name: value * 1.01 for name, value in learnt.items()})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fresh.begin(module, torch.optim.SGD(module.parameters(), lr=0.1), tasks[1])
        assert any("to which the loaded memory belongs" in str(one.message) for one in said) == other


def test_a_checkpoint_without_the_memory_is_not_resumed(net, tasks, tmp_path):
    module, callback = Module(net(), "sgd"), OrthoclCallback(METHODS["ogd+"](), seed=0)
    fit(module, tasks[0], [callback])
    callback.save(tmp_path / "memory.safetensors")
    fit(module, tasks[1], [Saving(tmp_path)], **SAVED)
    resume = str(tmp_path / "epoch=0.ckpt")
    with pytest.raises(StoreError, match=r"not in it .* callback.load"):
        fit(Module(net(), "sgd"), tasks[1], [callback], "sgd", resume, max_epochs=3)
    callback.load(tmp_path / "memory.safetensors")
    fit(Module(net(), "sgd"), tasks[1], [callback], "sgd", resume, max_epochs=3)
    assert callback.learner.tasks_done == 2


def test_evaluating_a_checkpoint_does_not_bring_its_memory_back(net, tasks, tmp_path):
    module, callback = Module(net(), "sgd"), OrthoclCallback(METHODS["ogd+"](), seed=0)
    trainer = fit(module, tasks[0], [callback, Saving(tmp_path)], **SAVED)
    trainer.validate(module, DataLoader(tasks[0]), ckpt_path=str(tmp_path / "epoch=2.ckpt"), verbose=False)
    fit(module, tasks[1], [callback])
    assert callback.learner.tasks_done == 2


def averaging(kind):
    if kind == "ema":
        return pl.callbacks.EMAWeightAveraging(decay=0.9)
    return pl.callbacks.StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)


@pytest.mark.parametrize("kind", ["ema", "swa"])
@pytest.mark.parametrize("ours_first", [False, True])
@pytest.mark.parametrize("name", list(METHODS))
def test_averages_of_weights_are_protected(net, tasks, kind, ours_first, name, copied, leak):
    module, callback = Module(net(), "sgd"), OrthoclCallback(METHODS[name](), seed=0)
    ends = []
    for data in tasks:
        callbacks = [averaging(kind)]
        callbacks.insert(0 if ours_first else 1, callback)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*(taken again|bypassed)")
            fit(module, data, callbacks, max_epochs=3, limit_val_batches=1)
        ends.append(copied(module))
    assert callback.certificate().leak < 1e-5
    assert leak(module, [remembered(callback, tasks, 1)], *ends) < 1e-5
    module.load_state_dict(ends[0])
    fit(module, tasks[1], [averaging(kind)], max_epochs=3)
    assert leak(module, [remembered(callback, tasks, 1)], ends[0], copied(module)) > 1e-2


@pytest.mark.parametrize("name", list(METHODS))
def test_the_best_epoch_loaded_after_the_fit_is_what_is_protected(net, tasks, tmp_path, name, copied, leak):
    class Watched(Module):
        def validation_step(self, batch, batch_idx):
            self.log("loss", float(self.current_epoch))  # grows: the first epoch is the best

    saving = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, monitor="loss", mode="min", save_top_k=1)
    stop = pl.callbacks.EarlyStopping(monitor="loss", patience=2)
    callback = OrthoclCallback(METHODS[name](), seed=0)
    more = {**SAVED, "max_epochs": 9, "limit_val_batches": 1}
    trainer = fit(Watched(net(), "sgd"), tasks[0], [callback, saving, stop], **more)
    assert trainer.current_epoch == 3
    best = Watched(net(), "sgd")
    best.load_state_dict(torch.load(saving.best_model_path, weights_only=True)["state_dict"])
    learnt = copied(best)
    with pytest.warns(UserWarning, match="taken again"):
        fit(best, tasks[1], [callback])
    assert leak(best, [remembered(callback, tasks, 1)], learnt, copied(best)) < 1e-5


def test_a_head_that_grows_between_fits(net, tasks, copied, leak):
    module, callback = Module(net(), "sgd"), OrthoclCallback(METHODS["project"](), seed=0)
    fit(module, tasks[0], [callback])
    old, module.net.second = module.net.second, nn.Linear(12, 5)
    with torch.no_grad():
        module.net.second.weight[:3], module.net.second.bias[:3] = old.weight, old.bias
    learnt = copied(module)
    fit(module, tasks[1], [callback])
    assert callback.learner.tasks_done == 2
    assert leak(module, [remembered(callback, tasks, 1)], learnt, copied(module)) < 1e-5
