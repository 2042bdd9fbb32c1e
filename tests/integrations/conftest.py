"""Tiny tasks and models for the trainers."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Net(nn.Module):
    """Two layers whose middle can be checkpointed."""

    def __init__(self, checkpointing=False):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 3)
        self.checkpointing = checkpointing

    def forward(self, x):
        if self.checkpointing and self.training:
            hidden = torch.utils.checkpoint.checkpoint(self._hidden, x, use_reentrant=False)
        else:
            hidden = self._hidden(x)
        return self.second(hidden)

    def _hidden(self, x):
        return torch.tanh(self.first(x))


@pytest.fixture
def net():
    def make(checkpointing=False):
        torch.manual_seed(0)
        return Net(checkpointing)

    return make


@pytest.fixture
def tasks():
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(2):
        x, rule = torch.randn(32, 6, generator=generator), torch.randn(6, 3, generator=generator)
        found.append(TensorDataset(x, (x @ rule).argmax(1)))
    return found


SETTINGS = ["sgd", "momentum", "adamw", "schedule", "clipping", "accumulation", "bf16", "checkpointing"]
LEAK = 1e-5  # share of a task's displacement in the protected space, float32


@pytest.fixture(params=SETTINGS)
def setting(request):
    """The rows of the table in docs/trainers.md."""
    return request.param


@pytest.fixture
def check_protected():
    """The promise, measured: of the remembered outputs only the curvature is left."""

    def check(learner):
        found = learner.certificate()
        assert found.leak < LEAK
        (remembered,) = found.probes
        assert remembered.protected.first_order < 1e-4
        assert 0 < remembered.protected.measured <= remembered.protected.total * (1 + 1e-3)

    return check


@pytest.fixture
def leak():
    """Share of a displacement in the span of the gradients of remembered logits: by autograd, without the library."""

    def measured(model, pieces, start, end, call=None):
        """Gradients at `start` of the logit of the label of all samples in `pieces`, against `end` - `start`."""
        model.load_state_dict({**model.state_dict(), **start})
        model.eval()
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        rows = []
        for inputs, labels in pieces:
            if call is not None:
                found = call(model, inputs)
            else:
                found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            logits = getattr(found, "logits", found)
            for logit in logits.gather(1, labels[:, None])[:, 0]:
                parts = torch.autograd.grad(logit, list(named.values()), retain_graph=True, allow_unused=True)
                full = [
                    torch.zeros_like(p) if g is None else g
                    for g, p in zip(parts, named.values(), strict=True)
                ]
                rows.append(torch.cat([part.double().flatten() for part in full]))
        moved = torch.cat([(end[name].double() - start[name].double()).flatten() for name in named])
        basis, scale, _ = torch.linalg.svd(torch.stack(rows).T, full_matrices=False)
        basis = basis[:, scale > 1e-6 * scale[0]]
        return float((basis.T @ moved).norm() / moved.norm())

    return measured


@pytest.fixture
def copied():
    """The state of a model as it is now."""
    return lambda model: {name: value.detach().clone() for name, value in model.state_dict().items()}
