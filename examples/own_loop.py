"""Fine-tune your own model on one task after another, in your own loop, with and without OGD+.

python examples/own_loop.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import orthocl
from orthocl import streams


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    inputs, labels = data.tensors
    with torch.no_grad():
        return float((model(inputs).argmax(1) == labels).float().mean())


def learn(method: orthocl.Method) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    learner = orthocl.attach(method, model, optimizer)
    # Three tasks of real digits, turned by 0, 30 and 60 degrees: replace them by your own data.
    stream = streams.make("rotated-mnist-mini", tasks=3, train_size=1000, test_size=500, options={"step": 30})
    for task in stream:
        data = TensorDataset(*task.train.samples())
        with learner.learning(data):
            for _ in range(5):
                for x, y in DataLoader(data, batch_size=32, shuffle=True):
                    optimizer.zero_grad()
                    (cross_entropy(model(x), y) + learner.penalty()).backward()
                    optimizer.step()
    learner.detach()
    return [accuracy(model, TensorDataset(*task.test.samples())) for task in stream]


if __name__ == "__main__":
    for method in (orthocl.SGD(), orthocl.OGDPlus(memory_per_task=100)):
        final = learn(method)
        print(f"{method.name:5} accuracy on tasks 1-3 after the last: {'  '.join(f'{a:.3f}' for a in final)}")
