"""The callback for the Trainer of transformers, every setting of the table in docs/trainers.md; with PEFT."""

import pytest
import torch
from torch.utils.data import Dataset

import orthocl
from orthocl.errors import UnsupportedError

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


def fit(model, data, folder, callbacks, setting="adamw"):
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
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train()


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
