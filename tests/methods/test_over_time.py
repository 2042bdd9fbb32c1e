"""The table of what became of each task, as text."""

from orthocl.methods.over_time import OverTime, Remaining


def test_text():
    rows = (
        Remaining("task 1, remembered", 4, (1.0, 0.75), True, lost=1),
        Remaining("task 1", 200, (0.915, 0.9), True, lost=3, lost_at_most=0.0384),
        Remaining("curve", 7, (None, 0.02), False),
    )
    assert OverTime((1, 2), rows).lines(0.95) == [
        "after the fit of:               task 1   task 2",
        "task 1, remembered (accuracy)   100.0%    75.0%",
        "task 1 (accuracy)                91.5%    90.0%",
        "curve (change)                             2.0%",
        "task 1, remembered: 1 of 4 samples lost since it was learnt",
        "task 1: 3 of 200 samples lost since it was learnt, at most 3.8% of all (95% confidence)",
    ]
