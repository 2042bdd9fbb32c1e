"""AlexNet up to pool5 and fc6, and the classifier of the birds."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from orthocl.errors import SettingsError
from orthocl.nets import AlexNet, BirdClassifier, MultiHead, make_net


@pytest.fixture(scope="module")
def weights():
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "features.0": (64, 3, 11, 11),
        "features.3": (192, 64, 5, 5),
        "features.6": (384, 192, 3, 3),
        "features.8": (256, 384, 3, 3),
        "features.10": (256, 256, 3, 3),
        "classifier.1": (4096, 9216),
    }
    state = {}
    for name, shape in shapes.items():
        fan_in = torch.Size(shape[1:]).numel()
        state[f"{name}.weight"] = torch.randn(shape, generator=draw) * (2 / fan_in) ** 0.5
        state[f"{name}.bias"] = torch.randn(shape[0], generator=draw) * 0.1
    return state


def test_layers_against_the_operations_written_out(weights):
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))

    def convolve(x, name, **settings):
        return F.relu(
            F.conv2d(x, weights[f"features.{name}.weight"], weights[f"features.{name}.bias"], **settings)
        )

    x = F.max_pool2d(convolve(images, 0, stride=4, padding=2), 3, 2)
    x = F.max_pool2d(convolve(x, 3, padding=2), 3, 2)
    x = convolve(convolve(convolve(x, 6, padding=1), 8, padding=1), 10, padding=1)
    pool5 = F.max_pool2d(x, 3, 2).flatten(1)
    fc6 = F.relu(F.linear(pool5, weights["classifier.1.weight"], weights["classifier.1.bias"]))
    torch.testing.assert_close(AlexNet.from_torchvision(weights, "pool5")(images), pool5)
    torch.testing.assert_close(AlexNet.from_torchvision(weights, "fc6")(images), fc6)


def test_frozen(weights):
    network = AlexNet.from_torchvision(weights, "pool5")
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert (network.features, AlexNet("pool5").features) == (9216, 9216)


def test_wrong_layers_and_weights(weights):
    with pytest.raises(SettingsError, match="did you mean 'pool5'"):
        AlexNet("pool4")
    with pytest.raises(SettingsError, match=r"needs 'classifier.1.weight'"):
        AlexNet.from_torchvision(
            {name: tensor for name, tensor in weights.items() if "features" in name}, "fc6"
        )


@pytest.mark.parametrize("size", [4096, 9216])
def test_the_classifier_is_the_papers_table(size):
    trunk = BirdClassifier((size,))
    assert [type(layer).__name__ for layer in trunk] == [
        "Flatten",
        "Linear",
        "ReLU",
        "Dropout",
        "Linear",
        "ReLU",
    ]
    assert [tuple(parameter.shape) for parameter in trunk.parameters()] == [
        (256, size),
        (256,),
        (128, 256),
        (128,),
    ]
    assert trunk[3].p == 0.5
    model = MultiHead(trunk, {f"task-{number}": 20 for number in range(1, 11)})
    assert model(torch.zeros(3, size)).shape == (3, 20)


def test_by_name_with_one_head_or_several():
    assert make_net("bird-classifier", (4096,), {"main": 5})(torch.zeros(2, 4096)).shape == (2, 5)
    assert isinstance(make_net("bird-classifier", (4096,), {"a": 2, "b": 3}), MultiHead)
    with pytest.raises(SettingsError, match="two hidden layers"):
        BirdClassifier((4,), hidden=(3,))
