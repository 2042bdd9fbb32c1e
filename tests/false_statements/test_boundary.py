"""The boundary of a task: what happens to weights, samples and outputs between two blocks must not undo protection.

Each claim is measured without the library: gradients of the remembered outputs by autograd, the displacement of a task
from the weights themselves. Either the leak is rounding, or the call is refused, or the loss is said; and on clean
data the same calls are silent and protect.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import orthocl
from orthocl.errors import DataError, DivergenceError, UnsupportedError
from orthocl.integrations.session import Session
from orthocl.methods import METHODS

ROUNDING = 1e-9
CHANGED = "the weights have changed since the last task ended"
PLAIN = {"sgd", "stable-sgd"}  # they remember nothing
RECOMPUTED = {"a-gem", "a-gem-nt", "er", "joint"}  # they keep samples and look at them anew at every step


def task(number, samples=40, features=8):
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(3, (samples,), generator=generator))


def network(*first):
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3)).double()


def made(name, **settings):
    return METHODS[name](**settings, **({"dropout": None} if name == "stable-sgd" else {}))


def attached(method, model, **settings):
    return orthocl.attach(method, model, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, **settings)


def train(learner, data, steps=12, model=None):
    inputs, targets = data.tensors[:2]
    for step in range(steps):
        rows = torch.arange(step * 5, step * 5 + 5) % len(inputs)
        learner.optimizer.zero_grad()
        outputs = (model or learner.model)(inputs[rows])
        (cross_entropy(outputs, targets[rows]) + learner.penalty()).backward()
        learner.optimizer.step()


def fit(learner, data, **settings):
    """One task, and the warnings that it gave."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with learner.learning(data):
            train(learner, data, **settings)
    return [str(one.message) for one in found]


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradients(model, inputs, targets, outputs=None):
    """A row for each sample: the gradient of the output of its label, by autograd."""
    model.eval()
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        output = (outputs or (lambda m, x: m(x)))(model, x[None])[0, y]
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(output, list(model.parameters()))]))
    model.train()
    return torch.stack(rows)


def leak(rows, moved):
    """Share of a displacement in the span of some rows."""
    basis = torch.linalg.svd(rows, full_matrices=False).Vh
    return float((basis @ moved).norm() / moved.norm())


def second_task(learner, change=lambda model: None, data=None, **settings):
    """Warnings of a second task and its leak into the gradients at the weights at which it begins."""
    change(learner.model)
    piece = learner.method.remembered[1]
    inputs, targets = (part[piece] for part in task(1).tensors)
    rows, before = (
        gradients(learner.model, inputs, targets, settings.pop("outputs", None)),
        weights(learner.model),
    )
    said = fit(learner, data or task(2), **settings)
    return said, leak(rows, weights(learner.model) - before)


def earlier_epoch(model):
    """An earlier epoch is loaded: here, weights as they were before the task, halfway."""
    torch.manual_seed(0)
    start = network()
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), start.parameters(), strict=True):
            parameter.lerp_(other, 0.5)


# ---- weights replaced between two blocks ------------------------------------------------------------------


def test_without_a_change_the_promise_holds_in_silence():
    for method in (orthocl.OGD(memory_per_task=15), orthocl.OGDPlus(memory_per_task=15)):
        learner = attached(method, network())
        assert fit(learner, task(1)) == []
        said, share = second_task(learner)
        assert said == []
        assert share < ROUNDING


def test_ogd_says_what_weights_that_were_loaded_cost_it():
    learner = attached(orthocl.OGD(memory_per_task=15), network())
    fit(learner, task(1))
    said, share = second_task(learner, earlier_epoch)
    assert share > 1e-3  # the attack works: the leak that the monitor does not see
    assert learner.method.monitor(learner)["leak"] < ROUNDING
    (warning,) = [text for text in said if CHANGED in text]
    assert "lie outside what ogd protects" in warning
    assert "0.0%" not in warning


@pytest.mark.parametrize("refresh", ["replace", "append"])
def test_ogd_plus_takes_its_tangents_again_at_the_weights_that_were_loaded(refresh):
    learner = attached(orthocl.OGDPlus(memory_per_task=15, refresh=refresh), network())
    fit(learner, task(1))
    said, share = second_task(learner, earlier_epoch)
    assert share < ROUNDING
    assert [
        CHANGED in text and "tangents of all 15 kept samples were taken again" in text for text in said
    ] == [True]


@pytest.mark.parametrize("name", sorted(METHODS.keys()))
def test_every_method_whose_memory_depends_on_the_weights_says_so(name):
    learner = attached(made(name), network())
    fit(learner, task(1))
    assert not any(CHANGED in text for text in fit(learner, task(2)))
    earlier_epoch(learner.model)
    said = [CHANGED in text for text in fit(learner, task(3))].count(True)
    assert said == (name not in PLAIN | RECOMPUTED)


def test_members_of_a_chain_are_asked_too():
    learner = attached(orthocl.chain(orthocl.OGD(memory_per_task=5), orthocl.EWC()), network())
    fit(learner, task(1))
    earlier_epoch(learner.model)
    (warning,) = [text for text in fit(learner, task(2)) if CHANGED in text]
    assert "protects" in warning
    assert "importances that ewc keeps" in warning


@pytest.mark.parametrize("weights_first", [True, False])
@pytest.mark.parametrize("loaded", ["those that were saved", "others"])
def test_a_memory_in_another_process_knows_its_weights(loaded, weights_first, tmp_path):
    learner = attached(orthocl.OGD(memory_per_task=15), network())
    fit(learner, task(1))
    learner.save(tmp_path / "memory.safetensors")
    if loaded == "others":
        earlier_epoch(learner.model)
    saved = copy.deepcopy(learner.model.state_dict())
    model = network()
    again = attached(orthocl.OGD(memory_per_task=15), model)
    if weights_first:
        model.load_state_dict(saved)
    again.load(tmp_path / "memory.safetensors")
    model.load_state_dict(saved)
    assert any(CHANGED in text for text in fit(again, task(2))) == (loaded == "others")


def test_a_session_of_trainers_knows_the_weights_of_its_last_fit():
    model, session = network(), Session(orthocl.OGDPlus(memory_per_task=15), seed=0)
    said = []
    for number in (1, 2, 3):
        if number == 3:
            earlier_epoch(model)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            learner = session.begin(model, torch.optim.SGD(model.parameters(), lr=0.1), task(number))
            train(learner, task(number))
            session.end()
        said.append(any("weights were changed after the fit" in str(one.message) for one in found))
    assert said == [False, False, True]


def test_files_of_earlier_versions_without_checksums_are_read():
    learner = attached(orthocl.OGD(memory_per_task=15), network())
    fit(learner, task(1))
    state = learner.state_dict()
    del state["weights"]
    again = attached(orthocl.OGD(memory_per_task=15), network())
    again.load_state_dict(state)
    assert not any(CHANGED in text for text in fit(again, task(2)))
    assert again.tasks_done == 2


@pytest.mark.parametrize("after", ["the weights of before", "the weights of the failure"])
def test_a_task_that_failed_raises_no_false_alarm(after):
    learner = attached(orthocl.OGD(memory_per_task=15), network())
    fit(learner, task(1))
    before = copy.deepcopy(learner.model.state_dict())
    with pytest.raises(KeyboardInterrupt), learner.learning(task(2)):  # noqa: PT012
        train(learner, task(2))
        raise KeyboardInterrupt
    if after == "the weights of before":
        learner.model.load_state_dict(before)
    assert not any(CHANGED in text for text in fit(learner, task(2)))
    earlier_epoch(learner.model)
    assert any(CHANGED in text for text in fit(learner, task(3)))


def test_a_conversion_of_the_weights_is_no_change():
    learner = attached(orthocl.OGD(memory_per_task=15), network())
    fit(learner, task(1))
    learner.model.float()
    data = TensorDataset(task(2).tensors[0].float(), task(2).tensors[1])
    assert not any(CHANGED in text for text in fit(learner, data))


# ---- items of three ---------------------------------------------------------------------------------------


class Labelled(nn.Module):
    """As models of continual learning libraries: it takes the number of the task and may ignore it."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, task_labels=None):
        return self.net(x)


def triples(number):
    inputs, targets = task(number).tensors
    return TensorDataset(inputs, targets, torch.full((len(inputs),), number))


@pytest.mark.parametrize("name", ["ogd", "ogd+", "gpm", "ewc", "er"])
def test_the_number_of_a_task_is_not_taken_for_a_target(name):
    learner = attached(made(name), Labelled())
    with pytest.raises(DataError, match=r"the same in \d+ items.*batch=lambda"), learner.learning(triples(1)):
        pass
    assert learner.tasks_done == 0


def test_with_batch_triples_are_protected_in_silence():
    learner = attached(orthocl.OGD(memory_per_task=15), Labelled(), batch=lambda batch: (batch[0], batch[1]))
    assert fit(learner, triples(1)) == []
    said, share = second_task(learner, data=triples(2))
    assert said == []
    assert share < ROUNDING


@pytest.mark.parametrize("targets", ["sorted", "one odd in a thousand"])
def test_two_inputs_and_a_target_are_read_as_ever(targets):
    count = 1000 if "odd" in targets else 40
    labels = torch.arange(count) // (count // 2) if targets == "sorted" else torch.arange(count) % 20 // 19
    data = TensorDataset(torch.randn(count, 4).double(), torch.randn(count, 4).double(), labels)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, z):
            return self.net(torch.cat([x, z], 1))

    learner = attached(orthocl.OGD(memory_per_task=15), Two())
    with learner.learning(data):
        pass
    assert learner.method.subspace.rank == 15


# ---- outputs ----------------------------------------------------------------------------------------------


class Coder(nn.Module):
    """A variational autoencoder: what it returns is random, in eval mode too, and a tuple."""

    def __init__(self, several=True):
        super().__init__()
        self.net, self.several = network(), several

    def forward(self, x):
        mean = self.net(x)
        drawn = mean + 0.1 * torch.randn_like(mean)
        return (drawn, mean) if self.several else drawn


@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd", "gpm"])
@pytest.mark.parametrize("several", [True, False])
def test_random_outputs_are_refused(name, several):
    learner = attached(made(name), Coder(several))
    reason = "a tuple with one tensor" if several else "two evaluations of one batch gave different outputs"
    with pytest.raises(UnsupportedError, match=reason) as caught, learner.learning(task(1)):
        raise AssertionError("refused before anything is learnt")
    assert "outputs=lambda" in str(caught.value)
    assert learner.tasks_done == 0


def test_a_named_output_that_is_not_random_is_protected_in_silence():
    def mean(model, x):
        return model(x)[1]

    learner = attached(orthocl.OGD(memory_per_task=15), Coder(), outputs=mean)
    settings = {"model": lambda x: learner.model(x)[0]}
    assert fit(learner, task(1), **settings) == []
    said, share = second_task(learner, outputs=mean, **settings)
    assert said == []
    assert share < ROUNDING


def test_dropout_is_no_random_output():
    learner = attached(orthocl.OGD(memory_per_task=15), network(nn.Dropout(0.5)))
    fit(learner, task(1))
    assert second_task(learner)[1] < ROUNDING


def test_transformers_outputs_with_logits_keep_working():
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.SequenceClassifierOutput

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            logits = self.net(x)
            return output(loss=logits.mean(), logits=logits, hidden_states=(x, logits))

    learner = attached(orthocl.OGD(memory_per_task=15), Model())
    settings = {"model": lambda x: learner.model(x).logits}
    assert fit(learner, task(1), **settings) == []
    assert second_task(learner, outputs=lambda m, x: m(x).logits, **settings)[1] < ROUNDING


# ---- running statistics -----------------------------------------------------------------------------------


class Normaliser(nn.Module):
    """Running mean of the inputs, as in reinforcement learning."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


def shifted(number):
    inputs, targets = task(number).tensors
    return TensorDataset(inputs + 2, targets)


def old_outputs(model):
    model.eval()
    found = model(task(1).tensors[0]).detach()
    model.train()
    return found


@pytest.mark.parametrize("name", ["ogd", "ogd+", "gpm", "ewc"])
def test_running_statistics_of_instance_norm_are_frozen_after_the_first_task(name):
    norm = nn.InstanceNorm1d(8, track_running_stats=True)
    model = network(nn.Unflatten(1, (8, 1)), _Repeat(), norm, _Mean())
    learner = attached(made(name), model)
    fit(learner, task(1))
    then = norm.running_mean.clone()
    said = fit(learner, shifted(2))
    assert torch.equal(norm.running_mean, then)
    assert not any("statistics" in text or "buffers" in text for text in said)


class _Repeat(nn.Module):
    def forward(self, x):
        return torch.cat([x, 2 * x], 2)


class _Mean(nn.Module):
    def forward(self, x):
        return x.mean(2)


def test_a_normaliser_that_moves_is_named_with_what_it_changes():
    model = network(Normaliser())
    learner = attached(orthocl.OGD(memory_per_task=40), model)
    assert fit(learner, task(1)) == []
    before = model[0].mean.clone()
    said = fit(learner, shifted(2))
    after, now = model[0].mean.clone(), old_outputs(model)
    model[0].mean.copy_(before)
    then = old_outputs(model)
    model[0].mean.copy_(after)
    chosen = learner.method.watcher.probes[1][0].index  # measured on a few
    effect = float((now - then)[chosen].norm() / then[chosen].norm())
    (warning,) = [text for text in said if "buffers" in text]
    assert (
        f"such as '0.mean', kept moving during the task and changed remembered outputs by {effect:.1%}"
        in warning
    )


def test_without_samples_a_normaliser_is_named_all_the_same():
    learner = attached(orthocl.GPM(memory_per_task=15), network(Normaliser()))
    assert not any("buffers" in text for text in fit(learner, task(1)))
    assert any(
        "buffers, such as '0.mean'" in text and "unknown amount" in text for text in fit(learner, shifted(2))
    )


def test_a_normaliser_that_is_held_is_silent_and_protected():
    learner = attached(orthocl.OGD(memory_per_task=15), network(Normaliser()))
    fit(learner, task(1))
    learner.model[0].forward = lambda x: x - learner.model[0].mean
    said, share = second_task(learner, data=shifted(2))
    assert not any("buffers" in text for text in said)
    assert share < ROUNDING


# ---- a memory that holds nothing --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd", "orfit", "sketch-ogd"])
def test_a_memory_of_rank_zero_says_that_it_protects_nothing(name):
    def saturated(model, x):
        return torch.sigmoid(model(x) * 0 + 1e4)

    learner = attached(made(name), network(), outputs=saturated)
    (warning,) = [text for text in fit(learner, task(1)) if "protects nothing" in text]
    assert "task 1 do not react to any weight" in warning
    assert learner.method.monitor(learner)["rank"] == 0


@pytest.mark.parametrize("name", ["gpm", "sgp", "kron-ogd"])
@pytest.mark.parametrize("threshold", [0.0, 1e-320])
def test_a_threshold_of_zero_trains_and_says_that_nothing_is_protected(name, threshold):
    learner = attached(METHODS[name](threshold=threshold), network())
    for number in (1, 2):
        assert any("protects nothing" in text for text in fit(learner, task(number)))
    assert learner.tasks_done == 2


# ---- what is not finite -----------------------------------------------------------------------------------


def spoiled(number, value, where):
    inputs, targets = (part.clone() for part in task(number).tensors)
    if where == "inputs":
        inputs[7, 3] = value
        return TensorDataset(inputs, targets)
    targets = targets.double()
    targets[7] = value
    return TensorDataset(inputs, targets)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", sorted(METHODS.keys() - PLAIN - {"adapter-ogd", "si"}))
def test_a_sample_that_is_not_finite_never_enters_a_memory(name, value):
    learner = attached(
        METHODS[name](**{"memory_per_task": 40} if name not in ("ewc", "mas") else {}), network()
    )
    with pytest.raises(DataError, match=r"sample 7 of task 1 has NaN or infinite values in its inputs"):  # noqa: SIM117
        with learner.learning(spoiled(1, value, "inputs")):
            train(learner, TensorDataset(task(1).tensors[0][10:], task(1).tensors[1][10:]))
    assert learner.tasks_done == 0
    for number in (1, 2):
        fit(learner, task(number))
    assert bool(weights(learner.model).isfinite().all())


@pytest.mark.parametrize("name", ["ogd", "er", "joint", "a-gem"])
def test_targets_that_are_not_finite_are_refused_too(name):
    learner = attached(
        METHODS[name](**{"memory_per_task": 40} | ({"variant": "all"} if name == "ogd" else {})), network()
    )
    with (
        pytest.raises(DataError, match="sample 7 of task 1 has NaN or infinite values in its targets"),
        learner.learning(spoiled(1, float("nan"), "targets")),
    ):
        pass


def test_a_sample_that_is_not_drawn_does_no_harm():
    learner = attached(orthocl.OGD(memory_per_task=1), network())
    fit(learner, task(1))
    inputs, targets = spoiled(1, float("nan"), "inputs").tensors
    with learner.learning(TensorDataset(inputs, targets)):
        train(learner, task(2))
    assert bool(weights(learner.model).isfinite().all())


@pytest.mark.parametrize("name", sorted(METHODS.keys()))
def test_weights_that_have_diverged_are_never_remembered(name):
    learner = attached(made(name), network())
    with pytest.raises(DivergenceError, match="NaN or infinite at the end"), learner.learning(task(1)):  # noqa: PT012
        with torch.no_grad():
            learner.model[0].weight[0, 0] = float("inf")
        learner.guard.stepped()
    assert learner.tasks_done == 0


def test_importances_that_overflow_are_refused():
    model = network().float()
    learner = attached(orthocl.MAS(), model)
    with torch.no_grad():
        model[2].weight.mul_(1e30)
    data = TensorDataset(task(1).tensors[0].float(), task(1).tensors[1])
    with pytest.raises(DivergenceError, match="importances of mas"), learner.learning(data):
        pass
