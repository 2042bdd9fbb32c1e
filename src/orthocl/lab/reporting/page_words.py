"""The words of the page: what metrics mean, and what the monitors of a method say and when to worry."""

from __future__ import annotations

from typing import Any

MEANINGS = {
    "aac": "mean accuracy over all tasks after the last",
    "bwt": "final accuracy minus accuracy just after learning, over earlier tasks",
    "fwt": "accuracy just before learning a task minus that of the untrained network",
    "forgetting": "best accuracy before the last task minus the final one, over earlier tasks",
    "seconds": "by the clock on the wall, on a machine that may have been busy",
    "memory": "the most bytes that the method kept at any time, caches included",
    "memorised": "how much the accuracy on remembered samples changed",
    "learning-accuracy": "mean accuracy on each task just after learning it",
}

MONITORS: dict[str, dict[str, Any]] = {
    "leak": {
        "title": "Leak into the protected space",
        "meaning": "Share of a task's movement that lies in the directions that the method keeps; 0 in exact "
        "arithmetic. With energy below 1 it keeps a part only, and says nothing about the rest.",
        "log": True,
        "limit": 1e-4,
        "limit_text": "more than rounding",
        "good": "Only rounding: the projection keeps its promise.",
        "bad": "More than rounding: something moved the weights past the projection. Check weight decay, batch "
        "statistics and optimizers with state.",
        "above": "bad",
    },
    "drift_cosine": {
        "title": "Do the stored tangents still point the right way?",
        "meaning": "Cosine between the stored tangents of earlier tasks and those at today's weights; 1: unchanged.",
        "limit": 0.7,
        "limit_text": "turned by 45 degrees",
        "good": "The stored directions are still those that matter.",
        "bad": "The tangents have turned by more than 45 degrees, so yesterday's directions are protected. Methods "
        "that renew them (ogd+), smaller learning rates or wider networks help.",
        "above": "good",
        "zero": True,
        "top": 1.0,
    },
    "drift_outside": {
        "title": "How much of today's tangents is unprotected",
        "meaning": "Share of today's tangents of earlier tasks that lies outside the stored span; 0: all protected.",
        "limit": 0.5,
        "limit_text": "half unprotected",
        "good": "Most of what earlier tasks need is protected.",
        "bad": "More than half is unprotected: remember more samples per task, or renew the memory (ogd+).",
        "above": "bad",
        "zero": True,
    },
    "drift_norm": {
        "title": "Length of the tangents",
        "meaning": "Length of today's tangents of earlier tasks relative to the stored ones; 1 means unchanged.",
        "zero": True,
    },
    "learning_rate_limit": {
        "title": "Stability limit of the learning rate, for squared loss",
        "meaning": "Above it, gradient descent on the squared error of the linearised network diverges. Cross-entropy, "
        "whose curvature is smaller, stays stable at several times this rate: read it as a trend, not as an alarm.",
        "log": True,
    },
    "rank": {
        "title": "Protected directions",
        "meaning": "Dimension of the protected space: each takes one direction away from later tasks.",
        "zero": True,
    },
    "tangents": {
        "title": "Stored tangents",
        "meaning": "Gradients of remembered outputs in the memory; more than the rank means that some say the same.",
        "zero": True,
    },
    "input_directions": {
        "title": "Protected input directions",
        "meaning": "Directions of the layers' inputs that are closed to updates, over all layers; a layer with none "
        "left can learn nothing more.",
        "zero": True,
    },
    "error_mean": {
        "title": "Compression error, mean",
        "meaning": "Relative distance of the stored tangents from the true ones; 0 means that they are exact.",
        "zero": True,
    },
    "error_worst": {
        "title": "Compression error, worst",
        "meaning": "The largest relative distance of a stored tangent from the true one.",
        "zero": True,
    },
    "memory_bytes": {
        "title": "Memory of the method",
        "meaning": "The most bytes that the method kept during a task, caches included.",
        "unit": "bytes",
        "zero": True,
    },
}
"""Name -> title, meaning and, where there is a limit, what it means to be on either side of it."""
