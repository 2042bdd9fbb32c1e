"""Models and batches of other libraries, by stand-ins with their interfaces: they work, or it is said what to do."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import orthocl
from orthocl.errors import DataError, UnsupportedError


def steps(learner, model, answer, data, count=12):
    """Plain training on all samples at once."""
    inputs, labels = data
    with learner.learning(learner_data(inputs, labels)):
        for _ in range(count):
            learner.optimizer.zero_grad()
            nn.functional.cross_entropy(answer(model, inputs), labels).backward()
            learner.optimizer.step()


def learner_data(inputs, labels):
    return TensorDataset(*(inputs if isinstance(inputs, tuple) else (inputs,)), labels)


class Heads(nn.Module):
    """As Avalanche's MTSimpleMLP: a head for each task in a ModuleDict, chosen by the label of the task."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.classifiers = nn.Linear(4, 8), nn.ModuleDict()
        self.adapt(0)

    def adapt(self, task):
        self.classifiers[str(task)] = nn.Linear(8, 3)

    def forward(self, x, task_labels):
        hidden, out = torch.tanh(self.body(x)), torch.zeros(len(x), 3)
        for task in torch.unique(task_labels):
            mine = task_labels == task
            out[mine] = self.classifiers[str(task.item())](hidden[mine])
        return out


def test_a_head_for_each_task(copied, leak):
    model = Heads()
    learner = orthocl.attach(
        orthocl.OGDPlus(memory_per_task=4), model, torch.optim.SGD(model.parameters(), lr=0.1), seed=0
    )
    generator = torch.Generator().manual_seed(0)
    data = []
    for task in range(2):
        x = torch.randn(20, 4, generator=generator)
        labels = torch.randint(3, (20,), generator=generator)
        data.append(((x, torch.full((20,), task)), labels))
    steps(learner, model, lambda model, inputs: model(*inputs), data[0])
    with (
        pytest.raises(UnsupportedError, match=r"no '1' .* before `with learner"),
        learner.learning(learner_data(*data[1])),
    ):
        pass
    model.adapt(1)
    learner.optimizer.add_param_group({"params": model.classifiers["1"].parameters()})
    learnt = copied(model)
    steps(learner, model, lambda model, inputs: model(*inputs), data[1])
    index = learner.method.remembered[1]
    samples = [({"x": data[0][0][0][index], "task_labels": data[0][0][1][index]}, data[0][1][index])]
    assert leak(model, samples, learnt, copied(model)) < 1e-5


class GraphBatch:
    """As DataBatch of torch_geometric: graphs of different sizes, end to end."""

    def __init__(self, graphs):
        self.graphs = graphs
        self.x = torch.cat([x for x, _ in graphs])
        self.owner = torch.repeat_interleave(
            torch.arange(len(graphs)), torch.tensor([len(x) for x, _ in graphs])
        )
        self.y = torch.tensor([y for _, y in graphs])

    def to_data_list(self):
        return self.graphs


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, batch):
        nodes = torch.tanh(self.first(batch.x))
        return self.last(torch.zeros(len(batch.y), 8).index_add(0, batch.owner, nodes))


def test_batches_of_graphs(copied, leak):
    generator = torch.Generator().manual_seed(0)
    graphs = [(torch.randn(3 + n % 4, 4, generator=generator), n % 2) for n in range(24)]
    model = GraphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = orthocl.attach(orthocl.OGDPlus(memory_per_task=4), model, optimizer, seed=0)
    with (
        pytest.raises(DataError, match="remember the numbers of the graphs"),
        learner.learning(DataLoader(graphs, batch_size=4, collate_fn=GraphBatch)),
    ):
        pass
    learner.detach()

    def answer(model, index):  # what the error says
        return model(GraphBatch([graphs[n] for n in index.tolist()]))

    learner = orthocl.attach(orthocl.OGDPlus(memory_per_task=4), model, optimizer, seed=0, outputs=answer)
    labels = torch.tensor([y for _, y in graphs])
    states = []
    for numbers in torch.arange(24).chunk(2):
        steps(learner, model, answer, (numbers, labels[numbers]))
        states.append(copied(model))
    kept = torch.arange(12)[learner.method.remembered[1]]
    assert leak(model, [(kept, labels[kept])], *states, call=answer) < 1e-5


class Embedder(nn.Module):
    """As SentenceTransformer: takes a dict and returns one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, features):
        mean = (self.words(features["input_ids"]) * features["attention_mask"][..., None]).mean(1)
        return {**features, "sentence_embedding": self.out(mean)}


class Pairs(Dataset):
    """Two sentences a sample, as the columns of its Trainer."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(20, (12, 2, 5), generator=generator)
        self.labels = torch.randint(3, (12,), generator=generator)

    def __len__(self):
        return 12

    def __getitem__(self, n):
        item = {"label": self.labels[n]}
        for place, name in enumerate(("sentence1", "sentence2")):
            item[f"{name}_input_ids"] = self.words[n, place]
            item[f"{name}_attention_mask"] = torch.ones(5)
        return item


def test_a_model_that_takes_the_dict_itself(copied, leak):
    model = Embedder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = orthocl.attach(orthocl.OGDPlus(memory_per_task=3), model, optimizer, seed=0)
    words = r"model\(inputs\)\[name\] if it takes the dict itself"
    with pytest.raises(UnsupportedError, match=words), learner.learning(Pairs(0)):
        pass
    learner.detach()

    def embedding(model, inputs):
        parts = []
        for name in ("sentence1_", "sentence2_"):
            own = {key.removeprefix(name): value for key, value in inputs.items() if key.startswith(name)}
            parts.append(model(own)["sentence_embedding"])
        return parts[0] * parts[1]

    learner = orthocl.attach(orthocl.OGDPlus(memory_per_task=3), model, optimizer, seed=0, outputs=embedding)
    states = []
    for number in range(2):
        data = Pairs(number)
        with learner.learning(data):
            for batch in DataLoader(data, batch_size=4):
                labels = batch.pop("label")
                optimizer.zero_grad()
                nn.functional.cross_entropy(embedding(model, batch), labels).backward()
                optimizer.step()
        states.append(copied(model))
    kept = [Pairs(0)[int(n)] for n in learner.method.remembered[1]]
    batch = {key: torch.stack([item[key] for item in kept]) for key in kept[0]}
    labels = batch.pop("label")
    assert leak(model, [(batch, labels)], *states, call=embedding) < 1e-5
