"""A stream of text classification tasks for a pretrained encoder: token numbers, one data set and one head per task."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orthocl.errors import SettingsError, UnsupportedError, unknown_name
from orthocl.streams.arrays import ArrayStream, from_arrays
from orthocl.streams.datasets.locate import find_verified
from orthocl.streams.datasets.pretrained import MINILM, TEXT_STREAM

CLASSES = {"ag-news": 4, "sst-2": 2, "rte": 2, "cb": 3, "qqp": 2, "mnli": 3, "boolq": 2, "amazon": 5}
Rows = list[tuple[str, int]]


def text_stream(
    *,
    order: Sequence[str] = ("ag-news", "sst-2", "qqp", "mnli", "amazon"),
    tokens: int = 64,
    train_size: int | None = None,
    test_size: int | None = None,
    seed: int = 0,
    data_root: str | Path | None = None,
) -> ArrayStream:
    """Texts as the token numbers of all-MiniLM-L6-v2, padded with 0, each task with its own head.

    Args:
        order: the tasks: ag-news, sst-2, rte, cb, qqp, mnli, boolq, amazon.
        tokens: length of a sample; longer texts are cut.
        train_size: training samples per task, drawn uniformly; all (at most 2,000) by default.
        test_size: likewise for test samples.
        seed: seed of the draw.
        data_root: folder with the data sets.
    """
    for name in order:
        if name not in CLASSES:
            raise unknown_name("text task", name, CLASSES)
    if len(set(order)) != len(order):
        raise SettingsError(f"each text task can be learnt once, got {list(order)}: leave the repetition out")
    if tokens < 2:
        raise SettingsError(
            f"a text has at least its first and last token, got tokens={tokens}: give 2 or more"
        )
    texts = _texts(data_root)
    tokenizer = _tokenizer(tokens, data_root)
    tasks = [
        (
            *_samples(tokenizer, _drawn(texts[name, "train"], train_size, seed)),
            *_samples(tokenizer, _drawn(texts[name, "test"], test_size, seed)),
        )
        for name in order
    ]
    made = from_arrays(
        tasks,
        heads="per-task",
        outputs=[CLASSES[name] for name in order],
        names=list(order),
        name="text-stream",
        dtype=torch.int64,
    )
    settings = {"order": list(order), "tokens": tokens, "train_size": train_size, "test_size": test_size}
    return replace(made, settings={**made.settings, **settings, "seed": seed})


def _texts(data_root: str | Path | None) -> dict[tuple[str, str], Rows]:
    """(task, split) -> texts and labels, in the order of the file."""
    _, files = find_verified(TEXT_STREAM, data_root)
    (content,) = files.values()
    found: dict[tuple[str, str], Rows] = {}
    for line in lzma.decompress(content).decode().splitlines():
        row = json.loads(line)
        found.setdefault((row["task"], row["split"]), []).append((row["text"], int(row["label"])))
    return found


def _drawn(rows: Rows, size: int | None, seed: int) -> Rows:
    if size is None or size >= len(rows):
        return rows
    chosen = np.random.RandomState(seed).permutation(len(rows))[:size]
    return [rows[position] for position in chosen]


def _tokenizer(tokens: int, data_root: str | Path | None) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UnsupportedError(
            "the text stream needs the package `tokenizers`: pip install 'orthocl[integrations]'"
        ) from error
    _, files = find_verified(MINILM, data_root)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)
    return tokenizer


def _samples(tokenizer: Any, rows: Rows) -> tuple[Tensor, Tensor]:
    encoded = tokenizer.encode_batch([text for text, _ in rows])
    return torch.tensor([each.ids for each in encoded]), torch.tensor([label for _, label in rows])
