import pytest
import torch
from torch import nn

from orthocl.errors import SettingsError
from orthocl.nets import MLP, MultiHead, use_head


def test_a_head_is_chosen_by_name_and_only_it_gets_gradients():
    model = MultiHead(MLP((4,), hidden=(5,)), {"a.b": 2, "c": 3})
    model.select("c")
    model(torch.ones(1, 4)).sum().backward()
    assert model(torch.ones(1, 4)).shape == (1, 3)
    assert [p.grad is None for p in model.heads[0].parameters()] == [True, True]
    with use_head(model, "a.b"):
        assert model(torch.ones(1, 4)).shape == (1, 2)
    assert model.selected == "c"
    with pytest.raises(SettingsError, match="unknown head 'd'"):
        model.select("d")


def test_use_head_leaves_other_models_alone():
    with use_head(nn.Linear(1, 1), "anything"):
        pass  # reaching the next line is the point
    assert not hasattr(nn.Linear(1, 1), "selected")


def test_a_trunk_without_features_and_a_net_without_heads_are_refused():
    with pytest.raises(SettingsError, match="features"):
        MultiHead(nn.Linear(2, 2), {"a": 1})
    with pytest.raises(SettingsError, match="at least one head"):
        MultiHead(MLP((2,)), {})
