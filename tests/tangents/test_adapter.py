from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from orthocl.errors import SettingsError, TrainingError
from orthocl.nets import MLP
from orthocl.tangents import Adapter, Subspace, collect
from orthocl.tangents.adapter import complete_weights

STEPS = 200
OPTIMIZERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "dampening": {"momentum": 0.7, "dampening": 0.5},
}


def vector(parts) -> torch.Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def fill(problem, variant="gtl", dtype=None):
    subspace = Subspace(problem.parameters, dtype=dtype)
    subspace.append(
        collect(problem.model, problem.x, problem.y, parameters=problem.parameters, variant=variant), 1
    )
    return subspace


def batches(problem, steps=STEPS, size=5):
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        rows = torch.randint(0, len(problem.x), (size,), generator=generator)
        y = torch.randint(0, 3, (size,), generator=generator)
        x = problem.x[rows]
        yield (x.flip(1) if x.is_floating_point() else x), y


def adapted(problem, subspace, settings, steps=STEPS, merge_at=(), **options):
    model = problem.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, **settings)
    adapter = Adapter(model, subspace, problem.parameters, **options)
    for number, (x, y) in enumerate(batches(problem, steps)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        adapter.step(0.02, **settings)
        if number in merge_at:
            adapter.merge()
    adapter.remove()
    return vector(problem.parameters.values())


def dense(problem, truth, settings, steps=STEPS):
    """The published algorithm: an orthonormal basis of explicit gradients, and the gradient minus its projection."""
    model = problem.model
    _, values, basis = torch.linalg.svd(truth, full_matrices=False)
    basis = basis[values > 1e-9 * values[0]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, **settings)
    own = list(problem.parameters.values())
    for x, y in batches(problem, steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        gradient = vector([torch.zeros_like(p) if p.grad is None else p.grad for p in own])
        gradient = gradient - basis.t() @ (basis @ gradient)
        for p, part in zip(own, gradient.split([p.numel() for p in own]), strict=True):
            p.grad = part.view_as(p)
        optimizer.step()
    return vector(own)


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
@pytest.mark.parametrize(
    "name", ["mlp", "lenet", "heads", "transformer", "frozen", "convolutions", "sequence"]
)
def test_trajectory_is_that_of_dense_projection(make_problem, name, kind):
    problem = make_problem(name)
    problem.model.eval()  # no dropout; batch statistics as in the policy
    twin = copy.deepcopy(problem.model)
    start = vector(problem.parameters.values())
    truth = problem.jacobian()
    # A large assumed batch moves every layer directly, a small one adapts all linear layers.
    found = adapted(problem, fill(problem), OPTIMIZERS[kind], merge_at=(3, 90), batch_size=1)
    other = make_problem(name)
    other.model.load_state_dict(twin.state_dict())
    other.model.eval()
    expected = dense(other, truth, OPTIMIZERS[kind])
    assert (expected - start).norm() > 1e-3
    assert float((found - expected).norm() / (expected - start).norm()) < 1e-9
    assert torch.linalg.vector_norm(truth @ (found - start)) < 1e-10 * (found - start).norm()


@pytest.mark.parametrize("batch_size", [1, 10_000])
@pytest.mark.parametrize("variant", ["ave", "all"])
def test_all_variants_adapted_or_moved_directly(make_problem, variant, batch_size):
    problem, other = make_problem("mlp"), make_problem("mlp")
    subspace = fill(problem, variant)
    truth = other.jacobian(variant)
    found = adapted(problem, subspace, {"momentum": 0.9}, batch_size=batch_size)
    expected = dense(other, truth, {"momentum": 0.9})
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_the_choice_between_adapting_and_moving_follows_the_cost_model(make_problem):
    problem = make_problem("mlp")
    subspace = fill(problem)
    for batch_size, expected in ((1, 2), (10_000, 0)):  # the last layer is moved directly, sorted by output
        adapter = Adapter(problem.model, subspace, problem.parameters, batch_size=batch_size)
        assert (len(adapter.layers), len(adapter.direct)) == (expected, 3 - expected)
        adapter.remove()


@pytest.mark.parametrize("components", [1, 3])
def test_principal_components_are_adapted_too(make_problem, components):
    problem = make_problem("mlp")
    subspace = Subspace(problem.parameters)
    tangents = collect(problem.model, problem.x, problem.y, parameters=problem.parameters)
    subspace.append(tangents, 1, components=components)
    top = torch.linalg.svd(problem.jacobian(), full_matrices=False)[2][:components]
    start = vector(problem.parameters.values())
    moved = adapted(problem, subspace, {}, steps=40, batch_size=1) - start
    assert (top @ moved).abs().max() < 1e-12
    expected = dense(make_problem("mlp"), top, {}, steps=40) - start
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("storage", "repeats"), [(torch.float32, None), (torch.bfloat16, None), (torch.float32, 1e-3)]
)
def test_leak_in_float32_stays_small_over_a_task(storage, repeats):
    torch.manual_seed(0)
    model = MLP((20,), (30, 30), 5)
    x, y = torch.randn(120, 20), torch.randint(0, 5, (120,))
    if repeats is not None:  # pairs of samples that are almost the same: K has a condition of 1e8
        x, y = torch.cat([x[:60], x[:60] + repeats * torch.randn(60, 20)]), torch.cat([y[:60], y[:60]])
    parameters = dict(model.named_parameters())
    subspace = Subspace(parameters, dtype=storage)
    subspace.append(collect(model, x, y, parameters=parameters), 1)
    before = [p.detach().clone() for p in parameters.values()]
    adapter = Adapter(model, subspace, parameters, batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1500):
        rows = torch.arange(16 * step, 16 * step + 16) % 120
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows].flip(1)), y[rows]).backward()
        optimizer.step()
        adapter.step(0.05)
    adapter.remove()
    moved = [p.detach() - q for p, q in zip(parameters.values(), before, strict=True)]
    assert vector(moved).norm() > 0.5
    assert subspace.leak(moved) < (1e-6 if repeats is None else 1e-4)


def test_model_looks_merged_from_outside(make_problem):
    problem = make_problem("mlp")
    subspace = fill(problem)
    names = list(problem.model.state_dict())
    adapter = Adapter(problem.model, subspace, problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)

    def train(steps):
        for x, y in batches(problem, steps):
            optimizer.zero_grad()
            functional.cross_entropy(problem.model(x), y).backward()
            optimizer.step()
            adapter.step(0.1)

    def same(model):
        assert not any(hasattr(module, "tangent_adapter") for module in model.modules())
        torch.testing.assert_close(model(problem.x), problem.model(problem.x), rtol=1e-12, atol=1e-12)

    train(5)
    assert adapter.alpha.abs().max() > 1e-6
    state = problem.model.state_dict()
    assert list(state) == names
    plain = MLP((6,), (9, 8), 3).double()
    plain.load_state_dict(state)
    same(plain)
    train(5)
    expected = problem.model(problem.x).detach()
    clone = copy.deepcopy(problem.model)
    same(clone)
    train(2)
    torch.testing.assert_close(clone(problem.x), expected, rtol=1e-12, atol=1e-12)
    same(pickle.loads(pickle.dumps(problem.model)))
    train(3)
    expected = problem.model(problem.x).detach()
    adapter.remove()
    assert all(
        type(module) in (MLP, nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout)
        for module in problem.model.modules()
    )
    torch.testing.assert_close(problem.model(problem.x), expected, rtol=1e-12, atol=1e-12)


def test_loaded_weights_are_those_that_are_trained_and_their_leak_is_taken_out(make_problem):
    """The network computes with what was loaded; at the end nothing since the start of the task lies in the span."""
    problem = make_problem("mlp")
    start = [p.detach().clone() for p in problem.model.parameters()]
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    torch.manual_seed(11)
    other = MLP((6,), (9, 8), 3).double()
    for number, (x, y) in enumerate(batches(problem, 6)):
        if number == 3:
            problem.model.load_state_dict(other.state_dict())
            torch.testing.assert_close(problem.model(x), other(x))
        optimizer.zero_grad()
        functional.cross_entropy(problem.model(x), y).backward()
        optimizer.step()
        adapter.step(0.1)
    adapter.remove()
    moved = [p.detach() - q for p, q in zip(problem.model.parameters(), start, strict=True)]
    loaded = [p.detach() - q for p, q in zip(other.parameters(), start, strict=True)]
    assert adapter.subspace.leak(loaded) > 1e-2
    assert adapter.subspace.leak(moved) < 1e-12
    apart = vector(moved) - vector(adapter.subspace.outside(loaded))
    assert 1e-4 < apart.norm() < 1


def test_checkpoint_in_the_middle_of_a_task(make_problem):
    settings = {"momentum": 0.9}
    whole = make_problem("lenet")
    whole.model.eval()
    subspace = fill(whole)
    expected = adapted(whole, subspace, settings, steps=20, batch_size=1)

    def run(saved, first, last):
        problem = make_problem("lenet")
        problem.model.eval()
        optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.02, **settings)
        start = [p.detach().clone() for p in problem.model.parameters()]
        if saved is not None:
            with torch.no_grad():
                for parameter, value in zip(problem.model.parameters(), saved[0], strict=True):
                    parameter.copy_(value)
            optimizer.load_state_dict(saved[1])
        adapter = Adapter(problem.model, subspace, problem.parameters, batch_size=1, anchor=start)
        if saved is not None:
            adapter.load_state_dict(saved[2])
        for x, y in list(batches(problem, 20))[first:last]:
            optimizer.zero_grad()
            functional.cross_entropy(problem.model(x), y).backward()
            optimizer.step()
            adapter.step(0.02, **settings)
        raw = [p.detach().clone() for p in problem.model.parameters()]
        state = raw, copy.deepcopy(optimizer.state_dict()), adapter.state_dict()
        adapter.remove()
        return state, vector(problem.parameters.values())

    saved, _ = run(None, 0, 10)
    assert torch.equal(run(saved, 10, 20)[1], expected)  # bit by bit, as if never interrupted


def test_what_leaked_is_taken_back_when_the_adapter_is_merged(make_problem):
    """Somebody moves the weights along protected gradients, after a step of the adapter's own."""
    problem = make_problem("mlp")
    truth, start = problem.jacobian(), vector(problem.parameters.values())
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.02)
    x, y = next(batches(problem, 1))
    functional.cross_entropy(problem.model(x), y).backward()
    optimizer.step()
    adapter.step(0.02)
    leaked = 1e-3 * truth.sum(0)
    with torch.no_grad():
        for p, part in zip(
            problem.parameters.values(),
            leaked.split([p.numel() for p in problem.parameters.values()]),
            strict=True,
        ):
            p += part.view_as(p)
    adapter.merge()
    moved = vector(problem.parameters.values()) - start
    assert moved.norm() > 1e-4
    assert torch.linalg.vector_norm(truth @ moved) < 1e-9 * torch.linalg.vector_norm(truth @ leaked)
    adapter.remove()


def test_momentum_takes_as_many_bytes_as_alpha(make_problem):
    problem = make_problem("mlp")
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    before = adapter.nbytes
    adapter.velocity = torch.zeros_like(adapter.alpha)
    assert adapter.nbytes - before == 8 * len(adapter.alpha) == 8 * len(problem.x)
    kept = sum(p.numel() for p in problem.parameters.values())  # weights to measure from, in float64
    assert before >= 8 * (kept + 2 * len(problem.x))
    adapter.remove()


@pytest.mark.parametrize("on_disk", [False, True])
def test_cached_input_kernel(make_problem, tmp_path, on_disk):
    problem, other = make_problem("mlp"), make_problem("mlp")
    subspace = fill(problem)
    inputs = torch.randn(40, 2, 3, dtype=torch.float64)
    problems = []
    for cached, chosen in ((True, problem), (False, other)):
        optimizer = torch.optim.SGD(chosen.model.parameters(), lr=0.1)
        adapter = Adapter(chosen.model, subspace, chosen.parameters, batch_size=1)
        if cached:
            assert adapter.cache_inputs(inputs, budget=100) == adapter.cached_bytes == 0
            plain = adapter.nbytes
            scratch = tmp_path if on_disk else None
            assert adapter.cache_inputs(inputs, scratch=scratch) == adapter.cached_bytes == 40 * 7 * 8
            assert adapter.nbytes - plain == (0 if on_disk else 40 * 7 * 8)
            assert not list(tmp_path.iterdir())  # the file has no name, so that no crash leaves it behind
        for step in range(10):
            index = torch.arange(step, step + 6)
            optimizer.zero_grad()
            adapter.batch_index = index if cached else None
            functional.cross_entropy(chosen.model(inputs[index]), index % 3).backward()
            assert adapter.batch_index is None
            optimizer.step()
            adapter.step(0.1)
        problems.append((chosen, adapter))
    torch.testing.assert_close(
        vector(problem.parameters.values()), vector(other.parameters.values()), rtol=1e-11, atol=1e-12
    )
    for chosen, adapter in problems:
        adapter.remove()
        assert adapter.cached_bytes == 0
        chosen.model(inputs)


def test_cached_inputs_of_another_batch_are_noticed(make_problem):
    problem = make_problem("mlp")
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    inputs = torch.randn(40, 6, dtype=torch.float64)
    adapter.cache_inputs(inputs)
    adapter.batch_index = torch.arange(6)
    with pytest.raises(TrainingError, match="not the cached ones"):
        problem.model(inputs[6:12])
    augmented = inputs[:6] * 1.05  # a little brighter
    adapter.batch_index = torch.arange(6)
    with pytest.raises(TrainingError, match="not the cached ones"):
        problem.model(augmented)
    adapter.batch_index = torch.arange(6)
    with pytest.raises(TrainingError, match="names 6"):
        problem.model(inputs[:5])
    adapter.remove()


@pytest.mark.parametrize("misuse", ["clip", "penalty", "accumulate", "cleared"])
def test_gradients_that_bypass_the_adapter_are_noticed(make_problem, misuse):
    problem = make_problem("mlp")
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    x, y = next(batches(problem, 1))
    loss = functional.cross_entropy(problem.model(x), y)
    if misuse == "penalty":
        loss = loss + sum(p.square().sum() for p in problem.model.parameters())
    loss.backward()
    if misuse == "clip":
        nn.utils.clip_grad_norm_(problem.model.parameters(), 1e-2)
    if misuse == "accumulate":
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(problem.model(x), y.flip(0)).backward()
    optimizer.step()
    if misuse == "cleared":
        optimizer.zero_grad()
    with pytest.raises(TrainingError, match="gradients"):
        adapter.step(0.1)
    adapter.remove()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_foreign_gradients_are_told_from_rounding_in_any_units(make_problem, scale):
    """A hundredth more gradient than the layers gave is noticed, nothing else is, however large the loss."""
    problem = make_problem("mlp")
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    x, y = next(batches(problem, 1))
    for share in (0.0, 1e-9, 1e-2):
        problem.model.zero_grad()
        (scale * functional.cross_entropy(problem.model(x), y)).backward()
        for parameter in problem.parameters.values():
            parameter.grad += share * parameter.grad
        if share < 1e-3:
            adapter.step(1e-9 / scale)
        else:
            with pytest.raises(TrainingError, match="gradients"):
                adapter.step(1e-9 / scale)
    adapter.remove()


@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_gradients_of_a_skipped_batch_do_not_count(make_problem, variant):
    problem = make_problem("mlp")
    adapter = Adapter(problem.model, fill(problem, variant=variant), problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    x, y = next(batches(problem, 1))
    (functional.cross_entropy(problem.model(x), y.flip(0)) * float("inf")).backward()
    optimizer.zero_grad()
    functional.cross_entropy(problem.model(x), y).backward()
    optimizer.step()
    adapter.step(0.1)
    adapter.remove()
    assert all(p.isfinite().all() for p in problem.model.parameters())


@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_derivatives_of_gradients_are_those_of_the_merged_model(make_problem, variant):
    problem = make_problem("mlp")
    adapter = Adapter(problem.model, fill(problem, variant=variant), problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.5)
    for x, y in batches(problem, 3):
        optimizer.zero_grad()
        functional.cross_entropy(problem.model(x), y).backward()
        optimizer.step()
        adapter.step(0.5)
    assert adapter.layers
    assert adapter.alpha.abs().max() > 1e-3
    x.requires_grad_()

    def penalty(model):
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return slope, torch.autograd.grad(slope.square().sum(), list(model.parameters()), allow_unused=True)

    adapted = penalty(problem.model)
    merged = penalty(copy.deepcopy(problem.model))
    torch.testing.assert_close(adapted[0], merged[0])
    for one, other in zip(adapted[1], merged[1], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
    adapter.remove()


def test_autocast_trains_through_the_adapter_in_the_precision_of_the_weights(make_problem):
    problem = make_problem("mlp")
    problem.model.float()
    problem.x = problem.x.float()
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    assert adapter.layers
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    for x, y in batches(problem, 3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = problem.model(x)
        assert outputs.dtype == torch.bfloat16
        functional.cross_entropy(outputs, y).backward()
        optimizer.step()
        adapter.step(0.1)  # checks its gradient against that of the weights
    adapter.remove()


def test_weights_used_past_their_layer_are_moved_directly_or_noticed(make_problem):
    problem, other = make_problem("shared"), make_problem("shared")
    subspace = fill(problem)
    found = adapted(problem, subspace, {}, steps=30, batch_size=1)
    torch.testing.assert_close(found, dense(other, other.jacobian(), {}, steps=30), rtol=1e-9, atol=1e-11)


def test_accumulated_gradients_count(make_problem):
    problem, other = make_problem("mlp"), make_problem("mlp")
    subspace = fill(problem)
    own = list(problem.parameters.values())
    start = vector(own)
    adapter = Adapter(problem.model, subspace, problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    total = torch.zeros_like(start)
    for x, y in batches(problem, 3):
        functional.cross_entropy(problem.model(x), y).backward()
        total += vector(
            torch.autograd.grad(functional.cross_entropy(other.model(x), y), list(other.model.parameters()))
        )
    optimizer.step()
    adapter.step(0.1)
    adapter.remove()
    pieces = [g.view_as(p) for g, p in zip(total.split([p.numel() for p in own]), own, strict=True)]
    expected = start - 0.1 * vector(subspace.outside(pieces))
    torch.testing.assert_close(vector(own), expected, rtol=1e-11, atol=1e-12)


def test_collecting_while_installed(make_problem):
    problem = make_problem("mlp")
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    for x, y in batches(problem, 4):
        optimizer.zero_grad()
        functional.cross_entropy(problem.model(x), y).backward()
        optimizer.step()
        adapter.step(0.1)
        rows = collect(problem.model, problem.x, problem.y, parameters=problem.parameters).dense()
        clone = copy.deepcopy(problem)
        torch.testing.assert_close(rows, clone.jacobian(), rtol=1e-10, atol=1e-11)
        assert adapter.gradient.abs().max() == 0
    adapter.remove()


def test_an_empty_memory_costs_nothing(make_problem):
    problem = make_problem("mlp")
    subspace = Subspace(problem.parameters)
    adapter = Adapter(problem.model, subspace, problem.parameters)
    assert not adapter.layers
    adapter.step(0.1)
    assert adapter.state_dict()["velocity"] is None
    adapter.remove()
    with pytest.raises(SettingsError, match="those of the subspace"):
        Adapter(problem.model, subspace, {})


def test_float32_trajectory_is_that_of_float64_up_to_rounding():
    moved = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(3)
        model = MLP((30,), (40, 40), 5).to(dtype)
        x, y = torch.randn(600, 30).to(dtype), torch.randint(0, 5, (600,))
        parameters = dict(model.named_parameters())
        start = vector(parameters.values()).double()
        subspace = Subspace(parameters)
        subspace.append(collect(model, x, y, parameters=parameters), 1)
        adapter = Adapter(model, subspace, parameters, batch_size=16)
        assert adapter.layers
        assert adapter.direct
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(170):
            rows = torch.arange(16 * step, 16 * step + 16) % 600
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows].flip(1)), y[rows]).backward()
            optimizer.step()
            adapter.step(0.05)
        adapter.remove()
        moved.append(vector(parameters.values()).double() - start)
    assert moved[0].norm() > 0.1
    # An inverse of K in half precision, renewed every 50 steps, would end 7e-3 away.
    assert float((moved[1] - moved[0]).norm() / moved[0].norm()) < 1e-4


def test_the_first_three_steps_and_every_fiftieth_are_verified(make_problem):
    problem = make_problem("mlp")
    subspace = Subspace(problem.parameters)
    subspace.append(collect(problem.model, problem.x, problem.y, parameters=problem.parameters), 1)
    adapter = Adapter(problem.model, subspace, problem.parameters, batch_size=4)
    found = []
    for step in range(120):
        adapter._steps = step
        if adapter.checking:
            found.append(step)
    assert found == [0, 1, 2, 50, 100]
    adapter.remove()


def test_adapted_layers_take_any_number_of_leading_dimensions(make_problem):
    problem = make_problem("mlp")
    subspace = Subspace(problem.parameters)
    subspace.append(collect(problem.model, problem.x, problem.y, parameters=problem.parameters), 1)
    adapter = Adapter(problem.model, subspace, problem.parameters, batch_size=4)
    assert adapter.layers
    layer = adapter.layers[0].module
    inputs = torch.randn(2, 3, layer.in_features, dtype=torch.float64)
    flat = layer(inputs.reshape(6, -1))
    torch.testing.assert_close(layer(inputs), flat.reshape(2, 3, -1))
    torch.testing.assert_close(layer(inputs[0, 0]), flat[0])
    adapter.remove()


def test_one_protected_parameter_is_enough(make_problem):
    def single():
        problem = make_problem("mlp")
        torch.manual_seed(5)
        return type(problem)(nn.Linear(6, 3, bias=False).double(), problem.x, problem.y)

    problem, other = single(), single()
    found = adapted(problem, fill(problem), {"momentum": 0.9}, steps=20)
    expected = dense(other, other.jacobian(), {"momentum": 0.9}, steps=20)
    assert (found - vector(single().parameters.values())).norm() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def step_once(problem, adapter):
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.02)
    x, y = next(batches(problem, 1))
    functional.cross_entropy(problem.model(x), y).backward()
    optimizer.step()
    adapter.step(0.02)


def test_weights_loaded_at_the_end_of_a_task_do_not_leak(make_problem):
    """Without a further step, and with all layers loaded before anything is taken out."""
    problem = make_problem("mlp")
    start = [p.detach().clone() for p in problem.model.parameters()]
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    step_once(problem, adapter)
    torch.manual_seed(11)
    other = MLP((6,), (9, 8), 3).double()
    problem.model.load_state_dict(other.state_dict())
    adapter.remove()
    moved = [p.detach() - q for p, q in zip(problem.model.parameters(), start, strict=True)]
    loaded = [p.detach() - q for p, q in zip(other.parameters(), start, strict=True)]
    torch.testing.assert_close(
        vector(moved), vector(adapter.subspace.outside(loaded)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("row", range(7))
def test_each_of_few_tangents_is_checked(make_problem, row):
    """The gradient is changed along one tangent, at right angles to the six others."""
    problem = make_problem("mlp")
    sizes = [p.numel() for p in problem.parameters.values()]
    parts = dict(zip(problem.parameters, problem.jacobian().split(sizes, 1), strict=True))
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    step_once(problem, adapter)
    problem.model.zero_grad()
    x, y = next(batches(problem, 1))
    functional.cross_entropy(problem.model(x), y).backward()
    names = [name for layer in adapter.layers for name in layer.block.names]
    change = torch.linalg.pinv(torch.cat([parts[name] for name in names], 1))[:, row]
    gradients = [problem.parameters[name].grad for name in names]
    change = change * (vector(gradients).norm() / change.norm())
    for gradient, part in zip(gradients, change.split([g.numel() for g in gradients]), strict=True):
        gradient += part.view_as(gradient)
    with pytest.raises(TrainingError, match="not what their layers' backward passes gave"):
        adapter.step(0.02)


@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_looking_at_the_network_leaves_no_trace(problem, variant):
    """In the middle of a task: whole weights and plain layers inside the block, the very same bits afterwards."""
    subspace = fill(problem, variant)
    model, parameters = problem.model, problem.parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    adapter = Adapter(model, subspace, parameters, batch_size=1)
    for x, y in batches(problem, 20):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        adapter.step(0.02)
    raw, alpha = vector(parameters.values()).clone(), adapter.alpha.clone()
    model.eval()
    expected = model(problem.x).detach()
    with complete_weights(model):
        assert adapter.idle == bool(adapter.layers)
        assert torch.allclose(model(problem.x), expected, rtol=1e-9, atol=1e-9)
        whole = vector(parameters.values()).clone()
    assert not adapter.idle
    assert torch.equal(vector(parameters.values()), raw)
    assert torch.equal(adapter.alpha, alpha)
    adapter.merge()
    assert torch.allclose(vector(parameters.values()), whole, rtol=1e-9, atol=1e-9)
    assert bool(adapter.layers) == (not torch.equal(raw, whole))


def test_looking_restores_the_weights_after_an_error_and_does_nothing_while_paused(problem):
    adapter = Adapter(problem.model, fill(problem), problem.parameters, batch_size=1)
    adapter.alpha.fill_(0.1)
    raw = vector(problem.parameters.values()).clone()
    with pytest.raises(ZeroDivisionError), complete_weights(problem.model):
        raise ZeroDivisionError
    assert torch.equal(vector(problem.parameters.values()), raw)
    assert not adapter.idle
    adapter.idle = True
    with complete_weights(problem.model):
        assert torch.equal(vector(problem.parameters.values()), raw)
    assert adapter.idle
