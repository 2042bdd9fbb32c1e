"""What retention certificates say, on data that would make it false: it must not be said; on clean data it must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

import orthocl
from orthocl.cli.app import call
from orthocl.errors import DivergenceError, OrthoclError
from orthocl.methods.certificate import certify, upper_limit
from orthocl.streams import from_arrays
from orthocl.tangents.retention import Probe
from orthocl.training.audit import audit
from orthocl.training.evaluation import evaluate

CLAIM = "of all such samples are lost on the worst task"
MODEL = "from torch import nn\n\ndef build():\n    return nn.Linear(4, 3)\n"


def linear(seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    return model, {name: value.clone() for name, value in model.state_dict().items()}


def samples(count=60):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator)


def with_value(weights, value, name="bias"):
    """The weights with one number replaced."""
    changed = {key: part.clone() for key, part in weights.items()}
    changed[name].view(-1)[0] = value
    return changed


X, Y = samples()
BROKEN = {
    "a NaN weight after": lambda w: (w, with_value(w, math.nan), X, Y),
    "a NaN weight before": lambda w: (with_value(w, math.nan), w, X, Y),
    "only NaN weights": lambda w: (w, {name: part * math.nan for name, part in w.items()}, X, Y),
    "an infinite weight": lambda w: (w, with_value(w, math.inf, "weight"), X, Y),
    "weights that overflow": lambda w: (w, with_value(w, 3e38, "weight"), 100 * X, Y),
    "a NaN sample": lambda w: (w, w, torch.cat([X[:1] * math.nan, X[1:]]), Y),
    "an infinite sample": lambda w: (w, w, torch.cat([X[:1] * math.inf, X[1:]]), Y),
    "a label of -1": lambda w: (w, w, X, torch.cat([Y[1:], torch.tensor([-1])])),
    "labels of -1": lambda w: (w, w, X, Y * 0 - 1),
    "a label without output": lambda w: (w, w, X, torch.cat([Y[1:], torch.tensor([3])])),
}


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_a_model_that_cannot_be_compared_is_not_certified(make):
    model, weights = linear()
    before, after, x, y = make(weights)
    with pytest.raises(OrthoclError, match=r"infinite or not numbers|outputs for 0 to 2"):
        audit(model, before, after, [Probe("old", x, y)])


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_the_command_ends_with_2_and_writes_nothing(make, tmp_path, capsys):
    _, weights = linear()
    before, after, x, y = make(weights)
    (tmp_path / "model.py").write_text(MODEL)
    save_file(before, tmp_path / "before.safetensors")
    save_file(after, tmp_path / "after.safetensors")
    np.savez(tmp_path / "old.npz", inputs=x.numpy(), targets=y.numpy())
    files = [f"{tmp_path}/{name}.safetensors" for name in ("before", "after")]
    arguments = [f"{tmp_path}/model.py:build", *files, f"--samples={tmp_path}/old.npz", "--most-lost=1"]
    assert call(["audit", *arguments, f"--out={tmp_path}/found.json"]) == 2
    printed = capsys.readouterr()
    assert CLAIM not in printed.out
    assert "Traceback" not in printed.err
    assert not (tmp_path / "found.json").exists()


def test_on_clean_data_it_is_said_and_the_gate_opens(tmp_path, capsys):
    _, weights = linear()
    (tmp_path / "model.py").write_text(MODEL)
    save_file(weights, tmp_path / "same.safetensors")
    np.savez(tmp_path / "old.npz", inputs=X.numpy(), targets=Y.numpy())
    file = f"{tmp_path}/same.safetensors"
    arguments = [f"{tmp_path}/model.py:build", file, file, f"--samples={tmp_path}/old.npz"]
    assert call(["audit", *arguments, "--most-lost=0.05"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"at most {upper_limit(0, 60):.1%} {CLAIM} (old), with 95% confidence" in printed
    assert "drawn independently of the training" in printed
    assert call(["audit", *arguments, "--most-lost=0.01"]) == 1
    capsys.readouterr()
    for wrong in ("--most-lost=nan", "--most-lost=2", "--confidence=nan", "--confidence=0", "--confidence=1"):
        assert call(["audit", *arguments, wrong]) == 2
        assert CLAIM not in capsys.readouterr().out


@pytest.mark.parametrize("confidence", [math.nan, -1.0, 0.0, 0.4, 1.0, 2.0, "0.9", None])
def test_a_confidence_that_is_none_is_refused(confidence):
    model, weights = linear()
    with pytest.raises(OrthoclError, match="confidence"):
        audit(model, weights, weights, [Probe("old", X, Y)], confidence=confidence)


def test_one_state_does_not_poison_the_other():
    """Weights near the largest float: their difference overflows, the outputs do not."""
    model = nn.Linear(1, 2, bias=False)
    before = {"weight": torch.tensor([[3e38], [-3e38]])}
    after = {"weight": torch.tensor([[-3e38], [3e38]])}
    x, y = torch.full((20, 1), 1e-38), torch.zeros(20, dtype=torch.long)
    try:
        found = certify(model, before, after, [Probe("old", x, y)]).probes[0]
    except OrthoclError:
        return
    assert (found.accuracy_before, found.accuracy_after, found.lost) == (1.0, 0.0, 20)


def test_the_ends_of_the_path_are_the_weights_to_the_bit():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    before = {name: value.clone() * 1e6 for name, value in model.state_dict().items()}
    after = {name: value * 1e-8 for name, value in before.items()}
    model.load_state_dict(after)
    right = model(X).argmax(1)  # so that all are right after, and any rounding of the weights is a loss
    found = certify(model, before, after, [Probe("old", X, right)]).probes[0]
    assert found.accuracy_after == 1.0


def trained(confident=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = orthocl.attach(orthocl.OGD(memory_per_task=20), model, optimizer, seed=0)
    for _ in range(2):
        with learner.learning(TensorDataset(X[:40], Y[:40])):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[:40]), Y[:40]).backward()
            optimizer.step()
    return learner


def test_remembered_samples_are_no_independent_ones():
    learner = trained()
    copies = learner.certificate({"old": (X[:40], Y[:40])})
    assert CLAIM not in str(copies)
    assert all(each.lost_at_most is None for each in copies.probes)
    assert "no limit for old: 10 samples of it are among those that the method keeps" in str(copies)
    assert CLAIM in str(learner.certificate({"old": (X[40:], Y[40:])}))


def test_a_diverged_learner_has_no_certificate():
    learner = trained()
    with torch.no_grad():
        learner.model[2].bias[0] = math.nan
    with pytest.raises(OrthoclError, match="not certified"):
        learner.certificate({"old": (X[40:], Y[40:])})


def test_rows_hold_together_or_say_that_they_do_not():
    """Ten sets of 512 of which 5 % are lost: with limits of 95 % each, some row was false in a third of the draws."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(1, 2, bias=False)
    before = {"weight": torch.tensor([[1.0], [-1.0]])}
    after = {"weight": torch.tensor([[-1.0], [1.0]])}
    y = torch.zeros(512, dtype=torch.long)
    wrong = {True: 0, False: 0}
    for _ in range(60):
        # x > 0 is right before and wrong after: lost; x < 0 the other way round
        lost = torch.rand(10, 512, generator=generator) < 0.05
        probes = [Probe(str(k), torch.where(row, 1.0, -1.0)[:, None], y) for k, row in enumerate(lost)]
        for together in wrong:
            found = certify(model, before, after, probes, together=together)
            wrong[together] += any(each.lost_at_most < 0.05 for each in found.probes)
    assert wrong[True] <= 7  # 3 expected; more than 7 of 60 with a probability of 1 %
    assert wrong[False] >= 10
    assert "95% confidence, all rows together" in str(certify(model, before, after, probes))


def test_a_compressed_memory_says_what_its_leak_is_measured_against():
    for energy, said in ((1.0, False), (0.9, True)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        learner = orthocl.attach(orthocl.OGD(memory_per_task=20, energy=energy), model, optimizer, seed=0)
        for _ in range(2):
            with learner.learning(TensorDataset(X[:40], Y[:40])):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(X[:40]), Y[:40]).backward()
                optimizer.step()
        found = learner.certificate()
        assert found.leak is not None
        assert ("measured against the compressed memory, which holds 90% of the energy" in str(found)) == said


def test_a_sum_of_terms_is_not_called_a_bound():
    model, weights = linear()
    found = audit(model, weights, with_value(weights, 1.0), [Probe("old", X, Y)])
    assert "bound" not in str(found).lower()
    assert "bound" not in found.to_json().lower()
    assert "remainder" in str(found)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_model_has_no_accuracy(value):
    stream = from_arrays([(X, Y, X, Y)])
    model, weights = linear()
    assert 0 <= evaluate(model, stream)[0] <= 1
    model.load_state_dict(with_value(weights, value))
    with pytest.raises(DivergenceError, match="there is no accuracy"):
        evaluate(model, stream)


def test_a_class_that_is_ruled_out_is_no_broken_model():
    stream = from_arrays([(X, Y, X, Y)])
    model, weights = linear()
    model.load_state_dict(with_value(weights, -math.inf))
    assert 0 <= evaluate(model, stream)[0] <= 1
