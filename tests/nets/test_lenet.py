from __future__ import annotations

import torch
from torch.nn import functional

from orthocl.nets import LeNet


def test_the_network_is_the_papers():
    """Convolution, batch normalisation, ReLU, maximum, twice; then a linear layer. Outputs and gradients to the bit."""
    torch.manual_seed(0)
    net = LeNet((3, 16, 16), hidden=7, outputs=4)
    x = torch.randn(5, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    parameters = dict(net.named_parameters())

    def by_hand(z):
        for convolution, norm in (("0", "1"), ("4", "5")):
            z = functional.conv2d(
                z, parameters[f"{convolution}.weight"], parameters[f"{convolution}.bias"], padding=2
            )
            z = functional.batch_norm(
                z, None, None, parameters[f"{norm}.weight"], parameters[f"{norm}.bias"], training=True
            )
            z = functional.max_pool2d(functional.relu(z), 2)
        z = functional.relu(functional.linear(z.flatten(1), parameters["9.weight"], parameters["9.bias"]))
        return functional.linear(z, parameters["12.weight"], parameters["12.bias"])

    results = []
    for outputs in (net(x), by_hand(x)):
        net.zero_grad()
        outputs.square().sum().backward()
        results.append([outputs.detach(), *(p.grad.clone() for p in parameters.values())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
