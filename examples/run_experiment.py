"""An experiment from Python: records on disk, a table, a report page. Run it twice: the second time it only reads.

python examples/run_experiment.py
"""

from pathlib import Path

from orthocl.lab import Store, make_experiment
from orthocl.lab.laboratory import run_experiment

if __name__ == "__main__":
    experiment = make_experiment(
        {
            "name": "two methods",
            "seeds": [1, 2],
            "streams": {"rotated-mnist-mini": {"tasks": 3, "train_size": 500, "step": 30.0}},
            "methods": {"sgd": {}, "ogd+": {"memory_per_task": 50}},
            "train": {"epochs": 2, "learning_rate": 0.02},
        }
    )
    results = run_experiment(experiment, Store(Path("orthocl-store")), jobs=2)
    for settings, record in results.pairs:
        print(settings.method.name, settings.seed, f"{record.metric('aac'):.3f}")
