"""Targets at positions: what cannot be looked up is explained."""

import pytest
import torch

from orthocl.errors import DataError, SettingsError
from orthocl.methods.ewc import _log_likelihood_of_positions
from orthocl.nets.positions import IGNORED, log_probabilities


@pytest.mark.parametrize("odd", [-1, 255, 5])
@pytest.mark.parametrize("fisher", [None, "predicted", "label"])
def test_a_target_that_the_loss_leaves_out_in_its_own_way_is_named(odd, fisher):
    outputs, targets = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [4, odd, IGNORED]])

    def look_up():
        if fisher is None:
            return log_probabilities(outputs, targets)
        return _log_likelihood_of_positions(outputs, targets, fisher, torch.Generator())

    with pytest.raises(DataError, match=rf"target {odd} has no logit.*masked_fill\(y == {odd}, -100\)"):
        look_up()


def test_marked_positions_are_left_out_alone_and_in_vmap():
    outputs, targets = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [4, 3, IGNORED]])
    found, valid = log_probabilities(outputs, targets)
    assert valid.tolist() == [[True] * 3, [True, True, False]]
    each = torch.vmap(lambda x, y: log_probabilities(x[None], y[None])[0][0])(outputs, targets)
    torch.testing.assert_close(each[valid], found[valid])


def test_virtual_tokens_are_named():
    with pytest.raises(SettingsError, match=r"adds 4 positions.*virtual tokens.*logits\[:, 4:\]"):
        log_probabilities(torch.randn(2, 16, 5), torch.zeros(2, 12, dtype=torch.long))
    with pytest.raises(SettingsError) as caught:
        log_probabilities(torch.randn(2, 12, 5), torch.zeros(2, 16, dtype=torch.long))
    assert "virtual" not in str(caught.value)
