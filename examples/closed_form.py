"""Theorem 1 in numbers: what a wide network will output after a stream of tasks, without training it.

python examples/closed_form.py
"""

import torch

import orthocl
from orthocl import streams


def main() -> None:
    # Is the digit even? Three tasks of real digits, turned by 0, 30 and 60 degrees.
    stream = streams.make("rotated-mnist-mini", tasks=3, train_size=200, test_size=200, options={"step": 30})
    tasks = []
    for task in stream:
        inputs, digits = task.train.samples()
        tasks.append((inputs.flatten(1).double(), 1.0 - 2.0 * (digits % 2).double()))
    kernel = orthocl.InfiniteWidthNTK(depth=2)
    for rule in ("sgd", "ogd"):
        solution = orthocl.solve_stream(kernel, tasks, rule=rule, ridge=1e-2)
        inputs, labels = tasks[0]
        right = [
            (solution.predict(inputs, after=t).squeeze().sign() == labels).double().mean() for t in (1, 2, 3)
        ]
        print(f"{rule}: training accuracy on task 1 after each task: {[round(float(r), 3) for r in right]}")
        print(
            f"     dissimilarity to what came before: {[round(solution.dissimilarity(t), 1) for t in (1, 2, 3)]}"
        )
        # With 200 samples a task the bound says nothing (it is above 1); it tightens like 1 / sqrt(samples).
        bound = orthocl.generalisation_bound(solution, task=1, after=3, delta=0.05, form="sound")
        print(f"     risk bound on task 1 after task 3: {bound.value:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
