"""Whether a file can be the saved memory of a method, before anything of it is loaded."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from orthocl.errors import StoreError


def check_saved(state: Any) -> None:
    """Reject what cannot be the saved state of a learner."""
    kinds = {"method": str, "parameters": dict, "tasks_done": int, "random": Tensor, "state": dict}
    for key, kind in kinds.items():
        if not isinstance(state, dict) or not isinstance(state.get(key), kind):
            raise StoreError(f"this is not the saved state of a learner: its {key!r} is missing or damaged")


def check_saved_settings(state: dict[str, Any], settings: dict[str, Any]) -> None:
    """Reject the state of a method with other settings: it would fail a task later, or not at all."""
    saved = state.get("settings", {})
    for key, value in saved.items() if isinstance(saved, dict) else ():
        if key in settings and json.dumps(value) != json.dumps(settings[key]):
            raise StoreError(
                f"this state was saved with {key}={value!r}, the method here has {settings[key]!r}: use the same"
            )
