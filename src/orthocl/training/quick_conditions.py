"""When quick steps may replace those of autograd: only where nothing can see the difference.

Quick steps call no module, build no graph and do not call `optimizer.step()`. So whatever depends on one of those
(hooks of any kind, a scheduler around the optimizer, modes of torch, a model or method that does more than it seems to)
makes the loop take plain steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from orthocl.methods.learner import Learner
from orthocl.nets.mlp import MLP
from orthocl.tangents.adapter_layer import AdaptedLinear
from orthocl.training.losses import default_loss

# Extensions of a module's behaviour, each a dict that is empty where there is none.
MODULE_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """The layers of a multilayer perceptron (flatten, then linear layers with ReLU in between), else None."""
    if type(model) not in (nn.Sequential, MLP) or not len(list(model.children())):
        return None
    modules = [m for m in model.children() if not (type(m) is nn.Dropout and m.p == 0)]
    first = modules[0] if modules else model
    if type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1):
        modules = modules[1:]
    linear = (m for m in modules[::2] if type(m) in (nn.Linear, AdaptedLinear))
    layers = [m for m in linear if isinstance(m, nn.Linear) and m.bias is not None]
    between = [m for m in modules[1::2] if type(m) is nn.ReLU]
    alternating = len(layers) == len(between) + 1 and len(layers) + len(between) == len(modules)
    own = {id(p) for layer in layers for p in (layer.weight, layer.bias)}
    distinct = len(own) == 2 * len(layers) == len(list(model.parameters()))
    trained = all(p.requires_grad and type(p) is nn.Parameter for p in model.parameters())
    return layers if alternating and distinct and trained else None


def hook_tables(model: nn.Module) -> list[dict[int, object]]:
    """The dicts that hold the hooks on a model's modules and on all modules: all empty if there are none."""
    tables = [getattr(module_hooks, name) for name in GLOBAL_HOOKS]
    for module in model.modules():
        tables += [getattr(module, name) for name in MODULE_HOOKS]
    return [table for table in tables if table is not None]


def has_tensor_hooks(parameters: Sequence[Tensor]) -> bool:
    """Whether hooks wait for the gradient of a parameter."""
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)


def why_not_quick(learner: Learner, inputs: Tensor, targets: Tensor) -> str | None:
    """Why a learner inside a task must take its steps with autograd, or None if quick steps are allowed.

    Args:
        learner: the learner.
        inputs: all inputs of the task.
        targets: their targets.
    """
    layers = linear_layers(learner.model)
    if layers is None:
        return (
            "quick steps exist only for multilayer perceptrons without dropout, with every parameter trained"
        )
    if any(1 in layer.weight.shape for layer in layers):
        return "products with a single unit may be computed in another order"  # such a matrix is its own transpose
    if len({(p.dtype, p.device.type) for p in learner.model.parameters()} | {(inputs.dtype, "cpu")}) > 1:
        return "quick steps need the CPU, and weights and inputs of the same type"
    flat = type(next(iter(learner.model.children()))) is nn.Flatten or inputs.dim() == 2
    if not flat or inputs.flatten(1).shape[1] != layers[0].in_features:
        return "the inputs do not fit the first layer as rows"
    if learner.loss is not default_loss or targets.dtype != torch.int64 or targets.dim() != 1:
        return "quick steps exist only for the cross-entropy of one class per sample"
    method = learner.method
    if not vars(type(method)).get("quick_steps") or method.overrides("penalty"):
        return f"method {method.name!r} does not declare `quick_steps`"
    return _why_not_plain_sgd(learner) or _who_watches(learner)


def _why_not_plain_sgd(learner: Learner) -> str | None:
    optimizer = learner.optimizer
    (group, *others) = optimizer.param_groups
    switches = ("momentum", "weight_decay", "maximize", "foreach", "fused", "differentiable")
    if type(optimizer) is not torch.optim.SGD or others or any(group[name] for name in switches):
        return "quick steps exist only for plain SGD"
    if not isinstance(group["lr"], float | int):
        return "the learning rate is a tensor"
    if {id(p) for p in group["params"]} != {id(p) for p in learner.model.parameters()}:
        return "the optimizer moves other parameters than the model's"
    return None


def _who_watches(learner: Learner) -> str | None:
    model, optimizer = learner.model, learner.optimizer
    if any(hook_tables(model)) or has_tensor_hooks(list(model.parameters())):
        return "there are hooks on the model"
    if any("forward" in vars(module) or "__call__" in vars(module) for module in model.modules()):
        return "the forward pass of a module was replaced"
    if not learner.hooks or _foreign_hooks(learner, optimizer):
        return "there are hooks on the optimizer that are not the method's, or the method was detached"
    if {"step", "zero_grad"} & vars(optimizer).keys():
        return "the optimizer's step was replaced, as schedulers do"
    modes = _get_current_function_mode_stack() or _get_current_dispatch_mode_stack()
    if modes or torch.is_autocast_enabled("cpu") or not torch.is_grad_enabled():
        return "a mode of torch is active"
    return None


def _foreign_hooks(learner: Learner, optimizer: Optimizer) -> bool:
    own = {handle.id for handle in learner.hooks}
    found = {*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks}
    everywhere = (optimizer_hooks._global_optimizer_pre_hooks, optimizer_hooks._global_optimizer_post_hooks)
    return bool(found - own) or any(everywhere)
