"""Held weights: does anybody else hold the parameters themselves, to read them while a task is learnt?

While the tangent adapter is on, a parameter lacks the adapter's share. Whoever asks the model for it gets it complete;
whoever has put it in a list before (an average of the weights, a second optimizer) reads it past the model, which no
hook can notice. But Python's garbage collector knows who refers to it.
"""

from __future__ import annotations

import gc
import weakref
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orthocl.methods.learner import Learner
    from orthocl.tangents.adapter import Adapter


def held_elsewhere(learner: Learner, adapter: Adapter | None = None) -> bool:
    """Whether a list, a dict or any other object besides the model and its optimizer holds a protected parameter.

    It takes some 0.1 s. A single parameter in a local variable of a function is not seen.

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
    known = [parameters, *learner.own_lists, learner.optimizer.state]
    known += [module.__dict__["_parameters"] for module in learner.model.modules()]
    known += [group["params"] for group in learner.optimizer.param_groups]
    known += [each for owner in (learner.ranks, adapter) if owner is not None for each in owner.own_lists]
    own = {id(container) for container in known}
    if any(weakref.getweakrefcount(parameter) for parameter in parameters):
        return True
    return any(
        id(holder) not in own and not isinstance(holder, FrameType)
        for holder in gc.get_referrers(*parameters)
    )
