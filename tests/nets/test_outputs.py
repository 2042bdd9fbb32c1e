"""Which outputs are meant, and whether they are the same twice."""

import pytest
import torch
from torch import nn

from orthocl.errors import UnsupportedError
from orthocl.nets.outputs import check_repeatable, plain_output, takes


def test_a_tuple_with_one_tensor_is_that_tensor():
    x, state = torch.ones(2, 3), (torch.zeros(1), torch.zeros(1))
    for found in ((x,), [x], (x, None), (x, state)):
        assert plain_output(found) is x


@pytest.mark.parametrize("others", [(torch.zeros(2),), (None, torch.zeros(2))])
def test_of_several_tensors_none_is_guessed(others):
    with pytest.raises(UnsupportedError, match="outputs=lambda"):
        plain_output((torch.ones(2, 3), *others))


class Noisy(nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def forward(self, x):
        return x * (1 + self.noise * torch.randn(()))


@pytest.mark.parametrize(("noise", "refused"), [(0.0, False), (1e-7, False), (1e-2, True)])
def test_rounding_is_not_randomness(noise, refused):
    torch.manual_seed(0)
    if refused:
        with pytest.raises(UnsupportedError, match="two evaluations of one batch"):
            check_repeatable(Noisy(noise), torch.ones(4, 3))
    else:
        check_repeatable(Noisy(noise), torch.ones(4, 3))


def test_a_selector_that_needs_targets_does_not_count_as_a_refusal():
    def of_labels(model, x, y):
        return model(x).gather(1, y[:, None])

    model = nn.Linear(2, 3)
    assert takes(model, torch.zeros(4, 2), of_labels)
    assert not takes(model, torch.zeros(4, 2).double(), of_labels)
