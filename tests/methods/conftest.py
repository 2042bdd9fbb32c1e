from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from orthocl.methods import Learner, Method
from orthocl.streams import TensorSplit
from orthocl.training import attach


@pytest.fixture
def data() -> list[TensorSplit]:
    """Three small classification tasks in float64."""
    generator = torch.Generator().manual_seed(1)
    return [
        TensorSplit(
            torch.randn(12, 4, generator=generator, dtype=torch.float64),
            torch.randint(3, (12,), generator=generator),
        )
        for _ in range(3)
    ]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.0), nn.Linear(5, 3)).double()


@pytest.fixture
def make(net: nn.Module) -> Callable[..., Learner]:
    def make(method: Method, lr: float = 0.1, **settings: object) -> Learner:
        return attach(method, net, torch.optim.SGD(net.parameters(), lr=lr), **settings)  # type: ignore[arg-type]

    return make


@pytest.fixture
def learn() -> Callable[..., list[Tensor]]:
    def learn(learner: Learner, split: TensorSplit, steps: int = 6, size: int = 4) -> list[Tensor]:
        """A few steps on a task; returns the final weights."""
        with learner.learning(split):
            for step in range(steps):
                index = torch.arange(step * size, (step + 1) * size) % len(split)
                inputs, targets = split.samples(index)
                learner.optimizer.zero_grad()
                (learner.loss(learner.model(inputs), targets) + learner.penalty()).backward()
                learner.optimizer.step()
        return [p.detach().clone() for p in learner.model.parameters()]

    return learn
