from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from orthocl.errors import SettingsError, UnsupportedError
from orthocl.methods import GPM, OGD, make_method
from orthocl.nets import make_net, use_head
from orthocl.streams import from_arrays
from orthocl.tangents import collect
from orthocl.theory import (
    FORECAST_RULES,
    Descent,
    ForecastMemory,
    Regularised,
    forecast,
    forgetting_vector,
    judge,
    overlap,
    partial_rank_correlation,
    principal_cosines,
    tangent_drift,
)
from orthocl.theory.forecast import Forecast, Reader, share_right
from orthocl.theory.judgement import Pair, interval
from orthocl.training import TrainSettings
from orthocl.training.forecasting import Forecaster, descent_of, train_with_forecasts


def make_stream(tasks=3, samples=12, features=6, heads="shared"):
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(tasks):
        x = torch.randn(samples, features, generator=generator)
        y = torch.randint(0, 3, (samples,), generator=generator)
        y[:3] = torch.arange(3)
        data.append((x, y, x, y))
    return from_arrays(data, heads=heads)


def dense_rows(model, task, count, every):
    inputs, labels = task.train.samples(torch.arange(count))
    variant = "all" if every else "gtl"
    parameters = dict(model.named_parameters())
    return collect(model, inputs.double(), labels, parameters=parameters, variant=variant).dense().double()


def naive_steps(model, task, project, fit):
    """Full-batch descent by autograd, with every gradient put through `project`."""
    model = copy.deepcopy(model)
    inputs, labels = task.train.samples()
    inputs = inputs.double()
    wanted = nn.functional.one_hot(labels, 3).double()
    for _ in range(fit.steps):
        outputs = model(inputs)
        if fit.loss == "cross-entropy":
            loss = nn.functional.cross_entropy(outputs, labels)
        else:
            loss = (outputs - wanted).square().sum(1).mean() / 2
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        step, place = project(gradient), 0
        with torch.no_grad():
            for parameter in model.parameters():
                size = parameter.numel()
                parameter -= fit.learning_rate * step[place : place + size].reshape(parameter.shape)
                place += size
    return model


def off_rows(rows):
    if rows is None:
        return lambda gradient: gradient
    _, lengths, directions = torch.linalg.svd(rows, full_matrices=False)
    basis = directions[lengths > 1e-8 * lengths[0]]
    return lambda gradient: gradient - basis.T @ (basis @ gradient)


def off_inputs(inputs, energy, weights):
    """GPM's projection of a linear layer, by an eigenvalue decomposition of the inputs' covariance, 1 among them."""
    inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    values, vectors = torch.linalg.eigh(inputs.T @ inputs)
    values, vectors = values.flip(0), vectors.flip(1)
    needed = int((values.cumsum(0) < energy * values.sum() * (1 - 1e-12)).sum()) + 1
    basis = vectors[:, :needed]

    def project(gradient):
        both = torch.cat([gradient[:weights].reshape(3, -1), gradient[weights:, None]], 1)
        both = both - both @ basis @ basis.T
        return torch.cat([both[:, :-1].flatten(), both[:, -1]])

    return project


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_linear_heads_are_forecast_exactly(loss, variant):
    """For a model that is linear in its weights the forecast is what descent does."""
    stream = make_stream(tasks=2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Linear(6, 3).double()
    first, second = stream.task(1), stream.task(2)
    fit = Descent(0.1, 60, loss)
    memory = ForecastMemory(model, per_task=5, variant=variant, energy=0.9)
    memory.remember(first)
    rows = dense_rows(model, first, 5, variant == "all")
    inputs = first.train.samples(torch.arange(5))[0].double()
    projections = {
        "sgd": off_rows(None),
        "ogd": off_rows(rows),
        "ogd+": off_rows(rows),
        "gpm": off_inputs(inputs, 0.9, 18),
    }
    found = forecast(model, [first], second, fit=fit, memory=memory, samples=12)
    assert [each.rule for each in found] == list(FORECAST_RULES)
    for each in found:
        trained = naive_steps(model, second, projections[each.rule], fit)
        with torch.no_grad():
            expected = trained(first.train.samples()[0].double())
        assert (each.after - expected).abs().max() < 1e-6
        assert each.change == pytest.approx(
            float((expected - each.before).square().sum(1).mean()), rel=1e-6, abs=1e-12
        )
    # A linear model has the same tangents everywhere: OGD+ is OGD.
    assert (found[1].after - found[2].after).abs().max() < 1e-9


def test_shorter_steps_where_a_full_batch_would_overshoot():
    kernel = torch.diag(torch.tensor([100.0, 1.0], dtype=torch.float64))
    start, wanted = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    outputs = kernel @ Descent(1.0, 30, "squared").coefficients(kernel, start, wanted)
    assert (outputs - 1).abs().max() < 1e-6
    assert (kernel @ Regularised(0.0).coefficients(kernel, start, wanted) - 1).abs().max() < 1e-9


def test_stored_tangents_stay_and_renewed_ones_move():
    stream = make_stream(tasks=2)
    model = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [16]}).double()
    memory = ForecastMemory(model, per_task=12, variant="all")
    memory.remember(stream.task(1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    fit = Descent(0.05, 20)
    found = {
        each.rule: each
        for each in forecast(model, [stream.task(1)], stream.task(2), fit=fit, memory=memory, samples=12)
    }
    # All outputs of all samples are protected at the present weights: nothing moves to first order.
    assert found["ogd+"].change < 1e-12
    assert found["ogd"].change > 1e-8
    assert found["sgd"].change > found["ogd"].change


@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_a_trained_network_is_forecast_before_each_task(heads):
    stream = make_stream(heads=heads, samples=20)
    model = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [64]})
    settings = TrainSettings(epochs=10, batch_size=20, learning_rate=0.005)
    seen = []
    watcher = Forecaster(settings, samples=20, memory_per_task=20, variant="all", on_done=seen.append)
    progress = train_with_forecasts(model, stream, make_method("sgd"), watcher)
    assert seen == [1, 2, 3]
    assert len(progress.accuracies) == 4
    pairs = watcher.pairs("sgd")
    assert [(pair.task, pair.earlier) for pair in pairs] == [(2, 1), (3, 1), (3, 2)]
    for pair in pairs:
        assert pair.expected_change == pytest.approx(pair.measured_change, rel=0.25)
    protected = watcher.pairs("ogd+")
    assert all(
        pair.expected_change < 1e-6 * other.expected_change
        for pair, other in zip(protected, pairs, strict=True)
    )


def test_settings_are_checked():
    with pytest.raises(SettingsError, match="learning rate"):
        Descent(0.0, 3)
    with pytest.raises(SettingsError, match="unknown loss"):
        Descent(0.1, 3, "hinge")
    with pytest.raises(SettingsError, match="expected a ridge"):
        Regularised(float("nan"))
    with pytest.raises(SettingsError, match="made for SGD"):
        descent_of(TrainSettings(optimizer="adam"), 10, "squared")
    stream = make_stream(tasks=2)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).double()
    assert ForecastMemory(model, per_task=0).per_task == 0
    assert Descent(0.1, 0).steps == 0
    with pytest.raises(SettingsError, match="steps >= 0"):
        Descent(0.1, -1)
    with pytest.raises(SettingsError, match="per_task >= 0"):
        ForecastMemory(model, per_task=-1)
    memory = ForecastMemory(model, per_task=3)
    memory.remember(stream.task(1))
    fit = Descent(0.1, 2)
    with pytest.raises(UnsupportedError, match="leave 'gpm' out"):
        forecast(model, [stream.task(1)], stream.task(2), fit=fit, memory=memory)
    assert (
        len(forecast(model, [stream.task(1)], stream.task(2), fit=fit, memory=memory, rules=["sgd", "ogd"]))
        == 2
    )


def test_forgetting_vector_and_principal_angles():
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(n, 9, generator=generator, dtype=torch.float64) for n in (4, 6))
    residual = torch.randn(6, generator=generator, dtype=torch.float64)
    weights = torch.linalg.solve(two.T @ two + 0.3 * torch.eye(9, dtype=torch.float64), two.T @ residual)
    found = forgetting_vector(one @ two.T, two @ two.T, residual, ridge=0.3)
    assert (found - one @ weights).abs().max() < 1e-10
    q1, q2 = torch.linalg.qr(one.T)[0], torch.linalg.qr(two.T)[0]
    expected = torch.linalg.svdvals(q1.T @ q2)
    for unit in (1e-8, 1.0, 1e8):  # angles have none
        grams = unit**2 * (one @ one.T), unit * (one @ two.T), two @ two.T
        assert (principal_cosines(*grams) - expected).abs().max() < 1e-9
    with pytest.raises(SettingsError, match="energy"):
        principal_cosines(one @ one.T, one @ two.T, two @ two.T, energy=0.0)


@pytest.mark.parametrize(("energy", "shared"), [(1.0, 1.0), (0.95, 1.0), (0.9, 0.0), (0.5, 0.0)])
def test_directions_of_little_energy_are_left_out(energy, shared):
    """Rows (3, 0) and (0, 1) have nine tenths of their squared length along the first axis; the other is (0, 5)."""
    one, two = torch.diag(torch.tensor([3.0, 1.0])), torch.tensor([[0.0, 5.0]])
    found = principal_cosines(one @ one.T, one @ two.T, two @ two.T, energy)
    assert float(found.max()) == pytest.approx(shared)


def test_overlap_and_drift():
    stream = make_stream(tasks=3)
    model = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [16]}).double()
    parameters = dict(model.named_parameters())
    tangents = []
    for number in (1, 1, 2):
        inputs, labels = stream.task(number).train.samples()
        tangents.append(collect(model, inputs.double(), labels, parameters=parameters, variant="gtl"))
    table = overlap(tangents, energy=1.0)
    assert float(table[0, 1]) == pytest.approx(1.0, abs=1e-9)
    assert 0 < float(table[0, 2]) < 1
    assert torch.equal(table, table.T)
    states = [{name: value.clone() for name, value in model.state_dict().items()} for _ in range(4)]
    drift = tangent_drift(model, states, list(stream), samples=5)
    assert (drift.cosine.triu().nan_to_num(1.0)[drift.cosine.triu() != 0] - 1).abs().max() < 1e-9
    assert drift.cosine[2, 0].isnan()
    before = {name: value.clone() for name, value in states[3].items()}
    states[3] = {name: -2 * value for name, value in states[3].items()}
    assert float(tangent_drift(model, states, list(stream), samples=5).cosine[0, 2]) < 0.9
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_judgement_by_hand():
    generator = np.random.default_rng(0)
    seeds = []
    for _ in range(5):
        pairs = []
        for task in range(2, 7):
            for earlier in range(1, task):
                truth = float(generator.exponential())
                guess = truth * float(np.exp(0.1 * generator.normal()))
                pairs.append(Pair(task, earlier, 6, guess, truth, guess, truth))
        seeds.append(pairs)
    found = judge(seeds)
    assert found.forecast.mean > 0.9
    assert found.partial.mean > 0.9
    assert abs(found.lag.mean) < 0.4
    x, y, z = (generator.normal(size=30) for _ in range(3))
    ranks = [stats.rankdata(v) for v in (x, y, z)]
    residuals = [np.array(r - np.polyval(np.polyfit(ranks[2], r, 1), ranks[2])) for r in ranks[:2]]
    assert partial_rank_correlation(x, y, z) == pytest.approx(np.corrcoef(*residuals)[0, 1], abs=1e-9)
    assert interval([1.0]).seeds == 1


def jacobian(model, task, count=None):
    """Of all outputs of the task's head, in all parameters of the model."""
    inputs = task.train.samples()[0].double()[:count]
    rows = []
    with use_head(model, task.head):
        for value in model(inputs).flatten():
            parts = torch.autograd.grad(value, list(model.parameters()), retain_graph=True, allow_unused=True)
            pairs = zip(parts, model.parameters(), strict=True)
            rows.append(
                torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for g, p in pairs]).double()
            )
    return torch.stack(rows)


def leading_inputs(inputs, energy):
    """An orthonormal basis of the fewest directions that hold this share of the squared length."""
    lengths, directions = torch.linalg.svd(inputs, full_matrices=False)[1:]
    held = lengths.square().cumsum(0) / lengths.square().sum()
    return directions[: int((held < energy).sum()) + 1]


def test_a_net_with_several_heads_is_forecast_by_explicit_projections():
    """Trunk weights are off the stored tangents or inputs, biases too; heads are free."""
    stream = make_stream(tasks=2, heads="per-task")
    first, second = stream.task(1), stream.task(2)
    model = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [5, 4]}, seed=0).double()
    memory = ForecastMemory(model, per_task=4, variant="all", energy=0.8)
    memory.remember(first)
    theirs, own = jacobian(model, first), jacobian(model, second)
    shared = torch.cat(
        [
            torch.full((p.numel(),), float(not name.startswith("heads")), dtype=torch.float64)
            for name, p in model.named_parameters()
        ]
    )
    off_tangents = off_rows(jacobian(model, first, 4) * shared)
    x = first.train.samples()[0].double()[:4]
    layers = [module for module in model.trunk.modules() if isinstance(module, nn.Linear)]
    bases, now = {}, x
    for layer in layers:
        bases[id(layer.weight)] = leading_inputs(torch.cat([now, torch.ones(4, 1)], 1), 0.8)
        now = layer(now).relu().detach()

    def off_layers(row):
        sizes = [p.numel() for p in model.parameters()]
        parts = list(row.split(sizes))
        for place, p in enumerate(model.parameters()):
            basis = bases.get(id(p))
            if basis is not None:  # its bias comes next
                both = torch.cat([parts[place].reshape(p.shape), parts[place + 1][:, None]], 1)
                both = both - both @ basis.T @ basis
                parts[place], parts[place + 1] = both[:, :-1].flatten(), both[:, -1]
        return torch.cat(parts)

    project = {"sgd": lambda row: row, "ogd": off_tangents, "ogd+": off_tangents, "gpm": off_layers}
    with torch.no_grad(), use_head(model, second.head):
        start = model(second.train.samples()[0].double())
    wanted = nn.functional.one_hot(second.train.samples()[1], 3).double()
    found = forecast(model, [first], second, fit=Regularised(0.5), memory=memory, samples=12)
    assert [each.rule for each in found] == list(FORECAST_RULES)
    for each in found:
        free = torch.stack([project[each.rule](row) for row in own])
        shifted = free @ free.T + 0.5 * torch.eye(len(free), dtype=torch.float64)
        step = free.T @ torch.linalg.solve(shifted, (wanted - start).flatten())
        moved = (theirs @ step).reshape(each.before.shape)
        torch.testing.assert_close(each.after - each.before, moved, rtol=1e-7, atol=1e-9)
    assert len({round(each.change, 9) for each in found}) == 3  # OGD+ is OGD at the same weights


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_inputs_that_gpm_protects_after_several_tasks(unit):
    """Directions are added one by one until they hold nine tenths of a task's squared length."""
    data = [task.train.samples() for task in make_stream(tasks=3)]
    stream = from_arrays([(unit * x, y, x, y) for x, y in data])
    model = nn.Linear(6, 3).double()
    memory = ForecastMemory(model, per_task=3, energy=0.9)
    basis = torch.zeros(0, 7, dtype=torch.float64)
    for task in stream:
        memory.remember(task)
        inputs = task.train.samples(torch.arange(3))[0].double()
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)  # the bias is a weight of it
        while (inputs @ basis.T).square().sum() < 0.9 * inputs.square().sum():
            rest = inputs - inputs @ basis.T @ basis
            basis = torch.cat([basis, torch.linalg.svd(rest)[2][:1]])
        (found,) = memory.bases.values()
        assert found.shape == (7, len(basis))
        torch.testing.assert_close(found @ found.T, basis.T @ basis, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_reading_a_model_uses_eval_mode_and_restores_its_own(training):
    (task,) = make_stream(tasks=1)
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.9)).double().train(training)
    reader = Reader(model, samples=12)
    expected = model[0](task.train.samples()[0].double()).detach()
    torch.testing.assert_close(reader.outputs(task), expected)
    assert model.training == training
    reader.tangents(task, every=True)
    assert model.training == training


def test_shares_and_drops_by_hand():
    outputs = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0], [1.0, 0.0]])
    labels = torch.tensor([0, 1, 0, 1])
    assert share_right(outputs, labels) == 0.75
    found = Forecast(2, 1, "sgd", outputs, outputs.flip(1), labels)
    assert found.drop == pytest.approx(0.5)
    assert found.change == pytest.approx((2 + 18 + 2 + 2) / 4)


def test_drift_is_that_of_the_labels_logits():
    stream = make_stream(tasks=2)
    model = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [7]}, seed=0).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    states = [{name: (1 + 0.2 * k) * v + 0.1 * k for name, v in start.items()} for k in range(3)]
    drift = tangent_drift(model, states, list(stream), samples=12)
    rows = []
    for state in states[1:]:
        model.load_state_dict(state)
        rows.append(dense_rows(model, stream.task(1), 12, every=False))
    then, now = rows
    cosines = nn.functional.cosine_similarity(then, now, dim=1)
    assert float(drift.cosine[0, 1]) == pytest.approx(float(cosines.mean()), rel=1e-9)
    assert float(drift.growth[0, 1]) == pytest.approx(float(now.norm() / then.norm()), rel=1e-9)


@pytest.mark.parametrize("rule", ["ogd", "gpm"])
def test_a_linear_model_is_forecast_as_the_method_itself_trains_it(rule):
    """With a bias and everything kept GPM changes no old output: measured 0, so the forecast must say 0."""
    stream = make_stream(tasks=2, samples=4)
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    start = copy.deepcopy(model)
    method = GPM(memory_per_task=4, threshold=1.0) if rule == "gpm" else OGD(memory_per_task=4, variant="all")
    settings = TrainSettings(epochs=40, learning_rate=0.1, batch_size=4)
    watcher = Forecaster(
        settings, samples=4, memory_per_task=4, variant="all", rules=(rule, "sgd"), energy=1.0
    )
    train_with_forecasts(model, stream, method, watcher)
    (pair,), (plain,) = watcher.pairs(rule), watcher.pairs("sgd")
    assert pair.measured_change < 1e-9
    assert pair.expected_change < 1e-9
    assert plain.expected_change > 1e-3
    assert (model.bias - start.bias).abs().max() > 1e-3
