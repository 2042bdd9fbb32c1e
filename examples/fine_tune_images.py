"""Fine-tune a real pretrained vision model on three small image tasks with OGD+, and see what was lost.

EfficientNet-Lite0 with its ImageNet weights learns to tell digits apart, two at a time. Its last block and last
convolution (a million weights) are trained; their tangents are kept compressed.

Needs the weights once: `orthocl data fetch efficientnet-lite0` (17 MB, Apache-2.0).
"""

import torch

import orthocl
from orthocl.errors import DataError

SAMPLES, EPOCHS = 48, 4


def main():
    stream = orthocl.streams.make("split-mnist-mini", tasks=3, train_size=SAMPLES, test_size=40)
    try:
        model = orthocl.make_net("efficientnet-lite0", stream.input_shape, stream.heads, seed=0)
    except DataError as error:
        print(error)
        return
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.004)
    learner = orthocl.attach(orthocl.OGDPlus(memory_per_task=12, energy=0.99), model, optimizer, seed=0)
    for task in stream:
        inputs, targets = task.train.samples()
        with learner.learning(task):
            for epoch in range(EPOCHS):
                order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
                for rows in order.split(16):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
                    optimizer.step()
        accuracies = orthocl.evaluate(model, stream)[: task.number]
        print(f"after {task.name}: " + ", ".join(f"{accuracy:.0%}" for accuracy in accuracies))
    print(learner.certificate({"first digits": stream.task(1)}))


if __name__ == "__main__":
    main()
