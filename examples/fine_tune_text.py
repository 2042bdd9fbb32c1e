"""Fine-tune a real pretrained language model on one task after another with the Trainer of transformers.

all-MiniLM-L6-v2 (22.7 million parameters) with LoRA adapters of rank 8 learns sentiment (SST-2), then paraphrases
(QQP), each with its own head. Three lines protect the first task: the import, the callback, and `callbacks=[...]`.

Needs, once: `pip install 'orthocl[integrations]'`, `orthocl data fetch all-minilm-l6-v2` (84 MB, Apache-2.0) and the
texts, which are at no public address (`orthocl data fetch text-stream` says which file, and where it belongs).
experiments/text.toml compares seven methods.
"""

import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset

import orthocl
from orthocl.errors import DataError, UnsupportedError

TEXTS, TESTED = 48, 20


class ForTrainer(nn.Module):
    """The Trainer wants the loss from the model."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens, labels=None):
        logits = self.net(tokens)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Rows(Dataset):
    """Samples as the Trainer wants them: dicts with labels."""

    def __init__(self, split):
        self.tokens, self.labels = split.samples()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"tokens": self.tokens[row], "labels": self.labels[row]}


def main():
    try:
        stream = orthocl.streams.make(
            "text-stream", train_size=TEXTS, test_size=TESTED, options={"order": ["sst-2", "qqp"]}
        )
        model = ForTrainer(orthocl.make_net("minilm-lora", stream.input_shape, stream.heads, seed=0))
        from transformers import Trainer, TrainingArguments

        from orthocl.integrations.transformers import OrthoclCallback  # the first line
    except (ImportError, DataError, UnsupportedError) as error:
        print(error)
        return
    torch.manual_seed(0)
    callback = OrthoclCallback(orthocl.OGDPlus(memory_per_task=8), seed=0)  # the second line
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            learning_rate=1e-3,
            per_device_train_batch_size=16,
            num_train_epochs=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        for task in stream:
            callback.head = task.head  # only because each task has its own head
            Trainer(
                model, arguments, train_dataset=Rows(task.train), callbacks=[callback]
            ).train()  # the third line
    tokens, labels = stream.task(1).test.samples()
    probe = orthocl.tangents.Probe("sentiment", {"tokens": tokens}, labels, head="task-1")
    print(callback.certificate({"sentiment": probe}))


if __name__ == "__main__":
    main()
