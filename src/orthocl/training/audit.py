"""audit: what did somebody's fine-tuning lose? Two states of a model and samples are all it takes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError
from orthocl.methods.adapter_overlap import adapter_overlaps, summary, without_new_adapters
from orthocl.methods.certificate import CONFIDENCE, Certificate, certify
from orthocl.nets.heads import find_heads
from orthocl.nets.outputs import Outputs
from orthocl.streams.datasets.npz import read_npz
from orthocl.tangents.retention import Probe

MOST_BYTES = 1 << 33


def audit(
    model: nn.Module,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    probes: Sequence[Probe] = (),
    *,
    outputs: Outputs = None,
    confidence: float = CONFIDENCE,
    together: bool = True,
) -> Certificate:
    """A certificate for weights trained by any method, and how much its adapters overlap.

    Args:
        model: a model of the right shape; its own weights do not matter.
        before: its state dict before the fine-tuning. Adapters that only `after` has did nothing then.
        after: its state dict after it.
        probes: samples of what the model could do before.
        outputs: which outputs are compared, as for `attach`; by default a tensor, `.logits`, and so on.
        confidence: of the limits on what was lost, at least 0.5 and below 1.
        together: whether they hold for all probes at once, or each on its own.

    Raises:
        DataError: weights, samples or outputs that are not finite numbers, or labels that no output belongs to.

    >>> model = nn.Linear(2, 2)
    >>> before = {name: value.clone() for name, value in model.state_dict().items()}
    >>> after = {**before, "bias": before["bias"] + 1}
    >>> found = audit(model, before, after, [Probe("old samples", torch.randn(20, 2))])
    >>> found.probes[0].change.measured <= found.probes[0].change.total + 1e-9
    True
    """
    complete = without_new_adapters(before, after)
    _load(model, complete, "before")
    found = certify(
        model,
        complete,
        after,
        probes,
        method="audit",
        outputs=outputs,
        confidence=confidence,
        together=together,
    )
    overlaps = adapter_overlaps(after, before)
    if not overlaps:
        return found
    return replace(found, adapters=tuple(overlaps), notes=(*found.notes, summary(overlaps)))


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a file: safetensors, or tensors saved by `torch.save`, read without running any code.

    Raises:
        DataError: for any other file, and for one that holds more than tensors.
    """
    if not path.is_file():
        raise DataError(
            f"{path} is not a file: give weights as .safetensors, or as a state dict saved by torch.save"
        )
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{path} cannot be read safely ({type(error).__name__}): save the state dict, and nothing else, with "
            "safetensors.torch.save_file or torch.save(model.state_dict(), path)"
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DataError(f"{path} holds no state dict: save model.state_dict()")
    return {str(name): value for name, value in state.items()}


def read_probes(path: Path, model: nn.Module, *, remembered: bool = False) -> list[Probe]:
    """Samples from an .npz file: arrays inputs and targets, or inputs_NAME and targets_NAME for several sets.

    Targets may be left out. A NAME that is a head of the model selects it.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file: give an .npz file with the arrays inputs and targets")
    arrays = read_npz(path, most_bytes=MOST_BYTES)
    names = [name for name in arrays if name == "inputs" or name.startswith("inputs_")]
    if not names:
        raise DataError(
            f"{path} holds {', '.join(list(arrays)[:5])}: expected the arrays inputs and targets, or inputs_NAME and "
            "targets_NAME for several sets of samples"
        )
    heads, dtype = find_heads(model), _dtype(model)
    probes = []
    for name in names:
        own = name.removeprefix("inputs").removeprefix("_")
        inputs = torch.from_numpy(arrays[name].copy())
        targets = arrays.get(f"targets_{own}" if own else "targets")
        head = own if heads is not None and own in heads.names else None
        probes.append(
            Probe(
                own or path.stem,
                inputs.to(dtype) if inputs.is_floating_point() else inputs,
                None if targets is None else torch.from_numpy(targets.copy()),
                head,
                remembered,
            )
        )
    return probes


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _load(model: nn.Module, weights: Mapping[str, Tensor], when: str) -> None:
    expected = model.state_dict()
    missing = [name for name in expected if name not in weights]
    extra = [name for name in weights if name not in expected]
    if missing or extra:
        what = f"lack {missing[0]!r}" if missing else f"hold {extra[0]!r}, which the model does not have"
        raise SettingsError(
            f"the weights {when} do not fit the model: they {what} ({len(missing)} missing, {len(extra)} unknown). Let "
            "the function build the model exactly as it was trained, adapters included"
        )
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise SettingsError(f"the weights {when} do not fit the model: {error}") from error
