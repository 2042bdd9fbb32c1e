"""attach: a method on your own model, optimizer and loop.

What a projecting method does
-----------------------------
It notes where the weights are when a task begins. After every `optimizer.step()` it takes the protected part of all
that the task has changed so far out of the weights. Gradients and the optimizer's state stay as they are, so any
optimizer, scheduler, clipping or penalty may be used. For SGD with momentum and weight decay this is the trajectory of
OGD on projected gradients; for Adam it is that of projected updates. Optimizers that keep a second sequence of weights
and train another one (schedule-free) are refused: only one of the two would be protected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from orthocl.checking import check_function, whole_number
from orthocl.errors import SettingsError, UnsupportedError, unknown_name
from orthocl.methods.base import Method
from orthocl.methods.composite import require_method
from orthocl.methods.learner import Learner, Loss
from orthocl.methods.ranks import same_draws, unwrapped
from orthocl.nets.heads import find_heads
from orthocl.nets.inputs import Inputs
from orthocl.nets.outputs import Outputs, check_outputs
from orthocl.streams.batches import SplitBatch
from orthocl.training.losses import default_loss
from orthocl.training.seeds import derive_generator, draw_seed


def attach(
    method: Method,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    protect: Iterable[str] | None = None,
    loss: Loss | None = None,
    batch_norm: Literal["freeze", "keep"] = "freeze",
    seed: int | None = None,
    tasks: int | None = None,
    example_input: Inputs | None = None,
    outputs: Outputs = None,
    batch: SplitBatch | None = None,
    every: int = 1,
) -> Learner:
    """Attach a method to a model and its optimizer; train as always inside `with learner.learning(data):`.

    From then on `optimizer.step()` applies the method. `learner.detach()` removes everything again.

    Args:
        method: such as `orthocl.OGDPlus(memory_per_task=100)`.
        model: any module. Under DistributedDataParallel all processes attach, best to the wrapped model: they then
            remember the same samples and take the same steps.
        optimizer: any torch optimizer over its parameters, or a list of several for different parameters.
        protect: names (or leading parts of names, such as "encoder") of the parameters that tasks share. By default all
            trainable ones except the heads of a `MultiHead`.
        loss: (outputs, targets) -> mean loss, for methods that need the loss of old samples; by default cross-entropy
            for integer targets, mean squared error for others.
        batch_norm: batch statistics that keep moving change old outputs whatever the projection does: "freeze" them
            after the first task, or "keep" them moving.
        seed: seed for the method's own random choices, such as which samples it remembers; None draws one from torch's
            generator, so that `torch.manual_seed` decides.
        tasks: how many tasks to expect, so that a memory that will not fit is noticed in time.
        example_input: a batch of inputs, to notice that now; otherwise it is noticed when the first task begins.
        outputs: what is remembered, (model, inputs) -> tensor of shape (samples, outputs), or a dict of such functions
            by name for several outputs. A function may take (model, inputs, targets); `orthocl.nets.selectors` has
            ready-made ones. By default the tensor that the model returns, its `.logits`, the entry "logits" of a dict
            or the only tensor of a tuple.
        batch: a batch of your loader -> (inputs, targets). Inputs are a tensor (the model is called as model(x)), a
            tuple (model(*inputs)) or a dict (model(**inputs)). By default batches are (inputs, targets), (x, z, ...,
            targets) or dicts with "labels".
        every: steps after which a projecting method restores its constraint; with several optimizers, steps of any of
            them. Above 1 it costs less, and the constraint holds at every such step and at the end of a task; but in
            between gradients are taken elsewhere, so the trajectory is another one.

    Raises:
        UnsupportedError: if the method cannot keep its promise with this model and optimizer.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> from orthocl.methods import OGD
    >>> learner = attach(OGD(memory_per_task=1), model, optimizer)
    >>> sorted(learner.parameters)
    ['bias', 'weight']
    >>> learner.detach()
    """
    if not isinstance(batch_norm, str) or batch_norm not in ("freeze", "keep"):
        raise unknown_name("batch_norm policy", batch_norm, ["freeze", "keep"])
    optimizers = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
    for each in optimizers or (optimizer,):
        _check_arguments(method, model, each)
    if loss is not None:
        check_function("loss", loss, "(outputs, targets) -> mean loss of a batch")
    if batch is not None:
        check_function("batch", batch, "a batch of the loader -> (inputs, targets)")
    seed = None if seed is None else whole_number("seed", seed)
    tasks = None if tasks is None else whole_number("tasks", tasks, 1)
    every = whole_number("every", every, 1)
    check_outputs(outputs)
    method.check_settings()
    model, ranks = unwrapped(model)
    protect = _names(protect)
    optimizers = tuple(wrapped_optimizer(each) for each in optimizers)
    parameters = protected_parameters(model, protect)
    _check_optimizers(method, optimizers, parameters)
    learner = Learner(
        model=model,
        optimizer=optimizers[0],
        optimizers=optimizers,
        method=method,
        parameters=parameters,
        loss=loss or default_loss,
        generator=derive_generator("method", draw_seed() if seed is None else seed),
        batch_norm=batch_norm,
        tasks_expected=tasks,
        outputs=outputs,
        batch=batch,
        ranks=ranks,
        every=every,
        find_protected=partial(protected_parameters, model, protect),
    )
    same_draws(learner.generator, ranks)
    reason = method.refusal(learner)
    if reason:
        raise UnsupportedError(reason)
    learner.guard.check_precision(parameters)
    if example_input is not None:
        learner.check_memory(example_input)
    for each in optimizers:
        learner.hooks += _hooks(learner, each)
    return learner


def _hooks(learner: Learner, optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        optimizer.register_step_pre_hook(partial(_before_step, learner)),
        optimizer.register_step_post_hook(partial(_after_step, learner)),
    ]


def wrapped_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that takes the steps, where another object (of accelerate, of Lightning) stands for it."""
    inner = getattr(optimizer, "optimizer", None)
    return wrapped_optimizer(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _before_step(
    learner: Learner, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Act on the gradients: now, or after the closure if `optimizer.step(closure)` will compute them."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    learner.note_weights()
    learner.guard.check_frozen(learner.parameters)
    if closure is None:
        with learner.full_precision():
            learner.use_gradient(first=optimizer is learner.optimizer)
        return None

    def closure_and_method() -> Any:
        value = closure()
        with torch.no_grad(), learner.full_precision():
            learner.use_gradient(first=optimizer is learner.optimizer)
        return value

    return (*args[:1], closure_and_method, *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"}


def _after_step(learner: Learner, optimizer: Any, args: Any, kwargs: Any) -> None:
    with learner.full_precision():
        learner.after_step()


def protected_parameters(model: nn.Module, protect: Iterable[str] | None = None) -> dict[str, nn.Parameter]:
    """The trainable parameters that tasks share, by full name.

    >>> list(protected_parameters(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), protect=["1"]))
    ['1.weight', '1.bias']
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    protect = _names(protect)
    if protect is None:
        found_heads = find_heads(model)
        heads = set() if found_heads is None else {p for _, p in found_heads.head_parameters()}
        chosen = {name: p for name, p in trainable.items() if p not in heads}
    else:
        chosen = {}
        for prefix in protect:
            found = {n: p for n, p in trainable.items() if n == prefix or n.startswith(prefix + ".")}
            if not found:
                raise unknown_name("trainable parameter", prefix, trainable)
            chosen |= found
    lazy = [name for name, p in chosen.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise UnsupportedError(
            f"parameter {lazy[0]!r} of a lazy module has no shape yet: send one batch through the model before `attach`"
        )
    if not chosen:
        raise UnsupportedError(
            "there is no trainable parameter to protect: unfreeze some, or name them with protect=[...]"
        )
    return chosen


def _names(protect: object) -> list[str] | None:
    """What to protect, as a list of names; None for everything that tasks share."""
    if protect is None:
        return None
    names: list[Any] = [protect]
    if not isinstance(protect, str):
        with suppress(TypeError):  # what cannot be iterated is named below
            names = list(protect)  # type: ignore[call-overload]
    for name in names:
        if not isinstance(name, str):
            raise SettingsError(
                f"protect must be names of parameters, or leading parts of names such as 'encoder', got "
                f"{_described(name)}"
            )
    return names


def _check_arguments(method: object, model: object, optimizer: object) -> None:
    """The most common mistake is a wrong argument, or arguments in the wrong order."""
    if isinstance(method, nn.Module | torch.optim.Optimizer) and Method in {
        base for value in (model, optimizer) for base in type(value).__mro__
    }:
        raise SettingsError(
            "the arguments of attach are in the wrong order: use attach(method, model, optimizer)"
        )
    require_method(method)
    if not isinstance(model, nn.Module):
        raise SettingsError(
            f"expected a model (a torch.nn.Module) as the second argument of attach, got {_described(model)}: "
            "attach(method, model, optimizer)"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingsError(
            f"expected an optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1), as the third argument of "
            f"attach, got {_described(optimizer)}: attach(method, model, optimizer)"
        )


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"


def _check_optimizers(
    method: Method, optimizers: Sequence[torch.optim.Optimizer], parameters: dict[str, nn.Parameter]
) -> None:
    whole = method.overrides("transform") or (method.overrides("after_step") and method.uses_step)
    if len(optimizers) > 1 and whole:
        raise UnsupportedError(
            f"{method.name} acts on the gradient or the step of all weights, which {len(optimizers)} optimizers "
            "take in parts: use one optimizer with a parameter group for each part"
        )
    for optimizer in optimizers:
        if method.projects and all(callable(getattr(optimizer, name, None)) for name in ("train", "eval")):
            raise UnsupportedError(
                f"{type(optimizer).__name__} trains one sequence of weights and evaluates another, of which "
                f"{method.name} would protect only the first: use an optimizer that trains the weights which it leaves "
                "in the model, such as AdamW with a schedule"
            )
    known = {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in parameters.items() if p not in known]
    if missing:
        raise SettingsError(
            f"{len(missing)} protected parameters are not in the optimizer, such as {missing[0]!r}: "
            "build the optimizer on model.parameters(), or name what to protect with protect=[...]"
        )
