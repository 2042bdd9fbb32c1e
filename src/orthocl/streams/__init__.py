"""Tasks and streams: immutable data, in order."""

from orthocl.streams.arrays import DatasetSplit, TensorSplit, from_arrays, from_datasets
from orthocl.streams.base import Split, Stream, Task, TaskKind
from orthocl.streams.datasets import DATASETS
from orthocl.streams.folder import from_image_folder
from orthocl.streams.images import ImageData
from orthocl.streams.npz import from_npz, save_npz
from orthocl.streams.permuted import permuted
from orthocl.streams.registry import STREAMS, make
from orthocl.streams.rotated import rotated
from orthocl.streams.split import split

__all__ = [
    "DATASETS",
    "STREAMS",
    "DatasetSplit",
    "ImageData",
    "Split",
    "Stream",
    "Task",
    "TaskKind",
    "TensorSplit",
    "from_arrays",
    "from_datasets",
    "from_image_folder",
    "from_npz",
    "make",
    "permuted",
    "rotated",
    "save_npz",
    "split",
]
