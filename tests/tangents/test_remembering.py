"""Sequences, images and several outputs: what is remembered is what the names say, compared with autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from orthocl import EWC, OGD, OGDPlus, attach, plan
from orthocl.errors import SettingsError, UnsupportedError
from orthocl.methods import METHODS
from orthocl.nets import selectors
from orthocl.nets.positions import sampled_positions
from orthocl.streams.batches import default_split
from orthocl.tangents import collect
from orthocl.tangents.remembering import Remembering

WORDS, LENGTH, SAMPLES = 7, 6, 5


class Language(nn.Module):
    """Logits of the next word at each position: (samples, positions, words)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 5)
        self.mix = nn.GRU(5, 5, batch_first=True)
        self.head = nn.Linear(5, WORDS)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.mix(self.words(input_ids))[0])


def sentences(seed=0, samples=SAMPLES):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (samples, LENGTH), generator=generator)
    targets = torch.randint(WORDS, (samples, LENGTH), generator=generator)
    targets[:, -1] = -100
    targets[0, 2:] = -100  # fewer targets than tokens
    return words, targets


def jacobian(model, rows):
    """Gradients of some numbers, one at a time."""
    leaves = list(model.parameters())
    found = []
    for value in rows.flatten():
        parts = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
        found.append(
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for p, g in zip(leaves, parts, strict=True)
                ]
            )
        )
    return torch.stack(found)


def test_tokens_are_log_probabilities_of_targets_at_sampled_positions():
    model = Language().double()
    words, targets = sentences()
    tangents = collect(
        model, words, targets, parameters=dict(model.named_parameters()), variant="tokens", tokens=3
    )
    valid = targets != -100
    chosen = sampled_positions(targets, valid, 3)
    log = model(words).log_softmax(-1)
    expected = torch.stack(
        [
            torch.stack(
                [log[n, t, targets[n, t]] if valid[n, t] else log.sum() * 0 for t in chosen[n].tolist()]
            )
            for n in range(SAMPLES)
        ]
    )
    assert torch.allclose(tangents.dense(), jacobian(model, expected), atol=1e-12)
    assert all(valid[n, t] for n in range(1, SAMPLES) for t in chosen[n].tolist())


def test_positions_are_spread_and_do_not_depend_on_padding_or_on_the_batch():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(50, (400, 20), generator=generator)
    valid = torch.ones_like(targets, dtype=torch.bool)
    chosen = sampled_positions(targets, valid, 4)
    counts = torch.bincount(chosen.flatten(), minlength=20).double()
    # 400 x 4 draws over 20 positions: 80 each, with a standard deviation of about 8.
    assert (counts - 80).abs().max() < 40
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    longer = nn.functional.pad(targets, (0, 5), value=-100)
    assert torch.equal(sampled_positions(longer, longer != -100, 4), chosen)
    assert torch.equal(sampled_positions(targets[7:8], valid[7:8], 4), chosen[7:8])


def test_pixels_with_classes_are_positions_too():
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=1).double()
    x, y = torch.randn(4, 2, 5, 5).double(), torch.randint(3, (4, 5, 5))
    tangents = collect(model, x, y, parameters=dict(model.named_parameters()), variant="tokens", tokens=2)
    flat = y.flatten(1)
    chosen = sampled_positions(flat, flat != -100, 2)
    log = model(x).log_softmax(1).flatten(2)
    expected = torch.stack([log[n, flat[n, t], t] for n in range(4) for t in chosen[n].tolist()])
    assert torch.allclose(tangents.dense(), jacobian(model, expected), atol=1e-12)


def test_selectors_compute_what_they_say():
    model = Language().double()
    words, targets = sentences()
    mask = torch.ones_like(words)
    mask[1, 3:] = 0
    logits = model(words)
    found = selectors.last_token(model, {"input_ids": words, "attention_mask": mask})
    assert torch.equal(found[0], logits[0, -1])
    assert torch.equal(found[1], logits[1, 2])
    assert torch.equal(selectors.last_token(model, words), logits[:, -1])
    likelihood = selectors.sequence_log_likelihood(model, words, targets)
    each = -cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
    assert torch.allclose(likelihood[:, 0], each.sum(1))
    image = nn.Conv2d(1, 2, 1)
    x = torch.randn(3, 1, 4, 4)
    assert torch.equal(selectors.sampled_pixels(99)(image, x), image(x).flatten(1))
    with pytest.raises(SettingsError, match="at least one pixel"):
        selectors.sampled_pixels(0)
    with pytest.raises(UnsupportedError, match="positions, words"):
        selectors.last_token(nn.Linear(2, 2), torch.zeros(1, 2))


class Detector(nn.Module):
    """Boxes and classes, as a dict; a tuple would do as well."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.boxes, self.classes = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(5, 3)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return {"boxes": self.boxes(hidden).unflatten(1, (2, 2)), "scores": self.classes(hidden)}


def test_each_of_several_outputs_is_remembered_with_its_own_targets():
    model = Detector().double()
    x = torch.randn(4, 6).double()
    targets = {"boxes": torch.zeros(4, 4).double(), "scores": torch.tensor([0, 1, 2, 0])}
    outputs = {"boxes": selectors.entry("boxes"), "scores": selectors.entry("scores")}
    parameters = dict(model.named_parameters())
    tangents = collect(model, x, targets, parameters=parameters, variant="all", outputs=outputs)
    found = model(x)
    expected = jacobian(model, torch.cat([found["boxes"].flatten(1), found["scores"]], 1))
    assert torch.allclose(tangents.dense(), expected, atol=1e-12)
    one = {"scores": outputs["scores"]}
    label = collect(model, x, targets, parameters=parameters, variant="gtl", outputs=one)
    rows = found["scores"].gather(1, targets["scores"][:, None])
    assert torch.allclose(label.dense(), jacobian(model, rows), atol=1e-12)


class Boxes(Dataset):
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(8, 6, generator=self.generator).double()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, n):
        return self.x[n], {"boxes": self.x[n, :4], "scores": n % 3}


def detection_loss(found, targets):
    scores = cross_entropy(found["scores"], targets["scores"])
    return (found["boxes"].flatten(1) - targets["boxes"]).square().mean() + scores


@pytest.mark.parametrize("name", ["ogd", "ogd+", "a-gem", "er", "der++", "ewc", "mas", "gpm", "kron-ogd"])
def test_methods_with_several_outputs(name):
    settings = {"memory_per_task": 3} if "memory_per_task" in METHODS[name]().settings() else {}
    if name.startswith("ogd"):
        settings["variant"] = "all"
    model = Detector().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    outputs = {"boxes": selectors.entry("boxes"), "scores": selectors.entry("scores")}
    learner = attach(METHODS[name](**settings), model, optimizer, outputs=outputs, loss=detection_loss)
    for seed in range(3):
        data = Boxes(seed)
        with learner.learning(data):
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                (detection_loss(model(x), y) + learner.penalty()).backward()
                optimizer.step()
    if name.startswith("ogd"):
        assert learner.method.watcher.report["leak"] < 1e-9
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["ogd", "ogd+", "a-gem", "er", "der++", "ewc", "mas", "gpm"])
def test_methods_on_sequences(name):
    settings = {"memory_per_task": 3} if "memory_per_task" in METHODS[name]().settings() else {}
    if name.startswith("ogd"):
        settings |= {"variant": "tokens", "tokens": 2}
    model = Language().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    learner = attach(METHODS[name](**settings), model, optimizer)
    for seed in range(2):
        words, targets = sentences(seed)
        with learner.learning(TensorDataset(words, targets)):
            optimizer.zero_grad()
            (cross_entropy(model(words).flatten(0, 1), targets.flatten()) + learner.penalty()).backward()
            optimizer.step()
    if name.startswith("ogd"):
        assert learner.method.watcher.report["leak"] < 1e-9


def test_the_fisher_of_a_sequence_is_that_of_all_its_words():
    model = Language().double()
    words, targets = sentences()
    learner = attach(EWC(fisher="label"), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with learner.learning(TensorDataset(words, targets)):
        pass
    likelihood = selectors.sequence_log_likelihood(model, words, targets)
    expected = jacobian(model, likelihood).square().mean(0)
    assert torch.allclose(torch.cat([p.flatten() for p in learner.method.importance]), expected, rtol=1e-8)


def test_causal_models_predict_the_next_word():
    class LittleLMHeadModel(Language):
        """Causal by its name, as GPT-2 is; others say so by `loss_type`."""

    class Sentences(Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, n):
            words = sentences()[0][n]
            return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}

    model = LittleLMHeadModel().double()
    learner = attach(
        OGDPlus(memory_per_task=2, variant="tokens", tokens=2),
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
    )
    with learner.learning(Sentences()):
        pass
    piece = learner.method.memory.pieces[1]
    assert torch.equal(piece.targets[:, :-1], piece.inputs["input_ids"][:, 1:])
    assert set(piece.targets[:, -1].tolist()) == {-100}
    batch = next(iter(DataLoader(Sentences(), batch_size=2)))
    assert torch.equal(default_split(Language())(batch)[1], batch["labels"])
    said = Language()
    said.loss_type = "ForCausalLM"
    assert torch.equal(default_split(said)(batch)[1][:, 0], batch["labels"][:, 1])


def test_the_plan_counts_tokens_and_several_outputs():
    model = Language().double()
    words, targets = sentences()
    found = plan(
        model, {"input_ids": words, "labels": targets}, tasks=2, memory_per_task=3, variant="tokens", tokens=2
    )
    assert (found.rows, found.rows_per_sample) == (12, 2)
    outputs = {"boxes": selectors.entry("boxes"), "scores": selectors.entry("scores")}
    several = plan(Detector(), torch.zeros(1, 6), tasks=2, memory_per_task=3, variant="all", outputs=outputs)
    assert several.rows_per_sample == 7


def test_sequences_without_a_choice_are_explained():
    model = Language().double()
    words, targets = sentences()
    parameters = dict(model.named_parameters())
    with pytest.raises(UnsupportedError, match="variant='tokens'"):
        collect(model, words, targets, parameters=parameters)
    with pytest.raises(SettingsError, match="one target for each position"):
        collect(model, words, targets[:, :2], parameters=parameters, variant="tokens")
    with pytest.raises(SettingsError, match="need integer targets"):
        collect(model, words, targets.double(), parameters=parameters, variant="tokens")
    with pytest.raises(SettingsError, match="tokens of ogd must be at least 1"):
        attach(OGD(tokens=0), model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_stand_ins_have_a_class_for_each_sample_or_for_each_position():
    assert Remembering("tokens").stand_in(torch.zeros(2, 3, 5)).shape == (2, 3)
    assert Remembering("gtl").stand_in(torch.zeros(2, 5)).shape == (2,)
    both = Remembering("gtl").stand_in({"a": torch.zeros(2, 5), "b": torch.zeros(2, 4)})
    assert {name: part.shape for name, part in both.items()} == {"a": (2,), "b": (2,)}


def test_one_position_per_sample_is_enough_and_none_is_not():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)).double()
    words = torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(0))
    parameters = dict(model.named_parameters())
    found = collect(model, words, words, parameters=parameters, variant="tokens", tokens=1)
    assert found.rows == 3
    with pytest.raises(SettingsError, match="at least one position"):
        collect(model, words, words, parameters=parameters, variant="tokens", tokens=0)
