from __future__ import annotations

import numpy as np
import pytest

from orthocl.errors import DataError
from orthocl.streams import from_npz, save_npz

TASK = (np.ones((4, 2)), np.arange(4) % 2, np.ones((4, 2)), np.arange(4) % 2)


def test_round_trip(tmp_path):
    save_npz(tmp_path / "x.npz", [TASK, TASK])
    assert len(from_npz(tmp_path / "x.npz")) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x_train_99999999999", "has no array x_train_2, though it has arrays of task 99999999999"),
        ("x_train_2", "has no array y_train_2"),
        ("x_train_" + "9" * 5000, "expected arrays x_train_1"),
        ("x_train_0", "expected arrays x_train_1"),
        ("x_train_\u0663", "expected arrays x_train_1"),
    ],
)
def test_a_gap_is_reported_at_once_whatever_the_numbers(tmp_path, name, words):
    parts = dict(zip(("x_train_1", "y_train_1", "x_test_1", "y_test_1"), TASK, strict=True))
    np.savez(tmp_path / "x.npz", **parts, **{name: np.ones(2)})
    with pytest.raises(DataError, match=words):
        from_npz(tmp_path / "x.npz")
