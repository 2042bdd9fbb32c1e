"""Names to methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from orthocl.errors import SettingsError, unknown_name
from orthocl.methods.adam_nscl import AdamNSCL
from orthocl.methods.agem import AGEM, AGEMNT
from orthocl.methods.base import Method
from orthocl.methods.der import DERpp
from orthocl.methods.er import ER
from orthocl.methods.ewc import EWC
from orthocl.methods.gpm import GPM
from orthocl.methods.joint import Joint
from orthocl.methods.kron_ogd import KronOGD
from orthocl.methods.mas import MAS
from orthocl.methods.ogd import OGD
from orthocl.methods.ogd_plus import OGDPlus
from orthocl.methods.orfit import ORFit
from orthocl.methods.pca_ogd import PCAOGD
from orthocl.methods.sgd import SGD
from orthocl.methods.sgp import SGP
from orthocl.methods.si import SI
from orthocl.methods.sketch_ogd import SketchOGD
from orthocl.methods.stable_sgd import StableSGD

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        *(SGD, OGD, OGDPlus, PCAOGD, AGEM, AGEMNT, EWC, SI, MAS, StableSGD),
        *(KronOGD, GPM, SGP, AdamNSCL, SketchOGD, ORFit, ER, DERpp, Joint),
    )
}


def make_method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """A method by its registry name, with hyperparameters checked by name and type.

    >>> make_method("ogd", {"memory_per_task": 50})
    OGD(memory_per_task=50, variant='gtl', engine='auto', storage=None, input_cache=...)
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    kind = METHODS[name]
    hints = get_type_hints(kind, include_extras=True)
    known = [item.name for item in fields(kind) if item.init]
    for key, value in (settings or {}).items():
        if key not in known:
            raise unknown_name(f"setting of {name}", key, known)
        _check(name, key, value, hints[key])
    return kind(**(settings or {}))


def _check(method: str, key: str, value: Any, hint: Any) -> None:
    choices = get_args(hint) if get_origin(hint) not in (Literal, None) else (hint,)
    literals = [option for choice in choices if get_origin(choice) is Literal for option in get_args(choice)]
    kinds = tuple(choice for choice in choices if isinstance(choice, type))
    accepted = value in literals or (
        isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)
    )
    if accepted or (float in kinds and isinstance(value, int) and not isinstance(value, bool)):
        return
    expected = " or ".join([repr(option) for option in literals] + [kind.__name__ for kind in kinds])
    raise SettingsError(f"{method}: {key} must be {expected.replace('NoneType', 'None')}, got {value!r}")
