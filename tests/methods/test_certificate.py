"""The retention certificate: its terms explain the change, its first order is the Jacobian's, its limits cover."""

import json
from dataclasses import replace
from math import comb

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import orthocl
from orthocl.errors import DataError, TrainingError
from orthocl.lab.reporting.certificate_card import certificate_card, certificate_page
from orthocl.methods.certificate import certify, upper_limit
from orthocl.nets.heads import MultiHead
from orthocl.tangents.retention import Path, Probe, compare


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)), (5,)


def relu():
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)), (5,)


def convolution():
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(36, 3)
    return nn.Sequential(*layers), (2, 5, 5)


def attention():
    return Attention(), (6, 8)


MODELS = [mlp, relu, convolution, attention]


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def moved(before, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + size * torch.randn(value.shape, generator=generator, dtype=value.dtype).abs()
        if value.is_floating_point()
        else value
        for name, value in before.items()
    }


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("make", MODELS)
def test_the_terms_are_at_least_the_change(make, size):
    for seed in range(3):
        torch.manual_seed(seed)
        model, shape = make()
        model.double()
        before = state(model)
        probe = Probe("old", torch.randn(7, *shape, dtype=torch.float64))
        (found,) = certify(model, before, moved(before, size, seed), [probe]).probes
        change = found.change
        assert change.measured <= change.total * (1 + 1e-9)
        assert change.measured > 0
        assert change.total == pytest.approx(
            change.first_order + change.curvature + change.remainder + change.statistics
        )


@pytest.mark.parametrize("make", [mlp, attention])
def test_first_order_is_the_jacobian_times_the_displacement(make):
    torch.manual_seed(0)
    model, shape = make()
    model.double().eval()
    before = state(model)
    after = moved(before, 0.05, 1)
    x = torch.randn(4, *shape, dtype=torch.float64)
    slopes = compare(model, Path.between(model, before, after), Probe("old", x)).slopes
    outputs = model(x)
    expected = torch.zeros_like(outputs)
    names = dict(model.named_parameters())
    for n in range(outputs.shape[0]):
        for k in range(outputs.shape[1]):
            gradient = torch.autograd.grad(outputs[n, k], list(names.values()), retain_graph=True)
            expected[n, k] = sum(
                (g * (after[name] - before[name])).sum() for name, g in zip(names, gradient, strict=True)
            )
    torch.testing.assert_close(slopes[0], expected.detach(), rtol=1e-10, atol=1e-12)


def test_outputs_linear_in_the_weights_have_no_curvature():
    model = nn.Linear(4, 2).double()
    before = state(model)
    probe = Probe("old", torch.randn(6, 4, dtype=torch.float64))
    (found,) = certify(model, before, moved(before, 1.0, 0), [probe]).probes
    assert found.change.curvature < 1e-12
    assert found.change.remainder < 1e-12
    assert found.change.measured == pytest.approx(found.change.first_order)


def test_statistics_that_moved_are_a_term_of_their_own():
    torch.manual_seed(0)
    model, shape = convolution()
    model.double()
    before = state(model)
    after = {name: value + 0.3 if "running" in name else value for name, value in before.items()}
    (found,) = certify(model, before, after, [Probe("old", torch.randn(5, *shape).double())]).probes
    assert found.change.first_order == 0.0
    assert found.change.measured == pytest.approx(found.change.statistics)


def test_the_limit_is_the_binomial_one_and_covers():
    samples, confidence = 30, 0.9
    limits = [upper_limit(count, samples, confidence) for count in range(samples + 1)]
    for share in (0.01, 0.05, 0.2, 0.5, 0.9):
        covered = sum(
            comb(samples, k) * share**k * (1 - share) ** (samples - k)
            for k in range(samples + 1)
            if limits[k] >= share
        )
        assert covered >= confidence - 1e-12
    for count, limit in enumerate(limits[:-1]):
        at_most = sum(comb(samples, k) * limit**k * (1 - limit) ** (samples - k) for k in range(count + 1))
        assert at_most == pytest.approx(1 - confidence, abs=1e-9)


def two_tasks(method, foreign=False):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(8, 24), nn.Tanh()).double()
    trunk.features = 24
    model = MultiHead(trunk, {"a": 3, "b": 3}).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    learner = orthocl.attach(method, model, optimizer, seed=0)
    rules = torch.randn(2, 8, 3, dtype=torch.float64)
    data = []
    for number, head in enumerate("ab"):
        x = torch.randn(120, 8, dtype=torch.float64)
        data.append((x, (x @ rules[number]).argmax(1)))
        other = torch.optim.SGD(model.parameters(), lr=0.05)
        with learner.learning(TensorDataset(x[:80], data[-1][1][:80]), head=head):
            for rows in torch.arange(80).split(16):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), data[-1][1][rows])
                (loss + learner.penalty()).backward()
                (other if foreign and number else optimizer).step()
    return learner, data


def test_a_projecting_method_has_no_first_order_change():
    learner, data = two_tasks(orthocl.OGDPlus(memory_per_task=10))
    found = learner.certificate({"a": (data[0][0][80:], data[0][1][80:])})
    remembered, named = found.probes
    assert remembered.name == "task 1"
    assert remembered.protected.first_order < 1e-13
    assert 0 < remembered.protected.measured <= remembered.protected.total
    assert remembered.lost_at_most is None
    assert named.lost_at_most >= named.lost / named.samples
    assert named.accuracy_before - named.accuracy_after <= named.lost / named.samples
    assert found.leak < 1e-12
    assert found.stored == learner.method.nbytes()
    assert set(found.unprotected) == {"heads.1.weight", "heads.1.bias"}


def test_weights_that_move_after_the_task_show_in_the_first_order():
    learner, _ = two_tasks(orthocl.OGDPlus(memory_per_task=10))
    with torch.no_grad():
        for p in learner.parameters.values():
            p.add_(0.01)
    (remembered,) = learner.certificate().probes
    assert remembered.protected.first_order > 1e-3


def test_steps_of_another_optimizer_are_put_right_at_the_end_of_the_task():
    with pytest.warns(UserWarning, match="optimizer"):
        learner, _ = two_tasks(orthocl.OGDPlus(memory_per_task=10), foreign=True)
    (remembered,) = learner.certificate().probes
    assert remembered.protected.first_order < 1e-13 < remembered.protected.measured


def test_accuracies_are_those_of_the_two_states():
    learner, data = two_tasks(orthocl.ER(memory_per_task=5))
    x, y = data[0][0][80:], data[0][1][80:]
    named = learner.certificate({"a": TensorDataset(x, y)}).probes[-1]
    model = learner.model
    model.select("a")
    now = (model(x).argmax(1) == y).double().mean()
    with torch.no_grad():
        for name, value in learner.started_from.items():
            model.get_parameter(name).copy_(value)
    then = (model(x).argmax(1) == y).double().mean()
    assert (named.accuracy_before, named.accuracy_after) == (float(then), float(now))


def test_compare_with_an_earlier_state():
    learner, data = two_tasks(orthocl.OGD(memory_per_task=5))
    same = learner.certificate({"a": data[0]}, before=state(learner.model))
    assert all(each.change.measured == 0.0 for each in same.probes)
    assert "0 were classified" in same.sentence


def test_dict_inputs_and_logits():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, x, scale):
            return {"logits": self.body(x * scale)}

    model = Wrapped()
    before = state(model)
    probe = Probe("old", {"x": torch.randn(5, 4), "scale": torch.ones(5, 1)}, torch.tensor([0, 1, 2, 0, 1]))
    (found,) = certify(model, before, moved(before, 0.1, 0), [probe]).probes
    assert found.accuracy_before is not None
    assert 0 < found.change.measured <= found.change.total * (1 + 1e-5)


def test_buffers_that_are_not_saved():
    class Rotary(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("frequencies", torch.ones(2), persistent=False)

        def forward(self, x):
            return super().forward(x * self.frequencies)

    model = Rotary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = orthocl.attach(orthocl.OGD(memory_per_task=1), model, optimizer)
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    for _ in range(2):
        with learner.learning(TensorDataset(x, y)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert learner.certificate().probes[0].protected.first_order < 1e-5


def test_refusals():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = orthocl.attach(orthocl.OGD(memory_per_task=1), model, optimizer)
    with pytest.raises(TrainingError, match="nothing was learnt"):
        learner.certificate()
    data = TensorDataset(torch.randn(4, 2), torch.randn(4, 1))
    with learner.learning(data), pytest.raises(TrainingError, match="leave the"):
        learner.certificate()
    with pytest.raises(DataError, match="empty"):
        Probe("old", torch.zeros(0, 2))
    with pytest.raises(DataError, match="one target per input"):
        Probe("old", torch.zeros(3, 2), torch.zeros(2))


def test_text_json_and_card_say_the_same():
    learner, data = two_tasks(orthocl.OGDPlus(memory_per_task=10))
    found = learner.certificate({"a": (data[0][0][80:], data[0][1][80:])})
    as_dict = json.loads(found.to_json())
    assert as_dict == json.loads(json.dumps(found.to_dict()))
    assert found.sentence in str(found) == repr(found)
    (named,) = [each for each in found.probes if each.name == "a"]
    assert f"Of 40 test samples of earlier tasks {named.lost} were" in found.sentence
    assert (
        f"at most {named.lost_at_most:.1%} of all such samples are lost on the worst task (a)"
        in found.sentence
    )
    assert sorted(found.drift) == ["drift_cosine", "drift_norm", "drift_outside"]
    for row in ("\ntask 1 (10 remembered samples): ", "\na (40 samples): "):
        assert row in str(found)
    before, after = named.accuracy_before, named.accuracy_after
    assert (
        f"accuracy {before:.1%} -> {after:.1%}, {named.lost} lost, at most {named.lost_at_most:.1%}"
        in str(found)
    )
    as_dict["probes"][0]["name"] = "<script>"
    card = certificate_card(as_dict)
    assert "<script>" not in card
    assert "&lt;script&gt;" in card
    assert f"{as_dict['probes'][1]['change']['measured']:.2%}" in card
    assert certificate_page(as_dict).count("<section") == 1


def test_training_is_the_same_with_a_certificate_in_between():
    states = []
    for certified in (False, True):
        learner, data = two_tasks(orthocl.OGDPlus(memory_per_task=6))
        if certified:
            learner.certificate({"a": data[0]})
        optimizer, (x, y) = learner.optimizer, data[0]
        with learner.learning(TensorDataset(x, y), head="a"):
            for xs, ys in DataLoader(TensorDataset(x, y), batch_size=20):
                optimizer.zero_grad()
                nn.functional.cross_entropy(learner.model(xs), ys).backward()
                optimizer.step()
        states.append(state(learner.model))
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name])


def test_numbers_of_a_certificate_by_hand():
    """Two logits (x, -x) of three samples; after a change of sign of the weights all classes are exchanged."""
    model = nn.Linear(1, 2, bias=False).double()
    before = {"weight": torch.tensor([[3.0], [-4.0]], dtype=torch.float64)}
    after = {"weight": torch.tensor([[-3.0], [4.0]], dtype=torch.float64)}
    x = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 1])
    found = certify(model, before, after, [Probe("old", x, labels)])
    assert found.moved == pytest.approx(2.0)  # of |w| = 5 by 10
    (one,) = found.probes
    assert (one.accuracy_before, one.accuracy_after) == (0.75, 0.25)
    assert (one.flipped, one.lost) == (4, 3)
    assert found.sentence.startswith("Of 4 test samples of earlier tasks 3 were")
    moved = replace(found, unprotected=("a", "b", "c", "d"))
    assert "4 unprotected parameters moved, such as a, b, c" in str(moved).splitlines()
    # Rows change by 10 |x|: the largest by 20; |f| = 5 |x|, a root mean square of 5 sqrt(2.5).
    assert one.worst == pytest.approx(20 / (5 * 2.5**0.5))
    assert one.change.measured == pytest.approx(2.0)
    assert one.lost_at_most == pytest.approx(upper_limit(3, 4))
    half = {"weight": torch.tensor([[3.0], [-5.0]], dtype=torch.float64)}
    kept = certify(model, before, half, [Probe("old", x, labels)])
    assert kept.moved == pytest.approx(0.2)
    assert (kept.probes[0].flipped, kept.probes[0].lost) == (0, 0)
    remembered = certify(model, before, after, [Probe("old", x, labels, remembered=True)])
    assert remembered.probes[0].lost_at_most is None


@pytest.mark.parametrize(
    ("labels", "classes"), [([0, 1, 1, 1], True), ([[0], [1], [1], [1]], False), ([0.0, 1.0, 1, 1], False)]
)
def test_accuracy_is_only_named_where_labels_are_classes(labels, classes):
    model = nn.Linear(1, 2, bias=False).double()
    before = {"weight": torch.tensor([[3.0], [-4.0]], dtype=torch.float64)}
    x = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]], dtype=torch.float64)
    (one,) = certify(
        model, before, {"weight": -before["weight"]}, [Probe("old", x, torch.tensor(labels))]
    ).probes
    assert (one.lost is not None) == classes


def test_a_method_that_protects_inputs_has_no_outputs_of_its_own_to_certify():
    """GPM projects, but remembers no outputs: only what the user names is certified."""
    learner, data = two_tasks(orthocl.GPM(memory_per_task=10))
    found = learner.certificate({"a": (data[0][0][80:], data[0][1][80:])})
    assert [each.name for each in found.probes] == ["a"]
    assert found.probes[0].protected is None


def test_wording():
    model = nn.Linear(1, 2, bias=False).double()
    before = {"weight": torch.tensor([[3.0], [-4.0]], dtype=torch.float64)}
    x, labels = torch.tensor([[1.0], [1.0]], dtype=torch.float64), torch.tensor([0, 1])
    found = certify(model, before, {"weight": -before["weight"]}, [Probe("old", x, labels)])
    assert found.sentence.startswith(
        "Of 2 test samples of earlier tasks 1 was classified correctly by the weights before and is not by those after;"
    )
    row = str(found).splitlines()[3]
    assert "changed by 200.00% (first order 200.00%, curvature 0.00%, remainder 0.00%)" in row
    nearly = certify(model, before, {"weight": before["weight"] + 1e-9}, [Probe("old", x)])
    assert "changed by below 0.01% (first order below 0.01%," in str(nearly)


def test_a_memory_larger_than_the_model_is_named():
    learner, _ = two_tasks(orthocl.OGDPlus(memory_per_task=10))
    text = str(learner.certificate())
    assert "The memory is larger than the model (" in text
    assert "memory_per_task=" in text and "energy=" in text  # noqa: PT018
    learner, _ = two_tasks(orthocl.OGDPlus(memory_per_task=0))
    assert "larger" not in str(learner.certificate())
