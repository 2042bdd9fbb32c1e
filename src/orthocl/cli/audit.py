"""`orthocl audit`: what did a fine-tuning lose, whatever method it used?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from orthocl.checking import check_value
from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import make_folder, working
from orthocl.cli.output import remark, report, say, suggest
from orthocl.errors import SettingsError, unknown_name

if not HELP_ONLY:
    from orthocl.lab.reporting.certificate_card import certificate_page
    from orthocl.methods.certificate import check_confidence
    from orthocl.nets.registry import build_net
    from orthocl.storage import write_output
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
    out: Annotated[
        list[Path] | None, Parameter(help="Write the certificate: .json or .html (a page), may be repeated.")
    ] = None,
) -> None:
    """Compare two states of a model on samples of what it could do before.

    Example: orthocl audit my_model.py:make_model before.safetensors after.safetensors --samples old_task.npz

    Reported for each set of samples: the change of outputs, to first order and in all; accuracy before and after, and
    an upper limit on the share of samples lost; all limits hold together. For models with LoRA adapters also how much
    the adapters of different tasks overlap, measured on the weights. Weights, samples and outputs that are not finite
    numbers are refused with exit code 2, and so are labels that the model has no output for.

    Args:
        model: function without arguments that builds the model, as file.py:function or package.module:function.
        before: weights before, .safetensors or a state dict saved by torch.save.
        after: weights after.
        samples: samples that neither the method nor its tuning has seen: only these say what is lost on others.
        remembered: samples that the method has used.
        confidence: of the upper limits.
        most_lost: the largest upper limit to accept, such as 0.05.
        out: files to write, .json or .html.
    """
    for file in out or ():
        if file.suffix not in (".json", ".html"):
            raise unknown_name("suffix of a certificate", file.suffix or str(file), (".json", ".html"))
        make_folder(file)
    check_confidence(confidence)
    if most_lost is not None:
        check_value("--most-lost", most_lost, float, minimum=0, maximum=1)
    if most_lost is not None and not samples:
        raise SettingsError("--most-lost needs independent samples: give --samples FILE.npz")
    network = build_net(model)
    with working("comparing"):
        probes = [probe for path in samples or [] for probe in read_probes(path, network)]
        probes += [
            probe for path in remembered or [] for probe in read_probes(path, network, remembered=True)
        ]
        found = audit(network, read_weights(before), read_weights(after), probes, confidence=confidence)
    say(str(found))
    report(**found.to_dict())
    for file in out or ():
        text = found.to_json() if file.suffix == ".json" else certificate_page(found.to_dict())
        write_output(file, text.encode())
        remark(f"wrote {file}")
    suggest(f"open {out[0]}" if out else "the same command with --out certificate.html writes a page")
    limits = [each.lost_at_most for each in found.probes if each.lost_at_most is not None]
    if most_lost is not None and max(limits, default=1.0) > most_lost:
        sys.exit(1)
