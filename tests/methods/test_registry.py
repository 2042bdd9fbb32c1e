"""No method may silently do nothing: every hyperparameter of every method changes the trajectory."""

import pytest
import torch
from torch import nn

from orthocl.errors import SettingsError
from orthocl.methods import METHODS, make_method
from orthocl.streams import from_arrays
from orthocl.training import TrainSettings, attach, train

# method -> settings that make its effect visible on a tiny problem, and for each hyperparameter another value.
CASES = {
    "ogd": ({"memory_per_task": 3}, {"memory_per_task": 6, "variant": "all", "storage": "bfloat16"}),
    "ogd+": (
        {"memory_per_task": 3},
        {
            "memory_per_task": 6,
            "variant": "ave",
            "storage": "bfloat16",
            "refresh": "append",
            "memory_total": 4,
        },
    ),
    "pca-ogd": (
        {"memory_per_task": 6, "components": 2},
        {"memory_per_task": 9, "components": 4, "variant": "ave", "storage": "bfloat16"},
    ),
    "a-gem": ({"memory_per_task": 3}, {"memory_per_task": 6, "reference_batch": 1, "tolerance": 1e3}),
    "a-gem-nt": ({"memory_per_task": 3}, {"memory_per_task": 6, "reference_batch": 1, "tolerance": 1e3}),
    "ewc": (
        {"strength": 10.0},
        {"strength": 1.0, "online": True, "fisher": "label", "fisher_samples": 4, "fisher_batch": 3},
    ),
    "si": ({"strength": 1.0}, {"strength": 0.1, "damping": 1.0}),
    "mas": ({"strength": 1.0}, {"strength": 0.1, "importance_samples": 4, "importance_batch": 3}),
    "stable-sgd": ({"decay": 0.5, "batch_size": 4}, {"decay": 0.9, "dropout": 0.6, "batch_size": 3}),
    "kron-ogd": ({"memory_per_task": 3}, {"memory_per_task": 6, "threshold": 0.5, "increase": 0.03}),
    "gpm": ({"memory_per_task": 3}, {"memory_per_task": 6, "threshold": 0.5, "increase": 0.03}),
    "sgp": ({"memory_per_task": 3}, {"memory_per_task": 6, "threshold": 0.5, "increase": 0.03, "alpha": 1.0}),
    "adam-nscl": ({"memory_per_task": 12}, {"memory_per_task": 4, "ratio": 2.0}),
    "sketch-ogd": (
        {"memory_per_task": 6, "sketch": 4},
        {"memory_per_task": 9, "sketch": 7, "variant": "ave", "storage": "bfloat16"},
    ),
    "orfit": (
        {"memory_per_task": 6, "components": 5},
        {"memory_per_task": 9, "components": 3, "variant": "ave", "storage": "bfloat16"},
    ),
    "er": ({"memory_per_task": 3}, {"memory_per_task": 6, "replay_batch": 2, "strength": 0.5}),
    "der++": (
        {"memory_per_task": 3},
        {"memory_per_task": 6, "replay_batch": 2, "strength": 0.1, "distillation": 0.1},
    ),
    "joint": ({}, {"memory_per_task": 4, "replay_batch": 2, "strength": 0.5}),
    "sgd": ({}, {}),
}
OGDS = ("ogd", "ogd+", "pca-ogd", "sketch-ogd", "orfit")
# Same steps whatever the value, by design: how the projection is computed.
# Compression acts where layers are large or have several positions: tests/tangents has such.
WITHOUT_EFFECT = {
    (name, key) for name in OGDS for key in ("engine", "input_cache", "energy", "worst_energy", "watch")
}
# Positions are those of sequences and images: tests/tangents/test_remembering.py has such.
WITHOUT_EFFECT |= {(name, "tokens") for name in OGDS}
# Without momentum no path climbs: `test_penalties` has one that does.
WITHOUT_EFFECT |= {("si", "clip")}


def final_weights(name, settings):
    generator = torch.Generator().manual_seed(4)

    def arrays():
        return torch.randn(12, 4, generator=generator), torch.randint(3, (12,), generator=generator)

    stream = from_arrays([(*arrays(), *arrays()) for _ in range(4)], outputs=3)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 3))
    learner = attach(make_method(name, settings), model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(learner, stream, TrainSettings(epochs=2, batch_size=4, learning_rate=0.1))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_every_hyperparameter_of_every_method_is_listed():
    for name, kind in METHODS.items():
        known = set(kind().settings())
        listed = set(CASES[name][1]) | {key for method, key in WITHOUT_EFFECT if method == name}
        assert known - listed <= {"decay"} if name == "ewc" else known == listed, name


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, (_, others) in CASES.items() for k in others])
def test_hyperparameter_changes_the_trajectory(name, key):
    base, others = CASES[name]
    if (name, key) == ("a-gem", "tolerance"):  # an enormous tolerance switches the method off
        assert torch.equal(final_weights(name, {**base, key: others[key]}), final_weights("sgd", {}))
    assert not torch.equal(final_weights(name, base), final_weights(name, {**base, key: others[key]}))


def test_the_decay_of_online_ewc_changes_the_trajectory():
    one, two = (final_weights("ewc", {"strength": 10.0, "online": True, "decay": d}) for d in (1.0, 0.2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "sgd"])
def test_each_method_differs_from_sgd(name):
    assert not torch.equal(final_weights(name, CASES[name][0]), final_weights("sgd", {}))


def test_the_methods_differ_from_each_other():
    ends = [final_weights(name, base) for name, (base, _) in CASES.items()]
    for i, one in enumerate(ends):
        assert not any(torch.equal(one, other) for other in ends[i + 1 :])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("odg", {}, "did you mean 'ogd'"),
        ("ogd", {"memory": 3}, "memory_per_task"),
        ("ogd", {"memory_per_task": 2.5}, "must be int, got 2.5"),
        ("ogd", {"memory_per_task": True}, "must be int"),
        ("ogd", {"variant": "best"}, "unknown variant of ogd 'best': the choices are: all, ave, gtl"),
        ("ewc", {"strength": "much"}, "must be float"),
        ("ogd+", {"memory_total": "x"}, "int or None"),
    ],
)
def test_wrong_names_and_values_are_refused(name, settings, message):
    with pytest.raises(SettingsError, match=message):
        make_method(name, settings)
