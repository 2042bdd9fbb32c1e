import pytest
import torch

from orthocl.errors import SettingsError
from orthocl.nets import MLP, LeNet, MultiHead, make_net
from orthocl.nets.registry import build_net


def test_sizes_of_the_protocol():
    assert sum(p.numel() for p in MLP((1024,), outputs=10).parameters()) == 113_610
    lenet = LeNet((3, 32, 32), hidden=200)
    assert lenet[9].in_features == 3200
    assert lenet(torch.zeros(2, 3, 32, 32)).shape == (2, 200)


def test_nets_by_name():
    before = torch.get_rng_state()
    one, two = (make_net("mlp", (4,), {"main": 3}, {"hidden": [6]}, seed=s) for s in (1, 1))
    other = make_net("mlp", (4,), {"main": 3}, {"hidden": [6]}, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    assert isinstance(make_net("lenet", (3, 8, 8), {"1": 2, "2": 2}), MultiHead)
    with pytest.raises(SettingsError, match="did you mean 'hidden'"):
        make_net("mlp", (4,), {"main": 3}, {"hiden": [6]})
    with pytest.raises(SettingsError, match="unknown net"):
        make_net("transformer", (4,), {"main": 3})
    with pytest.raises(SettingsError, match="each of hidden must be at least 1"):
        make_net("mlp", (4,), {"main": 3}, {"hidden": [0]})
    with pytest.raises(SettingsError, match="images"):
        make_net("lenet", (4,), {"main": 3})


def test_alexnet_32_is_a_trunk_or_a_network_and_needs_images():
    trunk = make_net("alexnet-32", (3, 32, 32), {"1": 10, "2": 10}, {"hidden": [16, 12]}, seed=0)
    assert trunk(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    single = make_net("alexnet-32", (1, 20, 24), {"1": 5}, {"hidden": [16, 12]}, seed=0)
    assert single(torch.zeros(3, 1, 20, 24)).shape == (3, 5)
    assert not any(name.endswith("bias") for name, p in single.named_parameters() if p.dim() > 1)
    with pytest.raises(SettingsError, match="height >= 17"):
        make_net("alexnet-32", (784,), {"1": 10})


@pytest.mark.parametrize("together", [False, True])
def test_alexnet_32_normalises_tests_by_what_it_has_seen_or_by_the_batch(together):
    settings = {"hidden": [16, 12], "batch_statistics": together}
    net = make_net("alexnet-32", (3, 32, 32), {"1": 10}, settings, seed=0).eval()
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    alone, among_others = net(x[:3]), net(x)[:3]
    assert torch.allclose(alone, among_others, atol=1e-5) != together
    assert any("running_mean" in name for name, _ in net.named_buffers()) != together


def test_a_builder_that_needs_arguments_is_named_with_the_first_of_them(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\n\ndef build(input_shape):\n    return torch.nn.Linear(input_shape[0], 2)\n"
    )
    with pytest.raises(
        SettingsError, match=r"own\.py:build needs a value for 'input_shape': name a function"
    ):
        build_net(f"{tmp_path / 'own.py'}:build")
