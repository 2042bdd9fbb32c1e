"""all-MiniLM-L6-v2 with low-rank adapters: a pretrained sentence encoder as a trunk for several heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from orthocl.errors import UnsupportedError
from orthocl.streams.datasets.locate import find_verified
from orthocl.streams.datasets.pretrained import MINILM

PADDING = 0
LENGTH_STEP = 8
"""Texts whose lengths round up to the same multiple of this are encoded together when nothing is learnt."""


class MiniLM(nn.Module):
    """The mean of the last layer's token vectors, 384 numbers per text; only the adapters are trained.

    Each adapted weight W becomes W + (alpha / rank) B A with the frozen pretrained W. Dropout is off.

    Args:
        rank: of the adapters; 0 trains all weights instead, without adapters.
        alpha: scale of the adapters.
        adapted: which linear layers carry adapters, by the last part of their names.
    """

    features = 384

    def __init__(self, rank: int = 8, alpha: int = 16, adapted: Sequence[str] = ("query", "value")):
        super().__init__()
        model = _pretrained()
        self.encoder = _with_adapters(model, rank, alpha, list(adapted)) if rank else model

    def forward(self, tokens: Tensor) -> Tensor:
        """Token numbers (samples, length), padded with 0 -> (samples, 384)."""
        tokens = tokens.long()
        lengths = (tokens != PADDING).sum(1).clamp(min=1)
        if torch.is_grad_enabled():
            return self._encode(tokens[:, : int(lengths.max())])
        # Padding costs as much as words: where nothing is learnt, texts of similar lengths go together.
        out = torch.empty(len(tokens), self.features, dtype=self._dtype(), device=tokens.device)
        steps = (lengths + LENGTH_STEP - 1) // LENGTH_STEP
        for step in steps.unique().tolist():
            for chosen in (steps == step).nonzero()[:, 0].split(32):
                out[chosen] = self._encode(tokens[chosen, : step * LENGTH_STEP]).to(out.dtype)
        return out

    def _dtype(self) -> torch.dtype:
        found: torch.dtype = next(self.encoder.parameters()).dtype
        return found

    def _encode(self, tokens: Tensor) -> Tensor:
        mask = (tokens != PADDING).long()
        vectors: Tensor = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(vectors.dtype)
        return (vectors * weights).sum(1) / weights.sum(1).clamp(min=1)


def _pretrained() -> Any:
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise UnsupportedError(
            "the network minilm-lora needs the packages transformers and peft: pip install 'orthocl[integrations]'"
        ) from error
    _, files = find_verified(MINILM)
    settings = json.loads(files["config.json"])
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertModel(transformers.BertConfig(**settings), add_pooling_layer=False)
    weights = load_safetensors(files["model.safetensors"])
    model.load_state_dict({name: weights[name] for name in model.state_dict() if name in weights})
    return model


def _with_adapters(model: Any, rank: int, alpha: int, adapted: list[str]) -> Any:
    peft: Any = import_module("peft")
    return peft.get_peft_model(
        model, peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=adapted, lora_dropout=0.0)
    )
