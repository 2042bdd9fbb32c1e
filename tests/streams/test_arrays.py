"""Streams of a user's own arrays and Datasets, and every way in which they can be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from orthocl.errors import DataError, SettingsError
from orthocl.streams import DatasetSplit, from_arrays, from_datasets

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])
GOOD = (X, Y, X[:3], Y[:3])


def test_classification():
    stream = from_arrays([GOOD, (X + 1, Y, X[:2] + 1, Y[:2])], names=["one", "two"], name="mine")
    assert (stream.name, len(stream), stream.input_shape, dict(stream.heads)) == (
        "mine",
        2,
        (4,),
        {"main": 3},
    )
    task = stream.task(2)
    assert (task.number, task.name, task.head, task.outputs, task.kind) == (
        2,
        "two",
        "main",
        3,
        "classification",
    )
    assert task.train.inputs().dtype == torch.float32
    assert torch.equal(task.train.inputs(torch.tensor([1, 0])), torch.from_numpy(X[[1, 0]] + 1).float())
    assert task.train.targets.dtype == torch.int64
    assert (len(task.train), len(task.test)) == (6, 2)


def test_heads_per_task_have_their_own_sizes():
    stream = from_arrays([GOOD, (X, Y % 2, X, Y % 2)], heads="per-task")
    assert dict(stream.heads) == {"task-1": 3, "task-2": 2}
    assert [(task.head, task.outputs) for task in stream] == [("task-1", 3), ("task-2", 2)]


def test_regression_targets_become_columns():
    stream = from_arrays([(X, X[:, 0], X, X[:, 0]), (X, X[:, 1:2], X, X[:, 1:2])])
    assert {task.kind for task in stream} == {"regression"}
    assert stream.task(1).train.targets.shape == (6, 1)
    assert dict(stream.heads) == {"main": 1}
    whole = from_arrays([(X, Y, X, Y)], kind="regression", dtype=torch.float64)
    assert whole.task(1).train.targets.dtype == whole.task(1).train.inputs().dtype == torch.float64


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(24).view(6, 4),
        X.astype(">f4"),
        X[:, ::-1][:, ::-1],
        X.astype(np.float32).T.copy().T,
        X.astype(np.uint16),
        X.astype(np.uint8),
        X.astype(np.longdouble),
        np.lib.stride_tricks.as_strided(X, writeable=False),
        X.tolist(),
    ],
    ids=["int64", "big-endian", "reversed", "fortran", "uint16", "uint8", "longdouble", "read-only", "lists"],
)
def test_numbers_in_any_form(x):
    inputs = from_arrays([(x, Y, x, Y)]).task(1).train.inputs()
    assert torch.equal(inputs, torch.from_numpy(X).float())


def test_outputs_can_be_more_than_the_labels_seen():
    assert dict(from_arrays([GOOD], outputs=10).heads) == {"main": 10}
    stream = from_arrays([GOOD, GOOD], heads="per-task", outputs=[3, 5])
    assert dict(stream.heads) == {"task-1": 3, "task-2": 5}


def changed(position, value):
    arrays = list(GOOD)
    arrays[position] = value
    return tuple(arrays)


NAN, INFINITE = X.copy(), X.copy()
NAN[4, 1], INFINITE[2, 0] = np.nan, np.inf


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (changed(0, X[:, 0]), r"task 2, train: inputs must be \(samples, ...\)"),
        (changed(2, X[:0]), "task 2, test: no values"),
        (changed(0, X[:, :0]), "task 2, train: no values"),
        (changed(1, Y[:5]), "task 2, train: 6 inputs but targets of shape"),
        (changed(1, np.array(3)), "task 2, train: 6 inputs but targets of shape"),
        (changed(0, NAN), "task 2, train: inputs hold NaN or infinite.*first in sample 4"),
        (changed(2, INFINITE[:3]), "task 2, test: inputs hold NaN or infinite.*first in sample 2"),
        (changed(0, np.full((6, 4), 1e300)), "infinite values .as torch.float32"),
        (changed(1, Y.astype(float)), "task 2, train: class labels must be integers"),
        (changed(1, np.eye(3)[Y].astype(int)), r"one integer per sample.*argmax"),
        (changed(1, Y - 1), "task 2, train: class labels must count from 0, got -1"),
        (changed(3, np.array([0, 1, 7])), "task 2, test: class labels must be below outputs=3, got 7"),
        (changed(0, X[:, :3]), r"task 2, train: inputs have shape \(3,\).*task 1 \(4,\)"),
        (changed(2, X[:3, :3]), r"task 2, test: inputs have shape \(3,\)"),
        (changed(0, X.astype(complex)), "must be numbers, got an array of complex128"),
        (changed(0, torch.zeros(6, 4, dtype=torch.complex64)), "dense real numbers"),
        (changed(0, torch.eye(6).to_sparse()), "dense real numbers"),
        (changed(1, np.array(list("abcabc"))), "targets must be numbers"),
        (changed(0, [[1, 2], [3]]), "inputs are not an array"),
        ((X, Y, X), "task 2: expected .x_train, y_train, x_test, y_test."),
        (None, "task 2: expected"),
    ],
)
def test_wrong_data_is_named(second, message):
    with pytest.raises(DataError, match=message):
        from_arrays([GOOD, second])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.full(6, np.nan), "targets hold NaN"),
        (np.zeros((6, 2, 2)), r"regression targets must be \(samples,\)"),
        (np.zeros((6, 0)), "regression targets must be"),
        (np.zeros((6, 2)), "targets have 2 columns, the head has outputs=1"),
    ],
)
def test_wrong_regression_targets(targets, message):
    good = np.zeros(6)
    with pytest.raises(DataError, match=message):
        from_arrays([(X, good, X, good), (X, targets, X, good)])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"heads": "own"}, SettingsError, "unknown heads 'own'"),
        ({"kind": "clasification"}, SettingsError, "did you mean 'classification'"),
        ({"names": ["a", "b"]}, SettingsError, "1 tasks need as many names, got 2"),
        ({"outputs": [3, 3]}, SettingsError, "one number of outputs each"),
        ({"outputs": 2}, DataError, "below outputs=2, got 2"),
    ],
)
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=message):
        from_arrays([GOOD], **settings)


def test_a_shared_head_has_one_size():
    with pytest.raises(SettingsError, match="heads='per-task'"):
        from_arrays([GOOD, GOOD], outputs=[3, 4])
    with pytest.raises(DataError, match="at least one task"):
        from_arrays([])


def test_fingerprint_follows_the_data():
    other = X.copy()
    other[5, 3] += 1
    prints = {
        from_arrays([GOOD]).fingerprint,
        from_arrays([GOOD, GOOD]).fingerprint,
        from_arrays([changed(0, other)]).fingerprint,
        from_arrays([GOOD], heads="per-task").fingerprint,
    }
    assert len(prints) == 4
    assert (
        from_arrays([GOOD]).fingerprint
        == from_arrays([tuple(torch.tensor(array) for array in GOOD)]).fingerprint
    )


class Squares(Dataset):
    """Counts how often each item is read."""

    def __init__(self, length=10):
        self.read = [0] * length

    def __len__(self):
        return len(self.read)

    def __getitem__(self, position):
        self.read[position] += 1
        return np.full(3, position**2, dtype=np.float32), position % 2


def test_dataset_split_reads_only_what_is_asked_for():
    data = Squares()
    split = DatasetSplit(data)
    assert len(split) == 10
    assert sum(data.read) == 0
    inputs, targets = split.samples(torch.tensor([3, 1]))
    assert inputs.tolist() == [[9.0] * 3, [1.0] * 3]
    assert targets.tolist() == [1, 1]
    assert data.read == [0, 1, 0, 1, 0, 0, 0, 0, 0, 0]
    assert split.targets.tolist() == [0, 1] * 5
    assert split.targets is split.targets
    assert torch.equal(split.inputs(), split.inputs(slice(None)))
    assert split.inputs(torch.arange(10) > 7).tolist() == [[64.0] * 3, [81.0] * 3]


def test_dataset_split_of_tensors_does_not_copy():
    x, y = torch.randn(5, 2), torch.arange(5)
    split = DatasetSplit(TensorDataset(x, y))
    assert split.inputs().data_ptr() == x.data_ptr()
    assert split.targets is y
    assert torch.equal(split.inputs(torch.tensor([4])), x[4:])


class Shifted(TensorDataset):
    def __getitem__(self, position):
        x, y = super().__getitem__(position)
        return x + 1, y


def test_a_tensor_dataset_with_its_own_items_is_asked_for_them():
    x, y = torch.zeros(3, 2), torch.arange(3)
    assert DatasetSplit(Shifted(x, y)).inputs().eq(1).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64])
def test_inputs_come_as_the_data_set_gives_them(dtype):
    data = TensorDataset(torch.ones(2, 2).to(dtype), torch.arange(2))
    assert DatasetSplit(data).inputs().dtype == dtype


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([1, 2, 3], "not a pair"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 1)], "same shape"),
        ([(torch.zeros(2), 0, 1)] * 2, "not a pair"),
    ],
)
def test_items_that_do_not_fit(dataset, message):
    with pytest.raises(DataError, match=message):
        DatasetSplit(dataset).inputs()


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


def test_an_iterable_dataset_is_refused_with_the_way_out():
    with pytest.raises(DataError, match="map-style"):
        DatasetSplit(Endless())


def test_from_datasets_reads_each_item_once():
    train, test = Squares(2500), Squares(4)
    seen = []
    stream = from_datasets(
        [(train, test), (Subset(train, [0, 1]), ConcatDataset([test, test]))],
        progress=lambda *s: seen.append(s),
    )
    assert train.read[2:] == [1] * 2498
    assert seen[:3] == [
        ("task 1, train", 1024, 2500),
        ("task 1, train", 2048, 2500),
        ("task 1, train", 2500, 2500),
    ]
    assert stream.task(1).train.inputs(slice(2, 3)).tolist() == [[4.0] * 3]
    assert len(stream.task(2).test) == 8


def test_from_datasets_names_the_wrong_one():
    good = TensorDataset(torch.zeros(4, 2), torch.arange(4))
    with pytest.raises(DataError, match="task 2, test: the data set is empty"):
        from_datasets([(good, good), (good, Subset(good, []))])
    with pytest.raises(DataError, match="task 1: expected a pair"):
        from_datasets([good])
    with pytest.raises(DataError, match="task 1, train: class labels must be one integer"):
        from_datasets([(TensorDataset(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.int64)), good)])


def test_a_stray_label_makes_no_head_of_a_trillion_outputs():
    x, y = np.ones((3, 2)), np.array([0, 1, 10**12])
    with pytest.raises(DataError, match="class labels must be below 10,000,000, got 1000000000000"):
        from_arrays([(x, y, x, y)])
