"""Held weights: does anybody else hold the parameters themselves, to read them while a task is learnt?

While the tangent adapter is on, a parameter lacks the adapter's share. Whoever asks the model for it gets it complete;
whoever has kept it (an average of the weights, a second optimizer, a variable) reads it past the model, which no hook
can notice. But Python's garbage collector knows which objects refer to it, the frames of running functions know their
variables, and its count of references says when to look again (`Adapter.newly_held`).
"""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections.abc import Collection, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orthocl.methods.learner import Learner
    from orthocl.tangents.adapter import Adapter


def held_elsewhere(learner: Learner, adapter: Adapter | None = None) -> bool:
    """Whether an object or a variable, besides those of the model and its optimizer, holds a protected parameter.

    It takes some 0.1 s.

    Args:
        learner: the learner.
        adapter: the adapter that is on, if one is.

    >>> import torch, orthocl
    >>> model = torch.nn.Linear(2, 1)
    >>> learner = orthocl.attach(orthocl.OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> held_elsewhere(learner)
    False
    >>> average = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    >>> held_elsewhere(learner)
    True
    """
    parameters = list(learner.parameters.values())
    if any(weakref.getweakrefcount(parameter) for parameter in parameters):
        return True
    known = [parameters, *learner.own_lists, learner.optimizer.state]
    known += [module.__dict__["_parameters"] for module in learner.model.modules()]
    known += [group["params"] for group in learner.optimizer.param_groups]
    known += [each for owner in (learner.ranks, adapter) if owner is not None for each in owner.own_lists]
    own = {id(container) for container in known}
    holders = gc.get_referrers(*parameters)
    if any(id(holder) not in own and not isinstance(holder, FrameType) for holder in holders):
        return True
    return _in_a_variable({id(parameter) for parameter in parameters})


def _in_a_variable(parameters: Collection[int]) -> bool:
    """Whether a variable of a running function, in any thread, is one of these: the collector does not see those."""
    return any(id(value) in parameters for frame in _frames() for value in _variables(frame))


def _frames() -> Iterator[FrameType]:
    """Running functions, but for those of torch and of this library, which keep nothing for later."""
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("orthocl", "torch"):
                yield frame
            frame = frame.f_back


def _variables(frame: FrameType) -> list[object]:
    found = frame.f_locals
    values = list(found.values())
    # Before Python 3.13 a copy, which the frame would keep, and with it what the function has long let go of. While a
    # debugger traces the function, the copy is written back to its variables.
    traced = sys.gettrace() is not None or frame.f_trace is not None
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and not traced:
        found.clear()
    return values
