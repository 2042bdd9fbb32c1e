"""EWC, SI and MAS against their definitions, computed one sample at a time."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from orthocl.methods import EWC, MAS, SI
from orthocl.methods.quadratic import quadratic_penalty


def sample_gradients(net, quantity, split, index):
    """Gradient of quantity(outputs, target) for each sample alone."""
    rows = []
    for i in index.tolist():
        inputs, targets = split.samples(torch.tensor([i]))
        net.zero_grad()
        quantity(net(inputs), targets).backward()
        rows.append([p.grad.clone() for p in net.parameters()])
    net.zero_grad()
    return rows


@pytest.mark.parametrize("label", ["predicted", "label"])
def test_ewc_fisher_is_the_mean_squared_gradient_of_the_log_likelihood(make, data, learn, label):
    learner = make(EWC(strength=3.0, fisher=label, fisher_samples=None))
    learn(learner, data[0])

    def likelihood(outputs, targets):
        return -cross_entropy(outputs, outputs.argmax(-1) if label == "predicted" else targets)

    rows = sample_gradients(learner.model, likelihood, data[0], torch.arange(12))
    for position, fisher in enumerate(learner.method.importance):
        expected = torch.stack([row[position].square() for row in rows]).mean(0)
        torch.testing.assert_close(fisher, expected, rtol=1e-10, atol=1e-14)


def test_ewc_sampled_fisher_approaches_the_exact_expectation(make, data, learn):
    learner = make(EWC(fisher="sampled", fisher_samples=None))
    learn(learner, data[0])
    net, total = learner.model, 0.0
    inputs = data[0].inputs()
    for i in range(12):  # the definition: an expectation over the model's own labels
        probabilities = net(inputs[i : i + 1]).softmax(-1)[0].detach()
        for label in range(3):
            net.zero_grad()
            net(inputs[i : i + 1]).log_softmax(-1)[0, label].backward()
            total = total + probabilities[label] * net[0].weight.grad.square() / 12
    draws = []
    for _ in range(300):
        with learner.learning(data[0]):
            draws.append(learner.method.estimate(learner)[0])
    torch.testing.assert_close(torch.stack(draws).mean(0), total, rtol=0.2, atol=2e-4)


def test_ewc_batch_estimate_squares_the_mean_gradient_of_each_batch(make, data, learn):
    learner = make(EWC(fisher="label", fisher_samples=None, fisher_batch=4))
    state = learner.generator.get_state()
    with learner.learning(data[0]):
        found = learner.method.estimate(learner)
    order = torch.randperm(12, generator=torch.Generator().set_state(state))
    expected = torch.zeros_like(found[0])
    for index in order.split(4):
        inputs, targets = data[0].samples(index)
        learner.model.zero_grad()
        cross_entropy(learner.model(inputs), targets).backward()
        expected += learner.model[0].weight.grad.square() / 3
    torch.testing.assert_close(found[0], expected)


def test_ewc_separate_penalty_and_gradient_equal_the_sum_of_quadratics(make, data, learn):
    learner = make(EWC(strength=5.0, fisher_samples=None))
    kept = []
    for split in data:
        before = copy.deepcopy(learner.method)
        learn(learner, split)
        with learner.learning(split):
            fisher = learner.method.estimate(learner)
        kept.append((fisher, [p.detach().clone() for p in learner.model.parameters()]))
        learner.method.importance, learner.method.centre = before.importance, before.centre
        with learner.learning(split):
            pass  # end_task once, at the weights that were kept
    with torch.no_grad():
        for p in learner.model.parameters():
            p += 0.3 * torch.randn_like(p)
    parameters = list(learner.model.parameters())

    def naive():
        return sum(
            2.5 * (f * (p - c).square()).sum()
            for fisher, centre in kept
            for f, c, p in zip(fisher, centre, parameters, strict=True)
        )

    expected = torch.autograd.grad(naive(), parameters)
    found = torch.autograd.grad(learner.penalty(), parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    # The value differs from the sum only by a constant: compare differences.
    first, reference = float(learner.penalty().detach()), float(naive().detach())
    with torch.no_grad():
        for p in parameters:
            p *= 1.1
    change = float(learner.penalty().detach()) - first
    assert change == pytest.approx(float(naive().detach()) - reference, rel=1e-9)


def test_ewc_online_keeps_one_decayed_quadratic_at_the_latest_weights(make, data, learn):
    learner = make(EWC(online=True, decay=0.5, fisher="label", fisher_samples=None))
    learn(learner, data[0])
    first = [f.clone() for f in learner.method.importance]
    final = learn(learner, data[1])
    with learner.learning(data[1]):
        second = learner.method.estimate(learner)
        learner.method.importance, kept = [], learner.method.importance
    for total, a, b in zip(kept, first, second, strict=True):
        torch.testing.assert_close(total, 0.5 * a + b)
    assert all(torch.equal(c, w) for c, w in zip(learner.method.centre, final, strict=True))


def test_mas_importance_is_the_mean_absolute_gradient_of_the_squared_norm(make, data, learn):
    learner = make(MAS(importance_samples=None))
    learn(learner, data[0])
    rows = sample_gradients(
        learner.model, lambda outputs, _: outputs.square().sum(), data[0], torch.arange(12)
    )
    for position, omega in enumerate(learner.method.importance):
        expected = torch.stack([row[position].abs() for row in rows]).mean(0)
        torch.testing.assert_close(omega, expected, rtol=1e-10, atol=1e-14)
    before = [omega.clone() for omega in learner.method.importance]
    learn(learner, data[1])
    rows = sample_gradients(
        learner.model, lambda outputs, _: outputs.square().sum(), data[1], torch.arange(12)
    )
    for position, omega in enumerate(learner.method.importance):
        expected = before[position] + torch.stack([row[position].abs() for row in rows]).mean(0)
        torch.testing.assert_close(omega, expected, rtol=1e-10, atol=1e-14)


def test_si_path_integral_by_hand_with_the_penalty_left_out(make, data, learn):
    method = SI(strength=2.0, damping=0.01)
    learner = make(method, lr=0.05)
    learn(learner, data[0])
    omega = [o.clone() for o in method.importance]
    net = copy.deepcopy(learner.model)
    start = [p.detach().clone() for p in net.parameters()]
    path = [torch.zeros_like(p) for p in net.parameters()]
    for step in range(6):
        inputs, targets = data[1].samples(torch.arange(step * 4, step * 4 + 4) % 12)
        net.zero_grad()
        cross_entropy(net(inputs), targets).backward()
        with torch.no_grad():
            for p, w, o, s in zip(net.parameters(), path, omega, start, strict=True):
                change = -0.05 * (p.grad + 2 * 2.0 * o * (p - s))
                w -= p.grad * change
                p += change
    expected = [
        o + w.clamp(min=0) / ((p.detach() - s).square() + 0.01)
        for o, w, p, s in zip(omega, path, net.parameters(), start, strict=True)
    ]
    learn(learner, data[1])
    for a, b in zip(method.importance, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    for a, b in zip(learner.model.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_derivatives_of_the_penaltys_gradient():
    """Value, gradient and its derivatives against finite differences, for two tensors and a strength."""
    generator = torch.Generator().manual_seed(0)
    w, importance, centre = (
        [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 3), (4,))]
        for _ in range(3)
    )
    w = [part.requires_grad_() for part in w]

    def penalty(*parameters):
        return quadratic_penalty(parameters, [part.abs() for part in importance], centre, 0.7)

    plain = 0.7 * sum(
        (i.abs() * (p - c).square()).sum() for p, i, c in zip(w, importance, centre, strict=True)
    )
    assert penalty(*w).item() == pytest.approx(plain.item())
    assert torch.autograd.gradcheck(penalty, w)
    assert torch.autograd.gradgradcheck(penalty, w)
    graph = torch.autograd.grad(penalty(*w), w, create_graph=True)
    for found, p, i, c in zip(graph, w, importance, centre, strict=True):
        torch.testing.assert_close(found, 1.4 * i.abs() * (p - c))
