"""The projection family and the replay baselines against slow, obvious references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.errors import UnsupportedError
from orthocl.methods import ER, GPM, OGD, SGP, AdamNSCL, DERpp, Joint, KronOGD, ORFit, SketchOGD
from orthocl.streams import TensorSplit
from orthocl.training import attach


def images(seed: int, count: int = 12) -> TensorSplit:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, 4, 4, generator=generator, dtype=torch.float64)
    return TensorSplit(x, torch.randint(3, (count,), generator=generator))


def small_net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ).double()


def inputs_of(model: nn.Module, x: Tensor) -> list[Tensor]:
    """[a, 1] of both layers of the small network, one row per sample and position."""
    patches = functional.unfold(x, 3, padding=1).transpose(1, 2).reshape(-1, 18)
    flat = model[:4](x)
    return [torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1) for rows in (patches, flat)]


def after_a_task(method, model=None):
    model = model or small_net()
    learner = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.05))
    data = images(1)
    with learner.learning(data):
        step(learner, data)
    return learner, data


def step(learner, data: TensorSplit) -> None:
    x, y = data.samples(torch.arange(len(data)))
    learner.optimizer.zero_grad()
    (learner.loss(learner.model(x), y) + learner.penalty()).backward()
    learner.optimizer.step()


def random_gradient(learner) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in learner.parameters.values()]


def outside(learner, vector) -> list[Tensor]:
    """What the method leaves of a displacement."""
    inside = learner.method.inside(learner, vector)
    return [whole - part for whole, part in zip(vector, inside, strict=True)]


def matrices(gradient) -> list[Tensor]:
    weight, bias, weight2, bias2 = gradient
    return [torch.cat([weight.flatten(1), bias[:, None]], 1), torch.cat([weight2, bias2[:, None]], 1)]


def basis_of(rows: Tensor, threshold: float) -> Tensor:
    """Leading right singular vectors that hold a share of the rows' energy."""
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    share = values.square().cumsum(0) / values.square().sum()
    return vectors[: int((share < threshold).sum()) + 1].t()


def test_gpm_is_the_papers_projection():
    learner, data = after_a_task(GPM(memory_per_task=100, threshold=0.9))
    gradient = random_gradient(learner)
    found = matrices(outside(learner, gradient))
    seen = inputs_of(learner.model, data.samples(torch.arange(len(data)))[0])
    for got, own, rows in zip(found, matrices(gradient), seen, strict=True):
        basis = basis_of(rows.detach(), 0.9)
        torch.testing.assert_close(got, own - own @ basis @ basis.t(), rtol=0, atol=1e-9)


def net_with_batch_statistics() -> nn.Module:
    torch.manual_seed(2)
    norm = nn.BatchNorm2d(3, track_running_stats=False)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), norm, nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ).double()


@pytest.mark.parametrize("method", [GPM(threshold=0.9), SGP(threshold=0.9), AdamNSCL(ratio=1.5)])
def test_what_needs_the_inputs_alone_protects_a_model_that_mixes_samples(method):
    learner, data = after_a_task(method, net_with_batch_statistics())
    x = data.samples(torch.arange(len(data)))[0]
    patches = functional.unfold(x, 3, padding=1).transpose(1, 2).reshape(-1, 18)
    with torch.no_grad():
        seen = [patches, learner.model[:5](x)]
    assert list(learner.method.inputs.bases) == ["0.weight", "5.weight"]
    for basis, rows in zip(learner.method.inputs.bases.values(), seen, strict=True):
        rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
        assert basis.shape[2] > 0
        if isinstance(method, GPM):
            naive = basis_of(rows, 0.9)
            torch.testing.assert_close(basis[0] @ basis[0].t(), naive @ naive.t(), rtol=0, atol=1e-9)


def test_nothing_protected_is_never_passed_over():
    last = nn.BatchNorm1d(3, track_running_stats=False).double()
    with pytest.raises(UnsupportedError, match=r"kron-ogd .* mixes samples .* Use gpm"):
        after_a_task(KronOGD(threshold=0.9), nn.Sequential(net_with_batch_statistics(), last))
    scales = nn.Sequential(nn.Flatten(), nn.LayerNorm(32), nn.AdaptiveAvgPool1d(3)).double()
    with pytest.raises(UnsupportedError, match=r"gpm .* none .* could be read"):
        after_a_task(GPM(threshold=0.9), scales)


def test_gpm_grows_by_what_lies_outside():
    learner, _ = after_a_task(GPM(memory_per_task=100, threshold=0.8))
    before = dict(learner.method.inputs.bases)
    data = images(5)
    with learner.learning(data):
        step(learner, data)
    seen = [rows.detach() for rows in inputs_of(learner.model, data.samples(torch.arange(len(data)))[0])]
    for (weight, basis), rows in zip(learner.method.inputs.bases.items(), seen, strict=True):
        assert torch.equal(basis[..., : before[weight].shape[2]], before[weight])
        inside = rows @ basis[0]
        assert float(inside.square().sum()) >= 0.8 * float(rows.square().sum()) - 1e-9
        fewer = basis[0][:, :-1]
        if basis.shape[2] > before[weight].shape[2]:
            assert float((rows @ fewer).square().sum()) < 0.8 * float(rows.square().sum())


def test_the_share_that_gpm_keeps_increases_with_every_task():
    learner, _ = after_a_task(GPM(memory_per_task=100, threshold=0.5, increase=0.2))
    assert learner.method.share == pytest.approx(0.7)
    data = images(5)
    with learner.learning(data):
        step(learner, data)
    seen = [rows.detach() for rows in inputs_of(learner.model, data.samples(torch.arange(len(data)))[0])]
    for basis, rows in zip(learner.method.inputs.bases.values(), seen, strict=True):
        assert float((rows @ basis[0]).square().sum()) >= 0.7 * float(rows.square().sum()) - 1e-9
    plain, _ = after_a_task(GPM(memory_per_task=100, threshold=0.5))
    with plain.learning(data):
        step(plain, data)
    assert plain.method.inputs.directions < learner.method.inputs.directions
    assert GPM(threshold=0.9, increase=0.2).share == 0.9
    learner.method.learnt = 9
    assert learner.method.share == 1.0


def test_gpm_keeps_every_output_of_remembered_inputs():
    model = nn.Sequential(nn.Linear(20, 6)).double()
    learner = attach(
        GPM(memory_per_task=5, threshold=1.0), model, torch.optim.SGD(model.parameters(), lr=0.5)
    )
    first = TensorSplit(torch.randn(5, 20, dtype=torch.float64), torch.randint(6, (5,)))
    second = TensorSplit(torch.randn(9, 20, dtype=torch.float64), torch.randint(6, (9,)))
    with learner.learning(first):
        step(learner, first)
    before = model(first.samples(torch.arange(5))[0])
    start = model[0].weight.detach().clone()
    with learner.learning(second):
        for _ in range(20):
            step(learner, second)
    torch.testing.assert_close(model(first.samples(torch.arange(5))[0]), before, rtol=0, atol=1e-10)
    assert float((model[0].weight.detach() - start).norm()) > 0.1


def test_gpm_holds_what_belongs_to_no_layer():
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()
    learner, _ = after_a_task(GPM(memory_per_task=6), model)
    names = list(learner.parameters)
    found = dict(zip(names, outside(learner, random_gradient(learner)), strict=True))
    assert all(float(found[name].abs().max()) == 0 for name in ("2.weight", "2.bias"))
    assert float(found["1.weight"].abs().max()) > 0


def test_sgp_scales_directions_by_their_importance():
    alpha = 3.0
    learner, data = after_a_task(SGP(memory_per_task=100, threshold=0.9, alpha=alpha))
    gradient = random_gradient(learner)
    found = matrices(outside(learner, gradient))
    seen = inputs_of(learner.model, data.samples(torch.arange(len(data)))[0])
    for got, own, rows in zip(found, matrices(gradient), seen, strict=True):
        values = torch.linalg.svdvals(rows.detach())
        basis = basis_of(rows.detach(), 0.9)
        weights = ((alpha + 1) * values / (alpha * values + values[0]))[: basis.shape[1]]
        torch.testing.assert_close(
            got, own - own @ basis @ torch.diag(weights) @ basis.t(), rtol=0, atol=1e-8
        )


def test_sgp_importance_adds_up_to_one_at_most():
    learner, _ = after_a_task(SGP(memory_per_task=100, threshold=0.9))
    before = {name: value.clone() for name, value in learner.method.importance.items()}
    data = images(6)
    with learner.learning(data):
        step(learner, data)
    for name, now in learner.method.importance.items():
        old = before[name]
        assert bool((now[:, : old.shape[1]] >= old).all())
        assert float(now.max()) <= 1.0


def test_kronecker_ogd_takes_out_what_meets_both_bases():
    learner, _ = after_a_task(KronOGD(memory_per_task=4, threshold=0.9))
    gradient = random_gradient(learner)
    found = matrices(outside(learner, gradient))
    method = learner.method
    for got, own, weight in zip(found, matrices(gradient), method.inputs.bases, strict=True):
        u, v = method.inputs.bases[weight][0], method.outputs.bases[weight][0]
        projector = torch.kron(v @ v.t(), u @ u.t())
        expected = own - (projector @ own.flatten()).view_as(own)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def projector(reject, like: list[Tensor]) -> Tensor:
    """The matrix of the part that a method takes out."""
    size = sum(part.numel() for part in like)
    columns = []
    for unit in torch.eye(size, dtype=torch.float64):
        pieces = [p.view_as(q) for p, q in zip(unit.split([q.numel() for q in like]), like, strict=True)]
        columns.append(unit - torch.cat([part.flatten() for part in reject(pieces)]))
    return torch.stack(columns, 1)


def test_the_ladder_ogd_within_kronecker_ogd_within_gpm():
    """With all of the energy kept: three projectors, each inside of the next."""
    found = []
    for method in (
        OGD(memory_per_task=2, engine="project"),
        KronOGD(memory_per_task=2, threshold=1.0),
        GPM(memory_per_task=2, threshold=1.0),
    ):
        model = small_net()
        learner = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.05))
        learner.generator.manual_seed(3)
        with learner.learning(images(1)):
            step(learner, images(1))
        like = list(learner.parameters.values())
        found.append(projector(lambda g, learner=learner: outside(learner, g), like))
    ogd, kron, gpm = found
    for one in found:
        torch.testing.assert_close(one @ one, one, rtol=0, atol=1e-8)
        torch.testing.assert_close(one, one.t(), rtol=0, atol=1e-8)
    torch.testing.assert_close(kron @ ogd, ogd, rtol=0, atol=1e-8)
    torch.testing.assert_close(gpm @ kron, kron, rtol=0, atol=1e-8)
    ranks = [round(float(one.trace())) for one in found]
    assert ranks == sorted(ranks)
    assert ranks[0] == 2 < ranks[1] < ranks[2]


def test_adam_nscl_steps_in_the_null_space_of_the_covariance():
    ratio = 50.0
    learner, data = after_a_task(AdamNSCL(memory_per_task=100, ratio=ratio))
    gradient = random_gradient(learner)
    found = matrices(outside(learner, gradient))
    seen = inputs_of(learner.model, data.samples(torch.arange(len(data)))[0])
    for got, own, rows in zip(found, matrices(gradient), seen, strict=True):
        values, vectors = torch.linalg.eigh(rows.detach().t() @ rows.detach() / len(rows))
        free = vectors[:, values <= ratio * max(float(values[0]), 1e-10 * float(values[-1]))]
        torch.testing.assert_close(got, own @ free @ free.t(), rtol=0, atol=1e-8)


def test_adam_nscl_covariance_is_the_mean_over_all_tasks():
    learner, first = after_a_task(AdamNSCL(memory_per_task=100))
    early = inputs_of(learner.model, first.samples(torch.arange(len(first)))[0])
    second = images(4, count=6)
    with learner.learning(second):
        step(learner, second)
    late = inputs_of(learner.model, second.samples(torch.arange(6))[0])
    rows = torch.cat([early[0], late[0]])  # the first layer's inputs do not change with the weights
    torch.testing.assert_close(
        learner.method.covariances["0.weight"][0], rows.t() @ rows / len(rows), rtol=0, atol=1e-10
    )


def tangents_of(learner, data: TensorSplit, rows: Tensor) -> Tensor:
    found = []
    x, y = data.samples(rows)
    for sample, label in zip(x, y, strict=True):
        output = learner.model(sample[None])[0, label]
        parts = torch.autograd.grad(output, list(learner.parameters.values()))
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


def test_sketch_ogd_protects_the_span_of_the_sketch(reject):
    learner, data = after_a_task(SketchOGD(memory_per_task=6, sketch=4, engine="project"))
    rows = torch.cat([part.flatten(1) for part in learner.method.rows], 1)
    assert rows.shape[0] == 4
    truth = tangents_of(learner, data, learner.method.remembered[1])
    inside = reject(truth, rows.t())  # the sketch is made of the tangents
    assert float(inside.norm()) < 1e-8 * float(rows.norm())
    gradient = random_gradient(learner)
    flat = torch.cat([part.flatten() for part in gradient])
    found = torch.cat([part.flatten() for part in outside(learner, gradient)])
    torch.testing.assert_close(found, reject(rows, flat[:, None])[:, 0], rtol=0, atol=1e-9)


def test_a_sketch_as_large_as_the_memory_is_ogd(reject):
    learner, data = after_a_task(SketchOGD(memory_per_task=4, sketch=20, engine="project"))
    truth = tangents_of(learner, data, learner.method.remembered[1])
    gradient = random_gradient(learner)
    flat = torch.cat([part.flatten() for part in gradient])
    found = torch.cat([part.flatten() for part in outside(learner, gradient)])
    torch.testing.assert_close(found, reject(truth, flat[:, None])[:, 0], rtol=0, atol=1e-7)


def test_orfit_keeps_the_principal_directions_of_all_tangents(reject):
    learner, data = after_a_task(ORFit(memory_per_task=6, components=5, engine="project"))
    first = tangents_of(learner, data, learner.method.remembered[1])
    kept = torch.linalg.svd(first, full_matrices=False)
    rows = kept[1][:5, None] * kept[2][:5]
    second = images(8)
    with learner.learning(second):
        step(learner, second)
    both = torch.cat([rows, tangents_of(learner, second, learner.method.remembered[2])])
    leading = torch.linalg.svd(both, full_matrices=False)[2][:5]
    gradient = random_gradient(learner)
    flat = torch.cat([part.flatten() for part in gradient])
    found = torch.cat([part.flatten() for part in outside(learner, gradient)])
    torch.testing.assert_close(found, reject(leading, flat[:, None])[:, 0], rtol=0, atol=1e-8)


@pytest.fixture
def reject():
    def reject(rows: Tensor, vectors: Tensor) -> Tensor:
        _, values, basis = torch.linalg.svd(rows, full_matrices=False)
        basis = basis[values > 1e-9 * values.max()]
        return vectors - basis.t() @ (basis @ vectors)

    return reject


def test_replay_adds_the_mean_loss_of_remembered_samples():
    learner, _ = after_a_task(ER(memory_per_task=100, replay_batch=100, strength=0.7))
    piece = learner.method.memory.pieces[1]
    with learner.learning(images(2)):
        expected = 0.7 * functional.cross_entropy(learner.model(piece.inputs), piece.targets)
        torch.testing.assert_close(learner.penalty(), expected)


def test_dark_replay_adds_the_change_of_the_outputs():
    learner, _ = after_a_task(DERpp(memory_per_task=100, replay_batch=100, strength=0.7, distillation=0.3))
    piece, old = learner.method.memory.pieces[1], learner.method.outputs[1]
    torch.testing.assert_close(old, learner.model(piece.inputs).detach())
    with learner.learning(images(2)):
        step(learner, images(2))
        now = learner.model(piece.inputs)
        expected = 0.7 * functional.cross_entropy(now, piece.targets) + 0.3 * (now - old).square().mean()
        torch.testing.assert_close(learner.penalty(), expected)


def test_joint_training_steps_along_the_mean_gradient_of_all_tasks():
    learner, first = after_a_task(Joint(replay_batch=100))
    second = images(2)
    with learner.learning(second):
        losses = [
            functional.cross_entropy(learner.model(x), y)
            for x, y in (split.samples(torch.arange(len(split))) for split in (first, second))
        ]
        expected = torch.autograd.grad(sum(losses) / 2, list(learner.parameters.values()))
        before = [p.detach().clone() for p in learner.parameters.values()]
        step(learner, second)
        for old, now, gradient in zip(before, learner.parameters.values(), expected, strict=True):
            torch.testing.assert_close(now.detach(), old - 0.05 * gradient, rtol=0, atol=1e-12)


def test_joint_training_counts_every_earlier_task():
    """In task 3 with strength s: (L_3 + s (L_1 + L_2)) / (1 + 2 s), for tasks of one size."""
    learner, first = after_a_task(Joint(replay_batch=100, strength=0.3))
    second, third = images(2), images(3)
    with learner.learning(second):
        pass
    with learner.learning(third):
        losses = [
            weight * functional.cross_entropy(learner.model(x), y)
            for weight, split in ((0.3, first), (0.3, second), (1.0, third))
            for x, y in [split.samples(torch.arange(len(split)))]
        ]
        expected = torch.autograd.grad(sum(losses) / 1.6, list(learner.parameters.values()))
        before = [p.detach().clone() for p in learner.parameters.values()]
        step(learner, third)
        for old, now, gradient in zip(before, learner.parameters.values(), expected, strict=True):
            torch.testing.assert_close(now.detach(), old - 0.05 * gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [GPM, KronOGD])
def test_the_rank_counts_pairs_of_directions(kind, data, learn):
    """One layer of three outputs: each input direction protects all of them, or those of the output directions."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    learner = attach(kind(memory_per_task=12), net, torch.optim.SGD(net.parameters(), lr=0.01))
    learn(learner, data[0])
    found = learner.method.monitor(learner)
    (inputs,) = learner.method.inputs.bases.values()
    assert found["input_directions"] == inputs.shape[2] > 1
    if kind is GPM:
        assert found["rank"] == 3 * inputs.shape[2]
    else:
        (outputs,) = learner.method.outputs.bases.values()
        assert found["rank"] == inputs.shape[2] * outputs.shape[2]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("kind", [AdamNSCL, GPM, SGP, KronOGD])
def test_directions_do_not_depend_on_the_units_of_the_inputs(kind, scale, learn):
    """Inputs in three of five dimensions: three directions are used, two are free, whatever they are measured in."""
    generator = torch.Generator().manual_seed(0)
    used = torch.linalg.qr(torch.randn(5, 3, generator=generator, dtype=torch.float64))[0]
    inputs = scale * torch.randn(12, 3, generator=generator, dtype=torch.float64) @ used.T
    net = nn.Linear(5, 2, bias=False).double()
    learner = attach(kind(memory_per_task=12), net, torch.optim.SGD(net.parameters(), lr=1e-30))
    learn(learner, TensorSplit(inputs, torch.arange(12) % 2), steps=1)
    assert learner.method.monitor(learner)["input_directions"] == 3
    gradient = [torch.randn(2, 5, generator=generator, dtype=torch.float64)]
    with learner.learning(TensorSplit(inputs, torch.arange(12) % 2)):
        if kind in (AdamNSCL, GPM):
            (found,) = outside(learner, gradient)
            torch.testing.assert_close(found, gradient[0] - gradient[0] @ used @ used.T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [GPM, KronOGD])
def test_recurrent_weights_learn_outside_what_they_have_seen(make):
    torch.manual_seed(0)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.layer(x)[0][:, -1])

    model = Reader().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = attach(make(memory_per_task=10), model, optimizer)
    for _ in range(2):
        x = torch.randn(20, 5, 1, dtype=torch.float64) * torch.randn(4, dtype=torch.float64)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        with learner.learning(TensorSplit(x, torch.randint(3, (20,)))):
            seen = {name: basis.clone() for name, basis in learner.method.inputs.bases.items()}
            for _ in range(5):
                optimizer.zero_grad()
                functional.cross_entropy(model(x), torch.randint(3, (20,))).backward()
                optimizer.step()
    for weight, bias in (("weight_ih_l0", "bias_ih_l0"), ("weight_hh_l0", "bias_hh_l0")):
        now = dict(model.named_parameters())
        moved = [(now[f"layer.{name}"] - before[f"layer.{name}"]).detach() for name in (weight, bias)]
        change = torch.cat([moved[0], moved[1][:, None]], 1)
        assert float(change.norm()) > 1e-6
        if make is GPM:  # protects every output
            assert float((change @ seen[f"layer.{weight}"][0]).norm()) < 1e-10 * float(change.norm()) + 1e-14
