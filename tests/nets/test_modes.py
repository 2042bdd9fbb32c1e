"""What a block changes about a model or about torch, and that nothing else is changed."""

import warnings

import torch
from torch.func import vmap

from orthocl.nets.modes import quiet_vmap


def test_only_the_word_of_vmap_is_silenced():
    """On CPU, vmap has no rule for this operation of attention, and says so each time."""

    def attend(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(2, 1, 1, 3, 4)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        vmap(attend)(x)
        assert [str(one.message).startswith("There is a performance drop") for one in found] == [True]
        with quiet_vmap():
            vmap(attend)(x)
            warnings.warn("another", stacklevel=1)
    assert [str(one.message) for one in found[1:]] == ["another"]
