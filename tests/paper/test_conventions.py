"""The authors' penalties and ours, both computed on a small network, are equal after the conversion."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from orthocl.lab.experiment.experiment import load_experiment
from orthocl.methods import EWC, MAS, SI, Learner, Method
from orthocl.paper.conventions import ewc_strength, mas_strength, si_strength
from orthocl.streams import from_arrays
from orthocl.training import attach

BATCH, SAMPLES, INPUTS, OUTPUTS, COEFFICIENT = 8, 48, 5, 3, 7.0
PROTOCOL = Path(__file__).parents[2] / "experiments" / "protocol.toml"


class AfterOneTask:
    """A method that has learnt one task, the weights before and after it, and the path of its steps."""

    def __init__(self, method: Method, maximize: bool = False):
        torch.manual_seed(0)
        x, y = torch.randn(SAMPLES, INPUTS, dtype=torch.float64), torch.arange(SAMPLES) % OUTPUTS
        self.model = nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, OUTPUTS)).double()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, maximize=maximize)
        self.learner: Learner = attach(method, self.model, optimizer, seed=0)
        self.inputs, self.before = x, self.weights()
        self.path = [torch.zeros_like(p) for p in self.model.parameters()]
        stream = from_arrays([(x, y, x, y)], dtype=torch.float64)
        with self.learner.learning(stream.task(1)):
            for step in range(30):
                rows = slice(step % 8 * 6, step % 8 * 6 + 6)
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x[rows]), y[rows]).backward()
                start = self.weights()
                optimizer.step()
                for path, p, s in zip(self.path, self.model.parameters(), start, strict=True):
                    path -= p.grad * (p.detach() - s)
        self.after = self.weights()
        with torch.no_grad():
            for p in self.model.parameters():
                p += 0.1 * torch.randn_like(p)

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def mean_gradients(self, value, order: Tensor) -> list[list[Tensor]]:
        """Gradients at the end of the task of the mean of `value` over each mini-batch."""
        moved = self.weights()
        with torch.no_grad():
            for p, end in zip(self.model.parameters(), self.after, strict=True):
                p.copy_(end)
        batches = [self.inputs[rows] for rows in order.split(BATCH)]
        found = [list(torch.autograd.grad(value(self.model(b)), self.model.parameters())) for b in batches]
        with torch.no_grad():
            for p, m in zip(self.model.parameters(), moved, strict=True):
                p.copy_(m)
        return found

    def quadratic(self, importance: list[Tensor]) -> float:
        moved = [(now - end).square() for now, end in zip(self.weights(), self.after, strict=True)]
        return float(sum((i * m).sum() for i, m in zip(importance, moved, strict=True)))

    def penalty(self) -> float:
        value = self.learner.method.penalty(self.learner)
        assert value is not None
        return value.item()


def drawn_order(seed: int = 0) -> Tensor:
    """The order in which the method drew the samples."""
    from orthocl.training.seeds import derive_generator

    return torch.randperm(SAMPLES, generator=derive_generator("method", seed))


def test_ewc_in_the_authors_convention():
    strength = ewc_strength(COEFFICIENT, BATCH)
    case = AfterOneTask(EWC(strength=strength, fisher_samples=SAMPLES, fisher_batch=BATCH))

    def mean_loss_of_predicted_class(outputs: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, outputs.argmax(1))

    gradients = case.mean_gradients(mean_loss_of_predicted_class, drawn_order())
    fisher = [
        torch.stack([BATCH * g.square() for g in same]).mean(0) for same in zip(*gradients, strict=True)
    ]
    theirs = COEFFICIENT * case.quadratic(fisher)
    assert theirs > 1e-6
    assert case.penalty() == pytest.approx(theirs, rel=1e-12)


def test_mas_in_the_authors_convention():
    strength = mas_strength(COEFFICIENT, OUTPUTS)
    case = AfterOneTask(MAS(strength=strength, importance_samples=SAMPLES, importance_batch=BATCH))
    gradients = case.mean_gradients(lambda outputs: outputs.square().mean(), drawn_order())
    omega = [torch.stack([g.abs() for g in same]).mean(0) for same in zip(*gradients, strict=True)]
    theirs = COEFFICIENT * case.quadratic(omega)
    assert theirs > 1e-6
    assert case.penalty() == pytest.approx(theirs, rel=1e-12)


def test_si_in_the_authors_convention():
    case = AfterOneTask(SI(strength=si_strength(COEFFICIENT), damping=0.1, clip=False), maximize=True)
    case.learner.tasks_done = 1
    omega = [
        path / ((end - start).square() + 0.1)
        for path, end, start in zip(case.path, case.after, case.before, strict=True)
    ]
    assert all((one < 0).any() for one in omega)  # else clipping would make no difference
    case.learner.method.centre = case.after  # what begin_task of the next task does
    theirs = COEFFICIENT * case.quadratic(omega)
    assert case.penalty() == pytest.approx(theirs, rel=1e-10)


COEFFICIENTS = {  # of the authors: EWC, SI, MAS; batch size and outputs of a head
    "permuted-mnist": (1, 10, 1, 32, 10),
    "rotated-mnist": (100, 10, 10, 32, 10),
    "split-mnist": (1000, 10000, 10, 32, 2),
    "split-cifar100": (10, 10, 10, 32, 5),
    "cub200": (1000, 10, 1, 10, 20),
}


@pytest.mark.parametrize("stream", COEFFICIENTS)
def test_the_protocol_has_the_converted_strengths(stream):
    ewc, si, mas, batch, outputs = COEFFICIENTS[stream]
    runs = load_experiment(PROTOCOL, only=[f"{stream}/ewc", f"{stream}/si", f"{stream}/mas"], seeds=[1]).runs
    found = {run.method.name: (run.method.settings, run.train) for run in runs}
    assert found["ewc"][1].batch_size == batch
    assert found["ewc"][0]["strength"] == pytest.approx(ewc_strength(ewc, batch))
    assert found["ewc"][0]["fisher_batch"] == batch
    assert found["si"][0]["strength"] == pytest.approx(si_strength(si))
    assert found["si"][0]["clip"] is False
    assert found["mas"][0]["strength"] == pytest.approx(mas_strength(mas, outputs))
    assert found["mas"][0]["importance_batch"] == batch
