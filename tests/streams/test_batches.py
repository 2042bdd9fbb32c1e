"""Models with several inputs, dict batches and outputs of any form: the same as a plain model of one tensor."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from orthocl import OGD, attach, plan
from orthocl.errors import DataError, SettingsError, UnsupportedError
from orthocl.methods import METHODS
from orthocl.streams import batches

SAMPLES = 12


@dataclass
class Answer:
    logits: Tensor
    hidden: Tensor


class Plain(nn.Module):
    """The reference: one tensor in, one tensor out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class TwoInputs(Plain):
    def forward(self, x, z):
        return super().forward(torch.cat([x, z], 1))


class Named(Plain):
    def forward(self, x, z):
        hidden = torch.tanh(self.first(torch.cat([x, z], 1)))
        return Answer(self.last(hidden), hidden)


class InDict(Plain):
    def forward(self, x, z):
        return {"logits": super().forward(torch.cat([x, z], 1))}


class Scores(Plain):
    def forward(self, x, z):
        return {"scores": super().forward(torch.cat([x, z], 1))}


class Items(Dataset):
    """Dicts with names that only `batch` understands."""

    def __init__(self, data):
        self.x, self.y = data.tensors

    def __len__(self):
        return len(self.x)

    def __getitem__(self, n):
        return {"x": self.x[n, :4], "z": self.x[n, 4:], "answer": self.y[n]}


class Labelled(Items):
    def __getitem__(self, n):
        return {"x": self.x[n, :4], "z": self.x[n, 4:], "labels": self.y[n]}


class Triples(Items):
    def __getitem__(self, n):
        return self.x[n, :4], self.x[n, 4:], self.y[n]


def tasks(count=3):
    generator = torch.Generator().manual_seed(5)
    return [
        TensorDataset(
            torch.randn(SAMPLES, 6, generator=generator).double(),
            torch.randint(3, (SAMPLES,), generator=generator),
        )
        for _ in range(count)
    ]


def logits(model, x):
    found = model(x) if type(model) is Plain else model(x[:, :4], x[:, 4:])
    if isinstance(found, dict):
        return next(iter(found.values()))
    return found.logits if isinstance(found, Answer) else found


def trained(method, model, wrap, **settings):
    """Weights after three tasks in which the loop does the same whatever the model's form."""
    model = model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = attach(method, model, optimizer, seed=3, **settings)
    for data in tasks():
        with learner.learning(wrap(data)):
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                (cross_entropy(logits(model, x), y) + learner.penalty()).backward()
                optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def choose(batch):
    return (batch["x"], batch["z"]), batch["answer"]


FORMS = {
    "triples": (TwoInputs, Triples, {}),
    "dict batches, .logits": (Named, Labelled, {}),
    "a dict with logits": (InDict, Labelled, {}),
    "batch= and outputs=": (Scores, Items, {"batch": choose, "outputs": lambda m, i: m(*i)["scores"]}),
    "a loader": (TwoInputs, lambda data: DataLoader(Triples(data), batch_size=2), {}),
}


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd", "sgd", "joint"}))
@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_batches_and_outputs_changes_nothing(name, form):
    model, wrap, settings = FORMS[form]
    small = {"memory_per_task": 4} if "memory_per_task" in METHODS[name]().settings() else {}
    found = trained(METHODS[name](**small), model, wrap, **settings)
    expected = trained(METHODS[name](**small), Plain, lambda data: data)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_state_with_several_inputs_is_saved_and_loaded(tmp_path):
    model = TwoInputs().double()
    learner = attach(METHODS["ogd+"](memory_per_task=4), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with learner.learning(Triples(tasks(1)[0])):
        pass
    learner.save(tmp_path / "state")
    before = learner.method.memory.pieces[1]
    learner.load(tmp_path / "state")
    after = learner.method.memory.pieces[1]
    assert isinstance(after.inputs, tuple)
    assert all(torch.equal(a, b) for a, b in zip(before.inputs, after.inputs, strict=True))
    with learner.learning(Triples(tasks(2)[1])):
        pass
    assert learner.method.subspace.size == 8


class Endless(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            yield torch.full((6,), float(number)).double(), number % 3


def test_an_iterable_data_set_is_sampled_uniformly(monkeypatch):
    monkeypatch.setattr(batches, "RESERVOIR", 10)
    model = Plain().double()
    learner = attach(OGD(memory_per_task=5), model, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
    with learner.learning(Endless(40)) as now:
        assert len(now.current_task.train) == 10
    counts = torch.zeros(40)
    for seed in range(400):
        kept = batches.reservoir(range(40), torch.Generator().manual_seed(seed))
        counts[torch.tensor(kept)] += 1
    # 400 draws of 10 out of 40: each item 100 times, with a standard deviation of 8.7.
    assert (counts - 100).abs().max() < 5 * 8.7


def test_a_stream_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(batches, "MOST_READ", 50)
    assert len(batches.reservoir(iter(int, 1), torch.Generator())) == 50


def test_the_plan_takes_the_same_arguments():
    data = tasks(1)[0]
    plain = plan(Plain().double(), data.tensors[0], tasks=2, memory_per_task=3)
    batch = next(iter(DataLoader(Items(data), batch_size=2)))
    found = plan(
        Scores().double(),
        batch,
        tasks=2,
        memory_per_task=3,
        batch=choose,
        outputs=lambda m, i: m(*i)["scores"],
    )
    labelled = next(iter(DataLoader(Labelled(data), batch_size=2)))
    assert found.costs == plain.costs
    assert plan(Named().double(), labelled, tasks=2, memory_per_task=3).costs == plain.costs


def test_what_cannot_be_guessed_is_said():
    model = TwoInputs().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = attach(OGD(memory_per_task=2), model, optimizer)
    data = tasks(1)[0]
    cases = [
        (Items(data), DataError, "dict with the keys 'x', 'z', 'answer': say how to split it"),
        (data, TypeError, "missing 1 required positional argument"),
        (TensorDataset(data.tensors[0]), DataError, r"got a list of 1"),
    ]
    for given, error, words in cases:
        with pytest.raises(error, match=words), learner.learning(given):
            pass
    with (
        pytest.raises(UnsupportedError, match="cannot be called with a tuple of 3"),
        learner.learning(TensorDataset(*[data.tensors[0]] * 3, data.tensors[1])),
    ):
        pass
    learner.detach()
    learner = attach(
        OGD(memory_per_task=2), model, optimizer, batch=lambda batch: (batch["name"], batch["y"])
    )

    class Names(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, n):
            return {"name": "cat", "y": n}

    with (
        pytest.raises(DataError, match=r"inputs of a batch to be tensors.*got a list"),
        learner.learning(Names()),
    ):
        pass
    with pytest.raises(SettingsError, match="outputs to be a function"):
        attach(OGD(), model, optimizer, outputs="logits")
