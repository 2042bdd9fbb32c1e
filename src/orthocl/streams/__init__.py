"""Tasks and streams: frozen data, in order."""

from orthocl.streams.arrays import DatasetSplit, TensorSplit, from_arrays, from_datasets
from orthocl.streams.base import Kind, Split, Stream, Task
from orthocl.streams.folder import from_image_folder
from orthocl.streams.images import ImageData
from orthocl.streams.permuted import permuted
from orthocl.streams.registry import STREAMS, make
from orthocl.streams.rotated import rotated
from orthocl.streams.split import split

__all__ = [
    "STREAMS",
    "DatasetSplit",
    "ImageData",
    "Kind",
    "Split",
    "Stream",
    "Task",
    "TensorSplit",
    "from_arrays",
    "from_datasets",
    "from_image_folder",
    "make",
    "permuted",
    "rotated",
    "split",
]
