"""`orthocl audit`: what did a fine-tuning lose, whatever method it used?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from torch import nn

from orthocl.cli.options import make_folder, working
from orthocl.errors import SettingsError
from orthocl.lab.reporting.certificate_card import certificate_page
from orthocl.methods.certificate import Certificate
from orthocl.nets.registry import NETS
from orthocl.storage import write_atomically
from orthocl.training.audit import audit, read_probes, read_weights

app = App(name="audit", help="What did a fine-tuning lose? Compare weights before and after, of any method.")


@app.default
def show_audit(
    model: str,
    before: Path,
    after: Path,
    /,
    *,
    samples: Annotated[
        list[Path] | None, Parameter(help="Independent samples (.npz: inputs, targets), may be repeated.")
    ] = None,
    remembered: Annotated[
        list[Path] | None, Parameter(help="Samples that the method has used, may be repeated.")
    ] = None,
    confidence: float = 0.95,
    most_lost: Annotated[
        float | None, Parameter(help="Exit with code 1 if more than this share may be lost.")
    ] = None,
    json: Annotated[Path | None, Parameter(help="Write the certificate as JSON.")] = None,
    html: Annotated[Path | None, Parameter(help="Write the certificate as a page.")] = None,
) -> None:
    """Compare two states of a model on samples of what it could do before.

    Example: orthocl audit my_model.py:make_model before.safetensors after.safetensors --samples old_task.npz

    Reported for each set of samples: the change of outputs, to first order and in all with a bound; accuracy before
    and after, and an upper limit on the share of samples lost; for models with LoRA adapters also how much the
    adapters of different tasks overlap, measured on the weights.

    Args:
        model: function without arguments that builds the model, as file.py:function or package.module:function.
        before: weights before, .safetensors or a state dict saved by torch.save.
        after: weights after.
        samples: samples that neither the method nor its tuning has seen: only these say what is lost on others.
        remembered: samples that the method has used.
        confidence: of the upper limits.
        most_lost: the largest upper limit to accept, such as 0.05.
        json: file to write.
        html: file to write.
    """
    for file in (json, html):
        make_folder(file)
    if not 0.5 <= confidence < 1:
        raise SettingsError(f"confidence is a probability of at least 0.5 and below 1, got {confidence}")
    if most_lost is not None and not samples:
        raise SettingsError("--most-lost needs independent samples: give --samples FILE.npz")
    network = _built(model)
    with working("comparing"):
        probes = [probe for path in samples or [] for probe in read_probes(path, network)]
        probes += [
            probe for path in remembered or [] for probe in read_probes(path, network, remembered=True)
        ]
        found = audit(network, read_weights(before), read_weights(after), probes, confidence=confidence)
    Console().print(str(found), highlight=False, markup=False, soft_wrap=True)
    _write(found, json, html)
    limits = [each.lost_at_most for each in found.probes if each.lost_at_most is not None]
    if most_lost is not None and max(limits, default=1.0) > most_lost:
        sys.exit(1)


def _built(spec: str) -> nn.Module:
    network = NETS[spec]()
    if not isinstance(network, nn.Module):
        raise SettingsError(f"{spec} returned a {type(network).__name__}, not a torch module")
    return network


def _write(found: Certificate, json: Path | None, html: Path | None) -> None:
    if json is not None:
        write_atomically(json, found.to_json().encode())
    if html is not None:
        write_atomically(html, certificate_page(found.to_dict()).encode())
