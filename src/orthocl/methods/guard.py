"""Guard: what would undo a method's protection without a word is noticed, by value, and said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from orthocl.errors import DivergenceError, TrainingError, UnsupportedError, warn
from orthocl.nets.heads import find_heads

Marks = dict[str, Tensor]
"""Of each weight by name: how many numbers, how exact they are, and their checksum."""


@dataclass
class Guard:
    """Watches a model and the steps taken on it from task to task.

    Args:
        model: the model.
        method: name of the method, for messages.
        projects: whether the method projects: only then does a frozen or half-precision weight matter.
    """

    model: nn.Module
    method: str
    projects: bool
    frozen: set[str] = field(init=False)
    known: set[str] = field(init=False)
    at_start: Tensor | None = field(default=None, init=False)
    """Of the weights when the task began, until the attached optimizer has taken a step."""
    bypassed: bool = field(default=False, init=False)
    """Whether it was said that this task was trained without the method."""
    said: set[str] = field(default_factory=set, init=False)
    left: list[Marks] = field(default_factory=list, init=False)
    """The weights as the last task left them; after a task that failed, those before it and those of now."""

    def __post_init__(self) -> None:
        named = dict(self.model.named_parameters())
        self.frozen = {name for name, p in named.items() if not p.requires_grad}
        self.known = set(named)

    def before_task(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Check that what is trained now is what was trained when the method was attached."""
        frozen = [name for name, p in parameters.items() if not p.requires_grad]
        if frozen and self.projects:
            raise UnsupportedError(
                f"{len(frozen)} protected parameters, such as {frozen[0]!r}, were frozen after `attach`: projected "
                "steps would still move them. Unfreeze them, or attach again with protect=[...] naming only what "
                "will be trained"
            )
        thawed = [n for n, p in self.model.named_parameters() if n in self.frozen and p.requires_grad]
        if thawed:
            self.frozen -= set(thawed)
            warn(
                f"{len(thawed)} parameters, such as {thawed[0]!r}, were frozen when the method was attached and are "
                f"trained now: {self.method} does not protect them. Attach with everything unfrozen that any task "
                "will train"
            )
        self.check_precision(parameters)

    def check_precision(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Warn, once, of weights in half precision: a trainer may have converted the model after `attach`."""
        low = [name for name, p in parameters.items() if torch.finfo(p.dtype).bits < 32]
        if low and self.projects and "precision" not in self.said:
            self.said.add("precision")
            warn(
                f"{len(low)} protected parameters, such as {low[0]!r}, are kept in {parameters[low[0]].dtype}: "
                "rounding the weights after each step undoes part of the projection. Keep them in float32 and use "
                "autocast for speed"
            )

    def begin(self, parameters: Iterable[Tensor]) -> None:
        """Note where the task begins."""
        self.at_start = checksum(parameters)

    def stepped(self) -> None:
        """The attached optimizer takes a step."""
        self.at_start = None

    def check_frozen(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Reject a step with weights that were frozen inside a task: without them, the rest is not orthogonal."""
        frozen = [name for name, p in parameters.items() if not p.requires_grad]
        if frozen and self.projects:
            raise TrainingError(
                f"{len(frozen)} protected parameters, such as {frozen[0]!r}, were frozen inside a task: a projected "
                "step either moves them or no longer protects. Keep them trainable until the task ends, and attach "
                "again with protect=[...] before the next"
            )

    def check_rates(
        self, optimizers: Sequence[torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        """Reject weights that stand still (a learning rate of 0) beside others that move: projection moves them all."""
        if not self.projects:
            return
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups if not isinstance(group["lr"], Tensor)]
        if all(rates) or not any(rates):
            return
        resting = [group for group in groups if not isinstance(group["lr"], Tensor) and not group["lr"]]
        still = {id(p) for group in resting for p in group["params"]}
        names = [name for name, p in parameters.items() if id(p) in still]
        if names and len(names) < len(parameters):
            raise TrainingError(
                f"{len(names)} protected parameters, such as {names[0]!r}, have the learning rate 0 while others move: "
                "projection would move them too. Give them a small rate, or attach with protect=[...] naming only what "
                "is trained"
            )

    def end(self, parameters: Iterable[Tensor]) -> None:
        """Refuse weights that have diverged; warn of an optimizer that bypasses the method, and of layers that came."""
        now = checksum(parameters)
        if not bool(now.isfinite().all()):
            raise DivergenceError(
                f"the weights are NaN or infinite at the end of the task: {self.method} remembers nothing of it. Train "
                "with a smaller learning rate or a weaker penalty, and look for values in the data that are not finite"
            )
        self.bypassed = self.at_start is not None and not torch.equal(self.at_start, now)
        if self.bypassed:
            missing = "with the method at its end only" if self.projects else "without the method"
            warn(
                f"the weights were trained in this task, but not with the optimizer that {self.method} is "
                f"attached to, so {missing}: use that optimizer for all tasks, or attach again to each new one "
                "and carry the memory over with `state_dict` and `load_state_dict`"
            )
        self.at_start = None
        heads = find_heads(self.model)
        own = set() if heads is None else {p for _, p in heads.head_parameters()}
        named = self.model.named_parameters()
        new = [n for n, p in named if n not in self.known and p.requires_grad and p not in own]
        if new:
            self.known |= set(new)
            warn(
                f"{len(new)} trainable parameters, such as {new[0]!r}, were added inside the task: {self.method} did "
                "not protect them in it, and what it remembers of the task does not include them. Add layers between "
                "tasks"
            )

    def changed(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether the weights are others than those that the last task left: loaded, averaged, trained in between."""
        now = marks(parameters)
        return bool(self.left) and all(differ(then, now) for then in self.left)

    def packed(self) -> list[tuple[list[str], Tensor]]:
        """What `left` holds, for a file."""
        return [(list(left), torch.stack(list(left.values()))) for left in self.left]

    def check_leak(self, leak: float) -> None:
        """Warn if the finished task has moved noticeably inside the protected space, whatever the reason."""
        if leak > NOTICEABLE_LEAK and not self.bypassed:
            warn(
                f"{leak:.1%} of this task's change of the weights lies in the space that {self.method} protects: its "
                "projection is right up to rounding of the weights, which is coarse in half precision and beside tiny "
                "changes. Remembered outputs have changed accordingly; keep the weights in float32"
            )


NOTICEABLE_LEAK = 0.005
"""Share of a task's displacement inside the protected space that is worth a warning; rounding leaves 1e-6 or less."""


SAME = 1e-10
"""Relative difference of checksums of the same weights: sums on another device are taken in another order."""


@torch.no_grad()
def checksum(parameters: Iterable[Tensor]) -> Tensor:
    """Two numbers of each weight that any training step changes.

    By value: fused optimizers do not raise the version counter of what they change.
    """
    real = [torch.view_as_real(p) if p.is_complex() else p for p in parameters]
    return torch.stack([torch.stack([p.sum(dtype=torch.float64), p.double().square().sum()]) for p in real])


def marks(parameters: Mapping[str, Tensor]) -> Marks:
    """What tells, in another process too, whether weights are these."""
    sums = checksum(parameters.values()).cpu()
    kinds = [[float(p.numel()), torch.finfo(p.dtype).eps] for p in parameters.values()]
    return dict(zip(parameters, torch.cat([torch.tensor(kinds, dtype=torch.float64), sums], 1), strict=True))


def differ(then: Marks, now: Marks, same: float = SAME) -> bool:
    """Whether a weight that is in both, at the same size, has another value; up to rounding if it was converted."""
    for name in then.keys() & now.keys():
        (size, eps, total, squares), (size_now, eps_now, total_now, squares_now) = (
            found[name].tolist() for found in (then, now)
        )
        allowed = same if eps == eps_now else 4 * max(eps, eps_now)
        if size == size_now and not (
            abs(total_now - total) <= allowed * (size * squares) ** 0.5
            and abs(squares_now - squares) <= allowed * squares
        ):
            return True
    return False
