"""Plain training: the baseline that forgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from orthocl.methods.base import Method


@dataclass
class SGD(Method):
    """Train on each task as it comes, with no memory of the others.

    Paper: section 3.1; the rule w <- w - lr * gradient.
    """

    name: ClassVar[str] = "sgd"
