"""Seeds mean what people think: `torch.manual_seed` decides where no seed is given, and only there."""

import pytest
import torch

import orthocl
from orthocl.methods import EWC, OGD, OGDPlus
from orthocl.streams import from_arrays
from orthocl.training import Observer, TrainSettings, attach, train
from orthocl.training.checkpoint import load_checkpoint, save_checkpoint

SETTINGS = TrainSettings(epochs=3, batch_size=5, learning_rate=0.05)


def make_stream():
    generator = torch.Generator().manual_seed(1)

    def arrays():
        return torch.randn(30, 6, generator=generator), torch.arange(30) % 3

    return from_arrays([(*arrays(), *arrays()) for _ in range(2)], outputs=3)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def recipe(method, **seeds):
    """What a newcomer writes: a net, an optimizer, a method, training."""
    stream = make_stream()
    net = orthocl.make_net("mlp", stream.input_shape, stream.heads, {"hidden": [8]}, **seeds)
    start = flat(net)
    learner = orthocl.attach(method, net, torch.optim.SGD(net.parameters(), lr=0.05), **seeds)
    progress = orthocl.train(learner, stream, SETTINGS, **seeds)
    return start, flat(net), learner.method.remembered, progress


@pytest.mark.parametrize("kind", [OGDPlus, EWC])
def test_three_seeds_are_three(kind):
    runs = []
    for seed in (0, 1, 2, 0):
        torch.manual_seed(seed)
        runs.append(recipe(kind()))
    for pick in (0, 1):
        assert torch.equal(runs[0][pick], runs[3][pick])
        assert len({tuple(run[pick].tolist()) for run in runs}) == 3
    assert runs[0][3].losses == runs[3][3].losses


def test_every_part_follows_the_global_seed():
    def drawn(seed, part):
        stream = make_stream()
        torch.manual_seed(seed if part == "net" else 0)
        net = orthocl.make_net("mlp", stream.input_shape, stream.heads, {"hidden": [8]})
        torch.manual_seed(seed if part == "attach" else 0)
        learner = attach(OGD(memory_per_task=5), net, torch.optim.SGD(net.parameters(), lr=0.05))
        torch.manual_seed(seed if part == "train" else 0)
        train(learner, stream, SETTINGS)
        return flat(net), learner.method.remembered[1]

    for part in ("net", "attach", "train"):
        (one, places), (same, same_places), (other, other_places) = (drawn(s, part) for s in (1, 1, 2))
        assert torch.equal(one, same)
        assert torch.equal(places, same_places)
        assert not torch.equal(one, other)
        assert torch.equal(places, other_places) == (part != "attach")


def test_a_seed_that_is_given_decides_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = recipe(OGDPlus(memory_per_task=5), seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    two = recipe(OGDPlus(memory_per_task=5), seed=3)
    assert torch.equal(one[1], two[1])
    assert one[3].losses == two[3].losses
    assert one[3].order_seed == 3


class StopAt(Observer):
    def __init__(self, path, place):
        self.path, self.place = path, place

    def on_step(self, learner, progress, loss):
        if (progress.task, progress.step) == self.place:
            save_checkpoint(self.path, learner, progress)
            raise KeyboardInterrupt


def test_a_run_with_a_drawn_seed_goes_on_in_its_own_order(tmp_path):
    def learner():
        torch.manual_seed(1)
        net = orthocl.make_net("mlp", (6,), {"main": 3}, {"hidden": [8]})
        return attach(OGD(memory_per_task=5), net, torch.optim.SGD(net.parameters(), lr=0.05))

    whole = learner()
    train(whole, make_stream(), SETTINGS)
    stopped = learner()
    with pytest.raises(KeyboardInterrupt):
        train(stopped, make_stream(), SETTINGS, observers=[StopAt(tmp_path / "c", (2, 4))])
    resumed = learner()
    torch.manual_seed(77)
    progress = load_checkpoint(tmp_path / "c", resumed, make_stream())
    train(resumed, make_stream(), SETTINGS, progress=progress)
    assert torch.equal(flat(whole.model), flat(resumed.model))
