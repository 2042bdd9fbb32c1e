"""chain and partition against their members, alone and side by side; what depends on their order; what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import orthocl
from orthocl.errors import SettingsError, StoreError, UnsupportedError
from orthocl.methods import AGEM, ER, EWC, MAS, OGD, SGD, SI, Method, OGDPlus, StableSGD, chain, partition
from orthocl.training import attach


def optimizer_of(net, name="sgd"):
    if name == "adam":
        return torch.optim.Adam(net.parameters(), lr=0.01)
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9 if name == "momentum" else 0.0)


@pytest.fixture
def run(net, data, learn):
    """Final weights and the learner of a method, from the same start."""
    start = {name: value.clone() for name, value in net.state_dict().items()}

    def run(method, optimizer="sgd"):
        net.load_state_dict(start)
        learner = attach(method, net, optimizer_of(net, optimizer), seed=0)
        for split in data:
            weights = learn(learner, split)
        learner.detach()
        return torch.cat([w.flatten() for w in weights]), learner

    return run


@pytest.mark.parametrize(
    "make", [SGD, EWC, SI, MAS, AGEM, lambda: OGD(memory_per_task=3, engine="project"), ER]
)
def test_a_chain_of_one_is_that_method(run, make):
    assert torch.equal(run(make())[0], run(chain(make()))[0])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("other", [lambda: EWC(strength=5.0), ER, SI, AGEM])
def test_a_projection_acts_last_wherever_it_stands(run, optimizer, other):
    weights, learner = run(chain(OGD(memory_per_task=3), other()), optimizer)
    again, _ = run(chain(other(), OGD(memory_per_task=3)), optimizer)
    assert torch.equal(weights, again)
    assert learner.method.methods[-1].name == "ogd"
    alone, _ = run(OGD(memory_per_task=3, engine="project"), optimizer)
    assert not torch.equal(weights, alone)


def test_a_chain_is_the_method_written_by_hand(run):
    """EWC's penalty and OGD's projection in one class, as one would write it without chains."""

    @dataclass
    class Both(Method):
        name: ClassVar[str] = "both"
        projects: ClassVar[bool] = True

        def __post_init__(self):
            self.ewc, self.ogd = EWC(strength=5.0), OGD(memory_per_task=3, engine="project")

        def penalty(self, learner):
            return self.ewc.penalty(learner)

        def begin_task(self, learner):
            self.ogd.begin_task(learner)

        @property
        def protects(self):
            return self.ogd.protects

        def inside(self, learner, displacement):
            return self.ogd.inside(learner, displacement)

        def end_task(self, learner):
            self.ewc.end_task(learner)
            self.ogd.end_task(learner)

    for optimizer in ("sgd", "momentum", "adam"):
        by_hand, _ = run(Both(), optimizer)
        chained, _ = run(chain(EWC(strength=5.0), OGD(memory_per_task=3)), optimizer)
        assert torch.equal(by_hand, chained)


@dataclass
class Scale(Method):
    """Multiplies the gradient; with `Shift`, a pair whose order matters."""

    name: ClassVar[str] = "scale"

    def transform(self, learner, gradient):
        return [2.0 * g for g in gradient]


@dataclass
class Shift(Method):
    name: ClassVar[str] = "shift"

    def transform(self, learner, gradient):
        return [g + 1.0 for g in gradient]


def test_other_methods_act_in_the_order_given(make):
    learner = make(chain(Scale(), Shift()))
    ones = [torch.ones_like(p) for p in learner.parameters.values()]
    assert chain(Scale(), Shift()).transform(learner, ones)[0].unique() == 3
    assert chain(Shift(), Scale()).transform(learner, ones)[0].unique() == 4
    assert chain(Scale(), Shift(), chain(Shift(), Scale())).transform(learner, ones)[0].unique() == 8


def test_penalties_add_up(make, data, learn):
    learner = make(chain(EWC(strength=3.0), MAS(strength=2.0)))
    learn(learner, data[0])
    with learner.learning(data[1]):
        with torch.no_grad():
            for p in learner.model.parameters():
                p += 0.1
        parts = [method.penalty(learner) for method in learner.method.methods]
        assert learner.penalty().item() == pytest.approx(sum(part.item() for part in parts))
        assert min(part.item() for part in parts) > 0


def test_names_settings_bytes_and_numbers(run):
    both = orthocl.chain(OGDPlus(memory_per_task=3), EWC(strength=5.0))
    assert (both.name, both.projects, both.batch_size) == ("ewc & ogd+", True, None)
    assert both.settings()["ewc"] == {"method": "ewc", "settings": EWC(strength=5.0).settings()}
    _, learner = run(both)
    ewc, ogd = both.methods
    assert both.nbytes() == ewc.nbytes() + ogd.nbytes() > 0
    assert both.monitor(learner) == ogd.monitor(learner)
    assert both.remembered.keys() == {1, 2, 3}
    assert torch.equal(both.remembered[2], ogd.remembered[2].unique())
    two = orthocl.partition({"0": OGD(memory_per_task=2), "3": OGD(memory_per_task=4)})
    _, learner = run(two)
    assert learner.method.monitor(learner)["0: rank"] == 6
    assert learner.method.monitor(learner)["3: rank"] > 6
    assert sorted(two.settings()) == ["0", "3"]


def test_a_batch_size_that_a_member_brings_is_that_of_the_chain():
    assert chain(StableSGD(batch_size=7), EWC()).batch_size == 7
    assert chain(StableSGD(batch_size=None), EWC()).batch_size is None
    with pytest.raises(SettingsError, match=r"different batch sizes \(\[3, 7\]\)"):
        chain(StableSGD(batch_size=7), StableSGD(batch_size=3))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_each_part_is_trained_as_if_its_method_were_alone(net, data, learn, optimizer):
    """OGD on the first layer beside plain training of the last is OGD that protects the first layer only."""
    start = {name: value.clone() for name, value in net.state_dict().items()}
    found = []
    for method, protect in (
        (partition({"0": OGD(memory_per_task=3, engine="project")}), None),
        (OGD(memory_per_task=3, engine="project"), ["0"]),
    ):
        net.load_state_dict(start)
        learner = attach(method, net, optimizer_of(net, optimizer), seed=0, protect=protect)
        for split in data:
            weights = learn(learner, split)
        found.append(torch.cat([w.flatten() for w in weights]))
        learner.detach()
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_parts_do_not_depend_on_their_order(run):
    def parts():
        return {"0": AGEM(memory_per_task=3), "3": EWC(strength=5.0)}

    one, learner = run(partition(parts()))
    two, _ = run(partition(dict(reversed(parts().items()))))
    assert torch.equal(one, two)
    assert learner.method.name == "0: a-gem, 3: ewc"


def test_parts_with_learning_rates_of_their_own_keep_their_promise(net, data, learn):
    """Each part's own displacement is protected at every step, whatever the optimizer does to it."""
    groups = [
        {"params": net[0].parameters(), "lr": 0.05, "momentum": 0.9},
        {"params": net[3].parameters(), "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    ]
    method = partition({"0": OGD(memory_per_task=3), "3": OGD(memory_per_task=3)})
    learner = attach(method, net, torch.optim.SGD(groups, lr=0.1), seed=0)
    learn(learner, data[0])
    for split in data[1:]:
        spans = {key: member.subspace for key, member in method.parts.items()}
        before = {name: p.detach().clone() for name, p in learner.parameters.items()}
        with learner.learning(split):
            for step in range(6):
                inputs, targets = split.samples(torch.arange(step * 2, step * 2 + 4) % 12)
                learner.optimizer.zero_grad()
                learner.loss(net(inputs), targets).backward()
                learner.optimizer.step()
                for key in method.parts:
                    moved = [
                        p.detach() - before[n] for n, p in learner.parameters.items() if n.startswith(key)
                    ]
                    assert spans[key].leak(moved) < 1e-9


def test_replay_lowers_what_is_forgotten(run, data, net):
    def loss_of_the_first_task(method):
        run(method)
        with torch.no_grad():
            return float(nn.functional.cross_entropy(net(data[0].inputs()), data[0].targets))

    plain, replayed = loss_of_the_first_task(SGD()), loss_of_the_first_task(ER(memory_per_task=12))
    both = loss_of_the_first_task(chain(ER(memory_per_task=12), OGD(memory_per_task=3)))
    assert replayed < plain
    assert both < plain


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: chain(), "at least one method"),
        (lambda: chain(OGD), r"give an instance, OGD\(\)"),
        (lambda: chain("ogd"), "got the text 'ogd'"),
        (lambda: chain(EWC(), None), "got None"),
        (lambda: chain(OGD(), OGDPlus()), "project once, got 'ogd' and 'ogd\\+'"),
        (lambda: chain(*[EWC()] * 2), "same method object twice"),
        (lambda: partition({}), "at least one method"),
        (lambda: partition([OGD()]), "expects a dict"),
        (lambda: partition({"a": OGD}), "give an instance"),
    ],
)
def test_what_is_refused_at_once(make, words):
    with pytest.raises(SettingsError, match=words):
        make()


def test_what_is_refused_with_the_model(make):
    with pytest.raises(UnsupportedError, match="no protected parameter belongs to the part 'encoder'"):
        make(partition({"encoder": OGD()}))
    with pytest.raises(UnsupportedError, match="must not overlap"):
        make(partition({"0": OGD(), "0.weight": EWC()}))
    with pytest.raises(SettingsError, match="strength of ewc"):
        make(chain(OGD(), EWC(strength=-1)))


def test_the_adapter_by_name_takes_no_other_methods_share_of_the_gradient(make, data, learn):
    learner = make(chain(OGD(engine="adapter"), EWC()))
    with pytest.raises(UnsupportedError, match="would not see the other methods' share"):
        learn(learner, data[0])
    learn(make(partition({"0": OGD(engine="adapter"), "3": EWC()})), data[0])
    learn(make(chain(OGD(engine="adapter"))), data[0])


def test_memories_go_to_disk_and_back(make, data, learn, tmp_path, net):
    learner = make(chain(OGDPlus(memory_per_task=3), EWC()))
    learn(learner, data[0])
    learner.save(tmp_path / "memory")
    other = make(chain(EWC(), OGDPlus(memory_per_task=3)))
    other.load(tmp_path / "memory")
    assert other.method.remembered.keys() == {1}
    assert other.method.methods[1].subspace.rank == 3
    with pytest.raises(StoreError, match="state of method 'ewc & ogd"):
        make(chain(EWC(), OGD())).load(tmp_path / "memory")
