"""Processor time of a step of MiniLM with LoRA under each method of experiments/text.toml, relative to plain training.

python benchmarks/fine_tune_step.py            # needs the weights and the texts: docs/fine-tuning.md
"""

import statistics
import time

import torch
from torch.nn.functional import cross_entropy

import orthocl

STEPS, BATCH, REMEMBERED = 4, 16, 40
METHODS = {
    "plain": orthocl.SGD(),
    "ewc": orthocl.EWC(strength=100.0, fisher_samples=8),
    "er (8 replayed)": orthocl.ER(memory_per_task=8, replay_batch=8),
    "ogd+": orthocl.OGDPlus(memory_per_task=REMEMBERED),
    "ogd+ compressed": orthocl.OGDPlus(memory_per_task=REMEMBERED, energy=0.99),
    "gpm": orthocl.GPM(memory_per_task=REMEMBERED),
}


def step_time(method, stream):
    """Median processor time of a step of task 2, after a task 1 of one step, and bytes of the memory."""
    model = orthocl.make_net("minilm-lora", stream.input_shape, stream.heads, seed=0)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    learner = orthocl.attach(method, model, optimizer, seed=0)
    times = []
    for task in stream:
        inputs, targets = task.train.samples(slice(0, BATCH))
        with learner.learning(task):
            for _ in range(1 if task.number == 1 else STEPS):
                start = time.process_time()
                optimizer.zero_grad()
                (cross_entropy(model(inputs), targets) + learner.penalty()).backward()
                optimizer.step()
                times.append(time.process_time() - start)
            held = method.nbytes()
    return statistics.median(times[1:]), held


def main():
    torch.set_num_threads(1)
    data = orthocl.streams.make(
        "text-stream", train_size=REMEMBERED, test_size=2, options={"order": ["ag-news", "amazon"]}
    )
    plain = None
    for name, method in METHODS.items():
        seconds, held = step_time(method, data)
        plain = plain or seconds
        print(
            f"{name:18s} {seconds:6.2f} s  {seconds / plain:5.2f} x plain  {held / 1e6:8.1f} MB", flush=True
        )


if __name__ == "__main__":
    main()
