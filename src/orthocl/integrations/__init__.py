"""Callbacks for the trainers that people use: `orthocl.integrations.transformers`, `orthocl.integrations.lightning`.

accelerate needs none: give `orthocl.attach` the model and the optimizer, prepared or not. For its checkpoints there is
`orthocl.integrations.accelerate.keep_memory`.
"""

from orthocl.integrations.session import Session

__all__ = ["Session"]
