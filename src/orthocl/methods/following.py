"""Following the model: it may grow, be converted or be built anew between tasks, and the memory goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from orthocl.errors import SettingsError, StoreError, UnsupportedError, warn
from orthocl.methods.guard import marks
from orthocl.methods.halfway import Halfway
from orthocl.methods.saved_state import check_saved, check_saved_settings
from orthocl.storage import converted, moved
from orthocl.tangents.growing import has_grown

if TYPE_CHECKING:
    from orthocl.methods.learner import Learner


def follow_growth(learner: Learner) -> None:
    """Protect parameters that have got longer or have come since the last task."""
    named = dict(learner.model.named_parameters())
    same = all(named.get(name) is parameter for name, parameter in learner.parameters.items())
    if learner.find_protected is not None and not (same and named.keys() <= learner.guard.known):
        present, known = learner.find_protected(), learner.guard.known
        grown = _grown_parameters(learner.model, learner.parameters, present, known)
        trained = {
            id(p) for each in learner.optimizers for group in each.param_groups for p in group["params"]
        }
        _check_in_optimizer(grown, learner.parameters, trained)
        if grown:
            _grow(learner, {name: tuple(p.shape) for name, p in learner.parameters.items()}, grown)
    learner.guard.known = set(named)


def follow_precision(learner: Learner) -> None:
    """Convert what the method keeps of samples and weights, if the model was converted since the last task."""
    now = next(iter(learner.parameters.values())).dtype
    if now != learner.dtype:
        learner.method.load_state_dict(converted(learner.method.state_dict(), learner.dtype, now), learner)
        learner.dtype = now


def follow_weights(learner: Learner) -> None:
    """Notice weights that have changed since the last task ended; the method takes anew what it can."""
    guard = learner.guard
    if not guard.changed(learner.parameters):
        return
    with learner.full_precision():
        cost = learner.method.weights_changed(learner)
    guard.left = [marks(learner.parameters)]
    if cost:
        warn(
            "the weights have changed since the last task ended (others were loaded, averaged or trained outside "
            f"`learning`): {cost}"
        )


def restore(learner: Learner, state: dict[str, Any]) -> None:
    """Restore the state of a learner, also into a model that has grown since; all of it or nothing."""
    method = learner.method
    check_saved(state)
    if state.get("method") != method.name:
        raise StoreError(f"this is a state of method {state.get('method')!r}, not of {method.name!r}")
    shapes = {name: list(p.shape) for name, p in learner.parameters.items()}
    saved = {name: tuple(shape) for name, shape in state["parameters"].items()}
    same = state["parameters"] == shapes
    if not same and not all(n in shapes and has_grown(old, shapes[n]) for n, old in saved.items()):
        odd = sorted(set(map(str, state["parameters"].items())) ^ set(map(str, shapes.items())))
        raise StoreError(f"this state belongs to another model; protected parameters that differ: {odd[:4]}")
    check_saved_settings(state, method.settings())
    before, draws = method.state_dict(), learner.generator.get_state()
    given = moved(state["state"], learner.device)
    try:
        if same:
            method.load_state_dict(given, learner)
        else:
            _restore_smaller(learner, given, saved)
        learner.generator.set_state(state["random"])
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        method.load_state_dict(before, learner)
        learner.generator.set_state(draws)
        raise StoreError(f"this state does not fit {method.name} ({error!r}): nothing was loaded") from error
    learner.tasks_done = state["tasks_done"]
    learner.guard.left = [dict(zip(names, rows, strict=True)) for names, rows in state.get("weights", [])]
    learner.halfway = Halfway.from_state_dict(state.get("halfway"))


def _restore_smaller(
    learner: Learner, state: Mapping[str, Any], saved: Mapping[str, tuple[int, ...]]
) -> None:
    """Restore the state of the model as it was, then let it grow."""
    present = learner.parameters
    like = next(iter(present.values())).detach()
    learner.protect({name: nn.Parameter(like.new_zeros(shape)) for name, shape in saved.items()})
    try:
        learner.method.load_state_dict(state, learner)
    finally:
        learner.protect(present)
    _grow(learner, saved, present)


def _grow(
    learner: Learner, earlier: Mapping[str, tuple[int, ...]], parameters: dict[str, nn.Parameter]
) -> None:
    learner.protect(parameters)
    with learner.full_precision():
        learner.method.grow(learner, earlier)


def _grown_parameters(
    model: nn.Module,
    protected: Mapping[str, nn.Parameter],
    present: Mapping[str, nn.Parameter],
    known: Iterable[str],
) -> dict[str, nn.Parameter]:
    """The parameters to protect from now on, if the model has grown since `protected` were found; else none.

    Args:
        model: the model.
        protected: the parameters that are protected, as they were found.
        present: those that would be found now.
        known: names of all parameters that the model had before.
    """
    named = dict(model.named_parameters())
    for name, parameter in protected.items():
        new = named.get(name)
        if new is None or not has_grown(parameter.shape, new.shape):
            raise UnsupportedError(
                f"the protected parameter {name!r} of shape {tuple(parameter.shape)} "
                + ("is gone" if new is None else f"has the shape {tuple(new.shape)} now")
                + ": only new layers and more outputs (a longer first axis) can be added between tasks"
            )
        if new is not parameter and not torch.equal(new.detach()[: len(parameter)], parameter.detach()):
            warn(
                f"the parameter {name!r} was replaced by one that does not begin with its values: earlier outputs "
                "have changed. Copy the old values into the first rows (`orthocl.nets.grown_linear` does)",
            )
    kept = {name for name in protected if named[name] is not protected[name]}
    added = present.keys() - set(known)
    if not kept and not added:
        return {}
    return {name: p for name, p in named.items() if name in protected or name in added}


def _check_in_optimizer(
    grown: Mapping[str, nn.Parameter], protected: Mapping[str, nn.Parameter], known: set[int]
) -> None:
    """Reject new parameters that the attached optimizer does not train."""
    missing = [n for n, p in grown.items() if p is not protected.get(n) and id(p) not in known]
    if missing:
        raise SettingsError(
            f"the model has grown, but {len(missing)} parameters, such as {missing[0]!r}, are not in the optimizer: "
            'add them with optimizer.add_param_group({"params": [...]})'
        )
