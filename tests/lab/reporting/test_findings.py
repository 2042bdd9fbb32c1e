"""Sentences about results."""

from orthocl.lab.reporting.findings import find
from orthocl.lab.reporting.groups import group_runs


def test_a_single_seed_does_not_lead_those_with_several(make_runs):
    pairs = make_runs(streams=["rotated"])
    lucky = [(s, r) for s, r in pairs if s.method_label != "ogd+" or s.seed == 1]
    assert find(group_runs(pairs))[0].headline.startswith("On rotated, ogd+ keeps")
    assert find(group_runs(lucky))[0].headline.startswith("On rotated, ogd keeps")
    alone = [(s, r) for s, r in pairs if s.seed == 1]
    assert find(group_runs(alone))[0].headline.startswith("On rotated, ogd+ keeps")
