"""Your own data as a stream of tasks, three ways: a folder of images sorted by class, NumPy arrays, torch Datasets.

python examples/own_data.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import orthocl
from orthocl import streams
from orthocl.streams import Stream
from orthocl.streams.datasets import mnist_mini


def from_a_folder() -> Stream:
    """FOLDER/class/image.png: each task holds two of the classes, with its own head."""
    digits = mnist_mini()
    with tempfile.TemporaryDirectory() as folder:
        for row in range(400):  # stands for images that you already have
            label = Path(folder) / f"digit {int(digits.train_labels[row])}"
            label.mkdir(exist_ok=True)
            Image.fromarray(digits.train_images[row, 0].numpy()).save(label / f"{row}.png")
        return streams.from_image_folder(folder, classes_per_task=2, size=28, grey=True)


def from_arrays() -> Stream:
    """One (x_train, y_train, x_test, y_test) per task; here a regression whose function changes."""
    draw = np.random.default_rng(0)
    tasks = []
    for shift in (0.0, 0.5, 1.0):
        x = draw.uniform(-1, 1, (300, 2))
        y = np.sin(3 * x[:, 0] + shift) * x[:, 1]
        tasks.append((x[:200], y[:200], x[200:], y[200:]))
    return streams.from_arrays(tasks, name="drifting function")


def from_datasets() -> Stream:
    """One (train, test) pair of torch Datasets per task."""
    draw = torch.Generator().manual_seed(0)
    tasks = []
    for centre in (-1.0, 1.0):
        x = torch.randn(300, 5, generator=draw) + centre
        data = TensorDataset(x, (x[:, 0] > centre).long())
        tasks.append(
            (torch.utils.data.Subset(data, range(200)), torch.utils.data.Subset(data, range(200, 300)))
        )
    return streams.from_datasets(tasks, name="two clouds")


def learn(stream: Stream) -> None:
    model = orthocl.make_net("mlp", stream.input_shape, stream.heads, {"hidden": [64]})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    learner = orthocl.attach(orthocl.OGDPlus(memory_per_task=50), model, optimizer)
    learned = orthocl.train(
        learner, stream, orthocl.TrainSettings(epochs=5, batch_size=10, learning_rate=0.05)
    )
    scores = "  ".join(f"{score:.2f}" for score in learned.accuracies[-1])
    kinds = {task.kind for task in stream}
    print(f"{stream.name}: {len(stream)} tasks ({', '.join(kinds)}), scores after the last: {scores}")


if __name__ == "__main__":
    for stream in (from_a_folder(), from_arrays(), from_datasets()):
        learn(stream)
