"""What adapters share, by hand."""

from __future__ import annotations

import pytest
import torch

from orthocl.methods.adapter_overlap import adapter_overlaps, summary


def weights(**downs):
    """Adapters of one layer: two directions of four inputs each, read as they are given."""
    found = {}
    for name, rows in downs.items():
        found[f"layer.lora_A.{name}.weight"] = torch.eye(4, dtype=torch.float64)[rows]
        found[f"layer.lora_B.{name}.weight"] = torch.eye(3, 2, dtype=torch.float64)
    return found


def test_shares_and_chances_by_hand():
    """Directions {1, 2} and {2, 3} of four: cosines 1 and 0, a mean square of one half; by chance 2/4."""
    (one,) = adapter_overlaps(weights(a=[0, 1], b=[1, 2]))
    assert (one.module, one.first, one.second) == ("layer", "lora.a", "lora.b")
    assert (one.shared, one.largest, one.by_chance) == pytest.approx((0.5, 1.0, 0.5))
    assert one.loss == pytest.approx(1.0)  # |e_2 e_2| is the only product
    assert one.updates == pytest.approx(0.0)  # e_2 is read by the second row of one, the first of the other
    (same,) = adapter_overlaps(weights(a=[0, 1], b=[0, 1]))
    assert (same.shared, same.updates, same.loss) == pytest.approx((1.0, 1.0, 2.0))


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_shares_do_not_depend_on_the_size_of_the_weights(unit):
    """As above: directions, and cosines of the updates, have no unit."""
    plain = weights(a=[0, 1], b=[0, 2])
    (one,) = adapter_overlaps(plain)
    (other,) = adapter_overlaps({name: unit * weight for name, weight in plain.items()})
    assert (one.shared, one.largest, one.updates) == pytest.approx((0.5, 1.0, 0.5))
    assert (other.shared, other.largest, other.updates) == pytest.approx((0.5, 1.0, 0.5))


def test_the_sentence_names_means_over_all_pairs():
    """Three pairs that share a half, none and a half: a third on average, as random ones would a half."""
    found = adapter_overlaps(weights(a=[0, 1], b=[1, 2], c=[2, 3]))
    assert [each.shared for each in found] == pytest.approx([0.5, 0.0, 0.5])
    sentence = summary(found)
    assert "of 3 pairs share 33.3% of their input directions (random ones 50.0%)" in sentence
    assert "most in layer (lora.a, lora.b: 50.0%, largest cosine 1.000)" in sentence
    assert sentence.endswith("the orthogonality loss sum |A1 A2^T| is 2.")
    assert summary([]) == "There are no pairs of adapters to compare."


@pytest.mark.parametrize("missing", ["b", "ab"])
def test_updates_are_compared_only_where_both_are_whole(missing):
    both = weights(a=[0, 1], b=[0, 1])
    some = {n: w for n, w in both.items() if n not in {f"layer.lora_B.{name}.weight" for name in missing}}
    (one,) = adapter_overlaps(some)
    assert (one.shared, one.updates) == pytest.approx((1.0, 0.0))


@pytest.mark.parametrize("unit", [1e-20, 1.0])
def test_a_weak_direction_is_a_direction(unit):
    """{1, weakly 2} and {2, 3} share what {1, 2} and {2, 3} share."""
    found = weights(a=[0, 1], b=[1, 2])
    found["layer.lora_A.a.weight"] = unit * torch.diag(torch.tensor([1.0, 1e-3, 0, 0]).double())[:2]
    (one,) = adapter_overlaps(found)
    assert (one.shared, one.largest, one.by_chance) == pytest.approx((0.5, 1.0, 0.5))
