"""Records made by earlier versions stay valid: ids and results of shipped experiments and of small runs are fixed.

`golden.json` was written before the laboratory was opened to outside parts. Ids must never change. Results must agree
to the bit on the kind of machine that wrote it, and up to a few test samples elsewhere, where sums round differently.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from orthocl.lab import load_experiment, make_experiment, run_experiment
from orthocl.lab.experiment.settings import run_id

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def this_machine() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return [torch.__version__, model, torch.backends.cpu.get_cpu_capability()]


@pytest.mark.parametrize("name", GOLDEN["ids"])
def test_shipped_experiments_keep_their_ids(name):
    runs = load_experiment(EXPERIMENTS / name).runs
    chosen = runs if len(runs) < 300 else runs[:: GOLDEN["ids_stride"]]
    ids = {run.label: run_id(run, "data") for run in chosen}
    expected = GOLDEN["ids"][name]
    for label, identity in expected["first"].items():
        assert ids[label] == identity
    text = "\n".join(f"{label} {identity}" for label, identity in sorted(ids.items()))
    assert len(ids) == expected["runs"]
    assert hashlib.sha256(text.encode()).hexdigest() == expected["digest"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        store = tmp_path_factory.mktemp("golden")
        results = run_experiment(make_experiment(GOLDEN["tiny"]), store, jobs=0, on_event=lambda event: None)
    finally:
        torch.set_num_threads(before)
    return {settings.label: record for settings, record in results.pairs}


@pytest.mark.parametrize("label", GOLDEN["runs"])
def test_small_runs_keep_their_ids_and_results(records, label):
    record, expected = records[label], GOLDEN["runs"][label]
    assert record.id == expected["id"]
    assert record.status == expected["status"]
    if this_machine() == GOLDEN["machine"]:
        assert record.result_hash == expected["hash"]
    # Other versions of torch round otherwise, and draw other units to drop.
    assert record.result.accuracies[-1] == pytest.approx(expected["accuracies"], abs=0.15)
