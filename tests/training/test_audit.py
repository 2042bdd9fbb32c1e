"""`orthocl audit`: other people's weights, their adapters, and files that are not to be trusted."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from orthocl.cli.app import call
from orthocl.errors import DataError, SettingsError
from orthocl.methods.adapter_overlap import adapter_overlaps, summary
from orthocl.tangents.retention import Probe
from orthocl.training.audit import audit, read_probes, read_weights

MODEL = """
from torch import nn

class LoRA(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 6)
        self.lora_A = nn.ModuleDict({"one": nn.Linear(6, 2, bias=False), "two": nn.Linear(6, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"one": nn.Linear(2, 6, bias=False), "two": nn.Linear(2, 6, bias=False)})

    def forward(self, x):
        return self.base(x) + sum(self.lora_B[k](self.lora_A[k](x)) for k in self.lora_A)

def make_model():
    return nn.Sequential(LoRA(), nn.Tanh(), nn.Linear(6, 3))
"""


def adapters(**downs):
    weights = {}
    for name, down in downs.items():
        weights[f"layer.lora_A.{name}.weight"] = down
        weights[f"layer.lora_B.{name}.weight"] = torch.randn(5, len(down))
    return weights


def test_overlap_of_known_subspaces():
    eye = torch.eye(8)
    same = adapter_overlaps(adapters(one=eye[:2], two=torch.stack([eye[0] + eye[1], eye[0] - eye[1]])))[0]
    assert (same.shared, same.largest, same.by_chance) == (pytest.approx(1.0), pytest.approx(1.0), 0.25)
    apart = adapter_overlaps(adapters(one=eye[:2], two=eye[2:5]))[0]
    assert (apart.shared, apart.loss, apart.updates) == (0.0, 0.0, 0.0)
    half = adapter_overlaps(adapters(one=eye[:2], two=eye[1:3]))[0]
    assert half.shared == pytest.approx(0.5)
    assert half.loss == pytest.approx(1.0)


def test_updates_are_compared_without_full_products():
    torch.manual_seed(0)
    weights = adapters(one=torch.randn(2, 8), two=torch.randn(3, 8))
    (found,) = adapter_overlaps(weights)
    first, second = (
        weights[f"layer.lora_B.{n}.weight"] @ weights[f"layer.lora_A.{n}.weight"] for n in ("one", "two")
    )
    expected = float((first * second).sum() / (first.norm() * second.norm()))
    assert found.updates == pytest.approx(expected, abs=1e-6)


def test_an_adapter_that_was_overwritten_counts_as_two():
    torch.manual_seed(0)
    before = adapters(one=torch.randn(2, 8))
    after = {**before, "layer.lora_A.one.weight": torch.randn(2, 8)}
    (found,) = adapter_overlaps(after, before)
    assert (found.first, found.second) == ("lora.one before", "lora.one after")
    assert adapter_overlaps(before, before) == []
    untrained = {**before, "layer.lora_B.one.weight": torch.zeros(5, 2)}
    assert adapter_overlaps(after, untrained) == []


def test_other_names_of_adapters():
    weights = {
        "q.lora_A.weight": torch.eye(4)[:2],
        "q.lora_B.weight": torch.ones(4, 2),
        "q.loranew_A.default.weight": torch.eye(4)[1:3],
        "q.loranew_B.default.weight": torch.ones(4, 2),
        "unrelated.weight": torch.ones(4, 2),
    }
    (found,) = adapter_overlaps(weights)
    assert (found.module, found.first, found.second) == ("q", "lora", "loranew.default")
    assert "50.0%" in summary([found])


@pytest.fixture
def files(tmp_path):
    """A model with two adapters whose training made them overlap while a wrong loss printed 0.0."""
    torch.manual_seed(0)
    (tmp_path / "model.py").write_text(MODEL)
    scope = {}
    exec(MODEL, scope)
    model = scope["make_model"]()
    after = {name: value.clone() for name, value in model.state_dict().items()}
    shared = torch.randn(2, 6)
    after["0.lora_A.one.weight"], after["0.lora_A.two.weight"] = shared, torch.randn(2, 2) @ shared
    before = {name: value for name, value in after.items() if ".two." not in name}
    save_file(before, tmp_path / "before.safetensors")
    torch.save(after, tmp_path / "after.pt")
    x = torch.randn(40, 6)
    np.savez(tmp_path / "old.npz", inputs=x.numpy(), targets=torch.randint(3, (40,)).numpy())
    return tmp_path, model, before, after, x


def test_the_command(files, capsys):
    folder = files[0]
    arguments = [f"{folder}/model.py:make_model", f"{folder}/before.safetensors", f"{folder}/after.pt"]
    out = [f"--out={folder}/found.json", f"--out={folder}/found.html"]
    assert call(["audit", *arguments, f"--samples={folder}/old.npz", *out]) == 0
    printed = capsys.readouterr().out
    found = json.loads((folder / "found.json").read_text())
    assert found["sentence"] in printed
    (pair,) = found["adapters"]
    assert pair["shared"] == pytest.approx(1.0, abs=1e-5)
    assert "orthogonality loss" in (folder / "found.html").read_text()
    (probe,) = found["probes"]
    assert 0 < probe["change"]["measured"] <= probe["change"]["total"] * (1 + 1e-5)
    strict = ["--most-lost=0.0", f"--samples={folder}/old.npz"]
    assert call(["audit", *arguments, *strict]) == 1
    assert call(["audit", *arguments, "--most-lost=0.5"]) == 2


def test_new_adapters_did_nothing_before(files):
    _, model, before, after, x = files
    found = audit(model, before, after, [Probe("old", x)])
    hidden = x @ before["0.base.weight"].T + before["0.base.bias"]
    hidden = hidden + x @ before["0.lora_A.one.weight"].T @ before["0.lora_B.one.weight"].T
    old = torch.tanh(hidden) @ before["2.weight"].T + before["2.bias"]
    model.load_state_dict(after)
    expected = float((model(x).detach() - old).norm() / old.norm())
    assert found.probes[0].change.measured == pytest.approx(expected, rel=1e-4)


def test_files_that_would_run_code_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(DataError, match="cannot be read safely"):
        read_weights(tmp_path / "evil.pt")
    torch.save({"weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(DataError, match="cannot be read safely"):
        read_weights(tmp_path / "evil.pth")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(DataError, match="no state dict"):
        read_weights(tmp_path / "list.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read safely"):
        read_weights(tmp_path / "broken.safetensors")
    with pytest.raises(DataError, match="is not a file"):
        read_weights(tmp_path / "missing.pt")


def test_samples_of_several_sets(tmp_path):
    model = nn.Linear(3, 2).double()
    path = tmp_path / "old.npz"
    np.savez(
        path,
        inputs_cats=np.zeros((4, 3), np.float32),
        targets_cats=np.zeros(4, int),
        inputs_dogs=np.ones((2, 3)),
    )
    cats, dogs = read_probes(path, model, remembered=True)
    assert (cats.name, len(cats), cats.inputs.dtype, dogs.targets) == ("cats", 4, torch.float64, None)
    assert dogs.remembered
    np.savez(path, x=np.zeros(3))
    with pytest.raises(DataError, match="expected the arrays inputs"):
        read_probes(path, model)


def test_weights_of_another_model():
    model = nn.Linear(3, 2)
    with pytest.raises(SettingsError, match="do not fit"):
        audit(model, {"weight": torch.zeros(2, 3)}, {"weight": torch.zeros(2, 3)})
    state = model.state_dict()
    with pytest.raises(DataError, match="different names"):
        audit(model, state, {**state, "more": torch.zeros(1)})
