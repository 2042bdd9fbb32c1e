"""Sentences about results."""

from dataclasses import replace

import pytest

from orthocl.lab.reporting.findings import find
from orthocl.lab.reporting.groups import group_runs
from orthocl.lab.reporting.price import plain_sgd, price


def test_a_single_seed_does_not_lead_those_with_several(make_runs):
    pairs = make_runs(streams=["rotated"])
    lucky = [(s, r) for s, r in pairs if s.method_label != "ogd+" or s.seed == 1]
    assert find(group_runs(pairs))[0].headline.startswith("On rotated, ogd+ keeps")
    assert find(group_runs(lucky))[0].headline.startswith("On rotated, ogd keeps")
    alone = [(s, r) for s, r in pairs if s.seed == 1]
    assert find(group_runs(alone))[0].headline.startswith("On rotated, ogd+ keeps")


def test_the_reference_above_does_not_lead_but_is_a_result(make_runs):
    groups = group_runs(make_runs(streams=["rotated"]))
    as_joint = [replace(group, method="joint") if group.method == "ogd+" else group for group in groups]
    assert find(as_joint)[0].headline.startswith("On rotated, ogd keeps")
    alone = find([group for group in as_joint if group.method == "joint"])[0].headline
    assert alone.startswith("On rotated, joint, the reference above, reaches ")


def timed(pairs, change, method="ogd+"):
    """The same runs, with other circumstances for one method."""
    return [
        (s, replace(r, provenance={**r.provenance, **change(r)}) if s.method_label == method else r)
        for s, r in pairs
    ]


def found_price(pairs, method="ogd+"):
    groups = group_runs(pairs)
    return price(next(group for group in groups if group.method == method), plain_sgd(groups))


def test_the_price_is_processor_time_of_a_step(make_runs):
    pairs = make_runs(streams=["rotated"])
    quiet = found_price(pairs)
    assert quiet.times == pytest.approx(4.0)
    assert (str(quiet), quiet.remark) == ("4.0x", "")
    waited = timed(
        pairs, lambda r: {"seconds": r.provenance["seconds"] | {"train": 90.0, "evaluate": 9.0, "total": 1e3}}
    )
    assert found_price(waited).times == pytest.approx(4.0)
    assert "for 4.0x the processor time of a step" in find(group_runs(waited))[0].headline
    assert find(group_runs(waited))[0].tiles[-1][:2] == ("price", "4.0x")
    longer = [
        (
            s,
            replace(
                r,
                settings=replace(r.settings, train=replace(r.settings.train, epochs=4)),
                provenance={
                    **r.provenance,
                    "seconds": {"processor": 2 * r.provenance["seconds"]["processor"]},
                },
            )
            if s.method_label == "ogd+"
            else r,
        )
        for s, r in pairs
    ]
    assert found_price(longer).times == pytest.approx(4.0)  # twice the steps in twice the time
    assert found_price(longer).work == "4 epochs a task, SGD 2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: {"machine": {"system": "Linux", "cpus": 64}}, "machine"),
        (lambda r: {"seconds": {"processor": 0.5}}, "too short"),
        (lambda r: {"seconds": {"train": 60.0, "evaluate": 60.0}}, "did not measure"),
        (lambda r: {"resumes": 1}, "did not measure"),
        (lambda r: {"together": 3}, "computed together"),
    ],
)
def test_what_cannot_be_compared_has_no_price(make_runs, change, words):
    pairs = timed(make_runs(streams=["rotated"]), change)
    assert str(found_price(pairs)) == ""
    assert words in found_price(pairs).remark
    finding = find(group_runs(pairs))[0]
    assert "time" not in finding.headline
    assert words in finding.tiles[-1][2]


def test_another_training_gives_no_margin(make_runs):
    plain = make_runs(streams=["rotated"], methods=["sgd"], changes=[{"epochs": 5}])
    pairs = plain + make_runs(streams=["rotated"], methods=["sgd", "ogd"], changes=[{"epochs": 1}])[3:]
    assert found_price(pairs, "ogd").work == "1 epoch a task, SGD 5"
    headline = find(group_runs(pairs))[0].headline
    assert "points above" not in headline
    assert "another network or training, so no margin is given" in headline
    other = timed(
        pairs,
        lambda r: {"machine": {**r.provenance["machine"], "vector_instructions": "AVX512"}},
        "ogd",
    )
    assert "other processors" in found_price(other, "ogd").remark


def test_plain_sgd_alone_has_no_price_but_its_memory(make_runs):
    finding = find(group_runs(make_runs(streams=["rotated"], methods=["sgd"])))[0]
    assert finding.tiles[-1] == (
        "price",
        "0 B",
        "of memory, caches included; it is what times are compared with",
    )
