"""Training: the loop, and attaching methods to your own loop."""

from orthocl.training.attach import attach
from orthocl.training.audit import audit
from orthocl.training.evaluation import accuracy, evaluate, predict
from orthocl.training.loop import Observer, Progress, TrainSettings, train

__all__ = [
    "Observer",
    "Progress",
    "TrainSettings",
    "accuracy",
    "attach",
    "audit",
    "evaluate",
    "predict",
    "train",
]
