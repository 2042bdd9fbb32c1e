"""Methods by name, module or file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orthocl.checking import check_names, check_value, field_types
from orthocl.errors import SettingsError
from orthocl.methods.base import Method
from orthocl.registry import Registry


def _method(value: Any, spec: str) -> type[Method]:
    if isinstance(value, type) and issubclass(value, Method):
        return value
    if isinstance(value, Method):
        raise SettingsError(
            f"{spec} is an instance: give the class, and its settings separately ([methods.NAME] in a file, --set)"
        )
    raise SettingsError(f"{spec} is not a class derived from orthocl.Method")


METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "sgd": "orthocl.methods.sgd:SGD",
        "ogd": "orthocl.methods.ogd:OGD",
        "ogd+": "orthocl.methods.ogd_plus:OGDPlus",
        "pca-ogd": "orthocl.methods.pca_ogd:PCAOGD",
        "a-gem": "orthocl.methods.agem:AGEM",
        "a-gem-nt": "orthocl.methods.agem:AGEMNT",
        "ewc": "orthocl.methods.ewc:EWC",
        "si": "orthocl.methods.si:SI",
        "mas": "orthocl.methods.mas:MAS",
        "stable-sgd": "orthocl.methods.stable_sgd:StableSGD",
        "kron-ogd": "orthocl.methods.kron_ogd:KronOGD",
        "gpm": "orthocl.methods.gpm:GPM",
        "sgp": "orthocl.methods.sgp:SGP",
        "adam-nscl": "orthocl.methods.adam_nscl:AdamNSCL",
        "sketch-ogd": "orthocl.methods.sketch_ogd:SketchOGD",
        "orfit": "orthocl.methods.orfit:ORFit",
        "er": "orthocl.methods.er:ER",
        "der++": "orthocl.methods.der:DERpp",
        "joint": "orthocl.methods.joint:Joint",
    },
    _method,
)


def make_method(spec: str, settings: Mapping[str, Any] | None = None) -> Method:
    """A method by its name, module or file, with hyperparameters checked by name, type and sensible range.

    >>> make_method("ogd", {"memory_per_task": 50})
    OGD(memory_per_task=50, variant='gtl', engine='auto', storage=None, input_cache=...)
    """
    kind = METHODS[spec]
    settings = dict(settings or {})
    hints, name = field_types(kind), kind.name or spec
    check_names(f"setting of {name}", settings, hints)
    for key, value in settings.items():
        check_value(f"{key} of {name}", value, hints[key], kind.minimum.get(key), kind.maximum.get(key))
    method = kind(**settings)
    method.check_settings()
    return method
