"""The callback for the Trainer of transformers, every setting of the table in docs/trainers.md; with PEFT."""

import pytest
import torch
from torch.utils.data import Dataset

import orthocl
from orthocl.errors import DataError, StoreError, TrainingError, UnsupportedError

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'orthocl[integrations]'"
)
pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install 'orthocl[integrations]'")
OrthoclCallback = pytest.importorskip("orthocl.integrations.transformers").OrthoclCallback


class Words(Dataset):
    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(3, 20, (16, 5), generator=generator)
        self.labels = (self.words.sum(1) + seed) % 2

    def __len__(self):
        return len(self.words)

    def __getitem__(self, place):
        return {
            "input_ids": self.words[place],
            "attention_mask": torch.ones(5, dtype=torch.long),
            "labels": int(self.labels[place]),
        }


def bert():
    transformers.set_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    return transformers.BertForSequenceClassification(config)


def lora(model):
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install 'orthocl[integrations]'")
    config = peft.LoraConfig(
        r=2, target_modules=["query", "value"], task_type="SEQ_CLS", init_lora_weights=False
    )
    return peft.get_peft_model(model, config)


OPTIMIZERS = {"sgd": ("sgd", ""), "momentum": ("sgd", "momentum=0.9"), "adamw": ("adamw_torch_fused", "")}


def fit(model, data, folder, callbacks, setting="adamw", resume=None, **more):
    name, settings = OPTIMIZERS.get(setting, ("sgd", ""))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        optim=name,
        optim_args=settings or None,
        learning_rate=0.01 if name != "sgd" else 0.05,
        weight_decay=0.1 if setting == "adamw" else 0.0,
        lr_scheduler_type="cosine" if setting == "schedule" else "constant",
        max_grad_norm=0.1 if setting == "clipping" else 0.0,
        gradient_accumulation_steps=2 if setting == "accumulation" else 1,
        bf16=setting == "bf16",
        gradient_checkpointing=setting == "checkpointing",
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        **{"save_strategy": "no", "num_train_epochs": 1, **more},
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_protected(tmp_path, setting, check_protected):
    model = bert()
    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0)
    for number in range(2):
        fit(model, Words(number), tmp_path, [callback], setting)
    assert callback.learner.tasks_done == 2
    check_protected(callback.learner)


def test_with_peft_the_adapters_are_protected(tmp_path, check_protected):
    model = lora(bert())
    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0)
    for number in range(2):
        fit(model, Words(number), tmp_path, [callback])
    names = set(callback.learner.parameters)
    assert any("lora_A" in name for name in names)
    assert not any("base_layer" in name for name in names)
    check_protected(callback.learner)


def test_without_the_callback_outputs_change_to_first_order(tmp_path):
    model = bert()
    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0)
    fit(model, Words(0), tmp_path, [callback])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(model, Words(1), tmp_path, [])
    callback.learner.latest_task = 2
    (remembered,) = callback.learner.certificate(before=before).probes
    assert remembered.protected.first_order > 1e-2


def test_a_failed_fit_leaves_the_memory_as_it_was(tmp_path):
    class Broken(Words):
        def __getitem__(self, place):
            raise RuntimeError("power cut")

    model, callback = bert(), OrthoclCallback(orthocl.OGD(memory_per_task=4), seed=0)
    fit(model, Words(0), tmp_path, [callback])
    rank = callback.method.subspace.rank
    with pytest.raises(RuntimeError, match="power cut"):
        fit(model, Broken(1), tmp_path, [callback])
    fit(model, Words(1), tmp_path, [callback])
    assert callback.learner.tasks_done == 2
    assert callback.method.subspace.rank == 2 * rank


def test_a_penalty_is_added(tmp_path):
    moved = []
    for strength in (0.0, 50.0):
        model, callback = bert(), OrthoclCallback(orthocl.EWC(strength=strength), seed=0)
        for number in range(2):
            fit(model, Words(number), tmp_path, [callback], "sgd")
        moved.append(callback.certificate().moved)
    assert moved[1] < 0.97 * moved[0]


def test_sharded_parameters_are_refused():
    class Arguments:
        fsdp, deepspeed = ["full_shard"], None

    with pytest.raises(UnsupportedError, match="shard"):
        OrthoclCallback(orthocl.OGD()).on_train_begin(Arguments(), None, None)


def method(name):
    return orthocl.OGD(memory_per_task=4) if name == "ogd" else orthocl.OGDPlus(memory_per_task=4)


def remembered(callback, task):
    """Inputs and labels of the samples that are remembered of a task: OGD only says which they were."""
    data = Words(task - 1)
    index = callback.method.remembered[task]
    inputs = {"input_ids": data.words[index], "attention_mask": torch.ones(len(index), 5, dtype=torch.long)}
    return inputs, data.labels[index]


SAVING = {"save_strategy": "steps", "save_steps": 2}


@pytest.mark.parametrize("setting", ["sgd", "momentum", "adamw", "clipping"])
def test_a_resumed_fit_ends_as_if_it_was_never_interrupted(tmp_path, setting, copied, leak):
    model, callback = bert(), OrthoclCallback(method("ogd"), seed=0)
    fit(model, Words(0), tmp_path, [callback], setting)
    learnt = copied(model)
    callback.save(tmp_path / "memory.safetensors")
    fit(model, Words(1), tmp_path, [callback], setting, **SAVING)
    end, certificate = copied(model), callback.certificate()

    fresh, other = bert(), OrthoclCallback(method("ogd"), seed=5)
    if setting == "sgd":  # as a script does that begins every fit so: the checkpoint knows more
        other.load(tmp_path / "memory.safetensors")
    fit(fresh, Words(1), tmp_path, [other], setting, str(tmp_path / "checkpoint-2"), **SAVING)
    resumed = copied(fresh)
    assert all(torch.allclose(end[name], resumed[name], atol=1e-6) for name in end)
    assert other.learner.tasks_done == 2
    assert torch.equal(other.method.remembered[2], callback.method.remembered[2])
    again = other.certificate()
    assert again.moved == pytest.approx(certificate.moved, rel=1e-4)
    assert again.leak < 1e-5
    assert leak(fresh, [remembered(other, 1)], learnt, resumed) < 1e-5


def test_a_resumed_fit_with_a_penalty(tmp_path, copied):
    ends = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        model, callback = bert(), OrthoclCallback(orthocl.SI(strength=1.0), seed=0)
        if resume is None:
            fit(model, Words(0), tmp_path, [callback], "sgd")
        fit(model, Words(1), tmp_path, [callback], "sgd", resume, **SAVING)
        ends.append((copied(model), callback.state_dict()["state"]))
    (weights, memory), (other_weights, other_memory) = ends
    assert all(torch.allclose(weights[name], other_weights[name], atol=1e-6) for name in weights)
    assert memory.keys() == other_memory.keys()


def test_a_checkpoint_without_the_memory_is_not_resumed(tmp_path):
    model, callback = bert(), OrthoclCallback(method("ogd"), seed=0)
    fit(model, Words(0), tmp_path, [callback], "sgd")
    callback.save(tmp_path / "memory.safetensors")
    fit(model, Words(1), tmp_path, [callback], "sgd", **SAVING)
    (tmp_path / "checkpoint-2" / "orthocl.safetensors").unlink()
    fresh = OrthoclCallback(method("ogd"), seed=0)
    with pytest.raises(StoreError, match=r"not in it .* callback.load"):
        fit(bert(), Words(1), tmp_path, [fresh], "sgd", str(tmp_path / "checkpoint-2"))
    fresh.load(tmp_path / "memory.safetensors")
    fit(bert(), Words(1), tmp_path, [fresh], "sgd", str(tmp_path / "checkpoint-2"))
    assert fresh.learner.tasks_done == 2


def test_a_checkpoint_that_was_moved(tmp_path):
    """The Trainer does not say where the checkpoint is: the callback looks in the output folder, and checks."""
    model, callback = bert(), OrthoclCallback(method("ogd"), seed=0)
    fit(model, Words(0), tmp_path / "old", [callback], "sgd")
    fit(model, Words(1), tmp_path / "old", [callback], "sgd", **SAVING)
    fit(bert(), Words(0), tmp_path / "new", [OrthoclCallback(method("ogd"), seed=0)], "sgd", **SAVING)
    fresh, moved = OrthoclCallback(method("ogd"), seed=0), tmp_path / "old" / "checkpoint-2"
    with pytest.raises(TrainingError, match="other weights"):
        fit(bert(), Words(1), tmp_path / "new", [fresh], "sgd", str(moved))
    fresh.load(moved)
    fit(bert(), Words(1), tmp_path / "new", [fresh], "sgd", str(moved))
    assert fresh.learner.tasks_done == 2


def test_the_memory_in_a_checkpoint_is_not_that_of_a_finished_task(tmp_path):
    model, callback = bert(), OrthoclCallback(method("ogd"), seed=0)
    fit(model, Words(0), tmp_path, [callback], "sgd", **SAVING)
    fresh = OrthoclCallback(method("ogd"), seed=0)
    fresh.load(tmp_path / "checkpoint-4")
    with pytest.raises(TrainingError, match="in the middle of a task"):
        fit(model, Words(1), tmp_path, [fresh], "sgd")


@pytest.mark.parametrize("name", ["ogd", "ogd+"])
@pytest.mark.parametrize("peft", [False, True])
def test_the_best_epoch_is_what_is_protected(tmp_path, name, peft, copied, leak):
    best = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    model = lora(bert()) if peft else bert()
    callback = OrthoclCallback(method(name), seed=0)
    seen = []

    class Last(transformers.TrainerCallback):
        """Losses that grow, so that the first epoch is the best; early stopping ends the fit."""

        def on_evaluate(self, args, state, control, metrics, model, **rest):
            metrics["eval_loss"] = float(state.global_step)
            seen.append(copied(model))

    stop = transformers.EarlyStoppingCallback(early_stopping_patience=2)
    fit(model, Words(0), tmp_path, [callback, Last(), stop], "sgd", num_train_epochs=5, **best)
    learnt = copied(model)
    assert len(seen) == 3
    assert all(torch.equal(learnt[name], seen[0][name]) for name in learnt)
    fit(model, Words(1), tmp_path / "2", [callback], "sgd")
    assert leak(model, [remembered(callback, 1)], learnt, copied(model)) < 1e-5
    model.load_state_dict(learnt)
    fit(model, Words(1), tmp_path / "3", [], "sgd")
    assert leak(model, [remembered(callback, 1)], learnt, copied(model)) > 1e-2


@pytest.mark.parametrize("name", ["ogd", "ogd+"])
def test_weights_loaded_after_the_fit_are_what_is_protected(tmp_path, name, copied, leak):
    model, callback = bert(), OrthoclCallback(method(name), seed=0)
    fit(model, Words(0), tmp_path, [callback], "sgd", num_train_epochs=2, **SAVING)
    drawn = callback.method.remembered[1]
    best = bert().from_pretrained(tmp_path / "checkpoint-2")  # another object
    learnt = copied(best)
    with pytest.warns(UserWarning, match="taken again"):
        fit(best, Words(1), tmp_path, [callback], "sgd")
    assert torch.equal(drawn, callback.method.remembered[1])
    assert callback.learner.tasks_done == 2
    assert leak(best, [remembered(callback, 1)], learnt, copied(best)) < 1e-5


class Sentences(Dataset):
    """Tokenized text of different lengths, with what the Trainer removes: it needs a collate function."""

    def __init__(self, seed, count=16):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, 7, (count,), generator=generator).tolist()
        self.words = [torch.randint(3, 20, (length,), generator=generator).tolist() for length in lengths]
        self.seed = seed

    def __len__(self):
        return len(self.words)

    def __getitem__(self, place):
        words = self.words[place]
        return {
            "text": " ".join(map(str, words)),
            "input_ids": words,
            "attention_mask": [1] * len(words),
            "labels": (sum(words) + self.seed) % 2,
        }


def padded(items):
    """As `DataCollatorWithPadding`: it knows nothing to do with text."""
    width = max(len(item["input_ids"]) for item in items)
    rows = {
        key: torch.tensor([item[key] + [0] * (width - len(item[key])) for item in items])
        for key in ("input_ids", "attention_mask")
    }
    assert all("text" not in item for item in items)
    return {**rows, "labels": torch.tensor([item["labels"] for item in items])}


def fit_text(model, data, folder, callback, collate=padded):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
        disable_tqdm=True, optim="sgd", learning_rate=0.5, num_train_epochs=3, per_device_train_batch_size=4,
    )  # fmt: skip
    transformers.Trainer(
        model, arguments, train_dataset=data, data_collator=collate, callbacks=[callback]
    ).train()


def accuracy(model, weights, data):
    """Which samples a model knows with some weights: without the library."""
    model.load_state_dict(weights)
    model.eval()
    items = [{k: v for k, v in data[place].items() if k != "text"} for place in range(len(data))]
    batch = padded(items)
    labels = batch.pop("labels")
    return model(**batch).logits.argmax(1) == labels


def test_the_certificate_takes_what_the_trainer_takes_and_counts_from_when_a_task_was_learnt(
    tmp_path, copied
):
    model, callback = bert(), OrthoclCallback(orthocl.OGDPlus(memory_per_task=2), seed=0)
    ends = []
    for number in range(3):
        fit_text(model, Sentences(number), tmp_path, callback)
        ends.append(copied(model))
    probes = {"task 1": Sentences(0, 40), "task 2": Sentences(1, 40)}
    found = callback.certificate(probes)
    assert found.over_time.tasks == (1, 2, 3)
    rows = {row.name: row for row in found.over_time.rows}
    right = [[accuracy(model, end, data) for end in ends] for data in probes.values()]
    for number, name in enumerate(probes):
        values = [None if fit < number else float(right[number][fit].float().mean()) for fit in range(3)]
        assert rows[name].values == pytest.approx(values)
        assert rows[name].lost == int((right[number][number] & ~right[number][2]).sum())
    assert rows["task 1"].lost > 0
    assert rows["task 1, remembered"].samples == 2
    assert "since it was learnt" in str(found)
    since = callback.certificate(probes, before=1)
    assert (
        next(each for each in since.probes if each.name == "task 1" and not each.remembered).lost
        == rows["task 1"].lost
    )
    with pytest.raises(TrainingError, match="after task 7"):
        callback.certificate(probes, before=7)


def test_snapshots_travel_with_the_memory(tmp_path):
    model, first = bert(), OrthoclCallback(orthocl.OGD(memory_per_task=2), seed=0)
    fit(model, Words(0), tmp_path, [first])
    first.save(tmp_path / "memory.safetensors")
    second = OrthoclCallback(orthocl.OGD(memory_per_task=2), seed=0)
    second.load(tmp_path / "memory.safetensors")
    fit(model, Words(1), tmp_path, [second])
    assert second.certificate().over_time.tasks == (1, 2)
    bare = OrthoclCallback(orthocl.OGD(memory_per_task=2), seed=0, snapshots=False)
    fit(bert(), Words(1), tmp_path, [bare])
    assert bare.snapshots == {}


def packed(items):
    """As trl's packing: all samples in one row, with their lengths."""
    words = [word for item in items for word in item["input_ids"]]
    return {
        "input_ids": torch.tensor([words]),
        "position_ids": torch.cat([torch.arange(len(item["input_ids"])) for item in items])[None],
        "labels": torch.tensor([items[0]["labels"]]),
        **({"max_length_q": 3} if items[0].get("flash") else {}),
    }


@pytest.mark.parametrize("flash", [False, True])
def test_packed_batches(tmp_path, check_protected, flash):
    class Short(Sentences):
        def __getitem__(self, place):
            item = super().__getitem__(place)
            short = {"input_ids": item["input_ids"][:2], "labels": item["labels"]}
            return {**short, "flash": flash}

    def collate(items):
        return packed([{**item, "flash": False} for item in items])

    model = bert()
    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(DataError, match="remember=dataset"):
        fit_text(model, Short(0), tmp_path, callback, packed)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0)
    for number in range(2):
        callback.remember = Words(number)
        fit_text(model, Short(number), tmp_path, callback, collate)
    assert torch.equal(
        next(iter(callback.method.memory)).inputs["input_ids"], Words(0).words[callback.method.remembered[1]]
    )
    check_protected(callback.learner)


def two_adapters():
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install 'orthocl[integrations]'")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    model = peft.get_peft_model(bert(), config, adapter_name="news")
    model.add_adapter("chat", config)
    return model


def test_the_memory_of_one_adapter_does_not_touch_another(tmp_path, copied, leak):
    model = two_adapters()
    untouched = copied(model)
    callbacks = {
        name: OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0) for name in ("news", "chat")
    }
    model.set_adapter("news")
    fit(model, Words(0), tmp_path, [callbacks["news"]], "sgd")
    learnt = copied(model)
    model.set_adapter("chat")
    fit(model, Words(1), tmp_path, [callbacks["chat"]], "sgd")
    chat = copied(model)
    with pytest.raises(TrainingError, match=r"set_adapter\('news'\)"):
        callbacks["news"].certificate()
    model.set_adapter("news")
    fit(model, Words(1), tmp_path, [callbacks["news"]], "sgd")
    end = copied(model)

    for name, value in end.items():
        if ".chat." in name:  # the fits of one leave the other alone
            assert torch.equal(chat[name], value)
            assert torch.equal(learnt[name], untouched[name])
        if ".news." in name:
            assert torch.equal(learnt[name], chat[name])
    assert leak(model, [remembered(callbacks["news"], 1)], learnt, end) < 1e-5
    assert callbacks["chat"].method.subspace.rank == 4

    alone, other = two_adapters(), OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0)
    alone.set_adapter("chat")  # as if the first adapter had never been trained
    fit(alone, Words(1), tmp_path, [other], "sgd")
    assert all(torch.equal(chat[name], value) for name, value in copied(alone).items() if ".chat." in name)


def test_one_callback_is_not_for_two_adapters(tmp_path):
    model, callback = two_adapters(), OrthoclCallback(orthocl.OGDPlus(memory_per_task=4), seed=0)
    model.set_adapter("news")
    fit(model, Words(0), tmp_path, [callback], "sgd")
    model.set_adapter("chat")
    with pytest.raises(UnsupportedError, match="give each adapter"):
        fit(model, Words(1), tmp_path, [callback], "sgd")
    model.set_adapter("news")
    fit(model, Words(1), tmp_path, [callback], "sgd")
    assert callback.learner.tasks_done == 2
