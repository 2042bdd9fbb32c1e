"""Training data of any form for `attach`: dict batches, several inputs, loaders with their collate function, streams.

A batch, as a loader gives it, is split into inputs and targets. By default: (inputs, targets); (x, z, ..., targets)
with several inputs; a dict with "labels" (or "label"), whose other entries are the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from functools import cached_property
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from orthocl.errors import DataError
from orthocl.nets.inputs import Inputs, Targets, described, tensors
from orthocl.streams.arrays import DatasetSplit
from orthocl.streams.base import Split

SplitBatch = Callable[[Any], tuple[Inputs, Targets]]
LABELS = ("labels", "label")
# Items that are kept of an iterable data set, a uniform sample of the first MOST_READ.
RESERVOIR = 4096
MOST_READ = 65_536
# Items over which a last entry that is constant is taken for the number of a task.
CONSTANT_OVER = 256


def split_batch(batch: Any) -> tuple[Inputs, Targets]:
    """Inputs and targets of a batch, if nothing else is said.

    >>> inputs, targets = split_batch({"words": torch.zeros(2, 5), "labels": torch.tensor([0, 1])})
    >>> list(inputs), targets
    (['words'], tensor([0, 1]))
    """
    if isinstance(batch, Mapping):
        key = next((name for name in LABELS if name in batch), None)
        if key is not None:
            inputs = {name: value for name, value in batch.items() if name not in LABELS}
            return cast(Inputs, inputs), batch[key]
    elif isinstance(batch, tuple | list) and len(batch) >= 2:
        first = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return cast(Inputs, tuple(first) if isinstance(first, list) else first), batch[-1]
    if hasattr(batch, "to_data_list"):
        raise DataError(
            f"a {type(batch).__name__} of graphs has no rows to choose samples from: remember the numbers of the "
            "graphs, with TensorDataset(torch.arange(len(graphs)), labels) as the data and attach(..., outputs=lambda "
            "model, index: model(Batch.from_data_list([graphs[i] for i in index.tolist()])))"
        )
    raise DataError(
        "expected a batch (inputs, targets), (x, z, ..., targets) or a dict with 'labels', got "
        f"{described(dict(batch) if isinstance(batch, Mapping) else batch)}: say how to split it with "
        "attach(..., batch=lambda batch: (inputs, targets))"
    )


def split_for_next_token(batch: Any) -> tuple[Inputs, Targets]:
    """As `split_batch`, for labels that are the words themselves: the target of each position is the next word.

    >>> split_for_next_token({"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([[5, 6, 7]])})[1]
    tensor([[   6,    7, -100]])
    """
    inputs, targets = split_batch(batch)
    words = cast(Tensor, targets)
    return inputs, nn.functional.pad(words[:, 1:], (0, 1), value=-100)


def default_split(model: nn.Module) -> SplitBatch:
    """How batches are split if nothing else is said: causal language models of `transformers` shift their labels."""
    causal = getattr(model, "loss_type", None) == "ForCausalLM"
    named = any(type(module).__name__.endswith(("ForCausalLM", "LMHeadModel")) for module in model.modules())
    return split_for_next_token if causal or named else split_batch


class BatchSplit(Split):
    """Items of a data set, collated and split into inputs and targets when they are needed.

    Args:
        items: with a length and items by position.
        collate: items -> a batch.
        split: a batch -> inputs and targets.
    """

    def __init__(self, items: Any, collate: Callable[[list[Any]], Any], split: SplitBatch):
        self.items, self.collate, self.split = items, collate, split

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def targets(self) -> Tensor:  # type: ignore[override]  # read once, when first asked for
        """Targets of all samples."""
        return self.samples()[1]

    def inputs(self, index: Tensor | slice | None = None) -> Tensor:
        """Inputs of the samples in `index`."""
        return self.samples(index)[0]

    def batch(self, positions: Tensor) -> Any:
        """Some items, collated."""
        items = [self.items[position] for position in positions.tolist()]
        try:
            return self.collate(items)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise DataError(
                f"{len(items)} items of the data set do not make a batch ({error}): give the loader that you train "
                "with instead, `with learner.learning(loader):`, whose collate_fn is then used"
            ) from error

    def samples(self, index: Tensor | slice | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the samples in `index`: tensors, or tuples and dicts of them."""
        positions = torch.arange(len(self))
        chosen = positions if index is None else positions[index]
        inputs, targets = self.split(self.batch(chosen))
        if isinstance(inputs, Mapping):
            inputs = dict(inputs)
        _check_tensors(inputs, "inputs")
        _check_tensors(targets, "targets")
        if {len(part) for part in [*tensors(inputs), *tensors(targets)]} != {len(chosen)}:
            raise DataError(
                f"expected inputs and targets of {len(chosen)} samples each, got {described(inputs)} and "
                f"{described(targets)}"
            )
        return cast(Tensor, inputs), cast(Tensor, targets)


def _check_tensors(batch: object, what: str) -> None:
    parts = (
        batch.items()
        if isinstance(batch, dict)
        else enumerate(batch if isinstance(batch, tuple) else [batch])
    )
    for name, part in parts:
        if not isinstance(part, Tensor):
            raise DataError(
                f"expected the {what} of a batch to be tensors, a tuple or a dict of them, got {described(part)} at "
                f"{name!r}: choose them with attach(..., batch=lambda batch: (inputs, targets))"
            )


def as_split(
    data: Split | Dataset[Any] | DataLoader[Any],
    split: SplitBatch | None,
    model: nn.Module,
    generator: torch.Generator,
) -> Split:
    """Training data as a split, whatever form it has.

    Args:
        data: a Split, a data set (map-style or iterable) or a loader, whose collate function is used.
        split: a batch -> inputs and targets; by default as the module says.
        model: decides whether labels are shifted.
        generator: for the sample of an iterable data set.
    """
    if isinstance(data, Split):
        return data
    collate, items = default_collate, cast(Any, data)
    if isinstance(data, DataLoader):
        if data.batch_size is None and data.batch_sampler is None:
            raise DataError(
                "this loader's data set gives whole batches (batch_size=None), whose samples cannot be looked up: give "
                "a data set of single samples"
            )
        items = data.dataset
        # The default one is left to what follows, which reads pairs without it.
        if data.collate_fn is not default_collate:
            collate = data.collate_fn
    if isinstance(items, IterableDataset):
        items = reservoir(items, generator)
    if not isinstance(items, Sized) or not hasattr(items, "__getitem__"):
        return DatasetSplit(cast(Dataset[Any], items))  # which says what is missing
    if len(items) and split is None and collate is default_collate and _is_pair(items[0]):
        return DatasetSplit(cast(Dataset[Any], items))
    found = BatchSplit(items, collate, split or default_split(model))
    if split is None and len(items):
        _check_last_entry(found)
    return found


def _check_last_entry(data: BatchSplit) -> None:
    """Reject batches (x, y, ..., constant), such as Avalanche's (x, y, task), whose last entry is no target.

    Of data that are clearly otherwise two dozen items are read.
    """
    for count in (24, CONSTANT_OVER):
        number = min(count, len(data))
        batch = data.batch(torch.linspace(0, len(data) - 1, number).long().unique())
        if not isinstance(batch, tuple | list) or len(batch) < 3 or not isinstance(batch[-1], Tensor):
            return
        last = batch[-1]
        if len(last) < 2 or bool((last != last[:1]).any()):
            return
    raise DataError(
        f"expected the last of the {len(batch)} entries of a batch to be the target, but it is the same in {len(last)} "
        "items of the data set, as the number of a task is: say which entries are which with "
        "attach(..., batch=lambda batch: (batch[0], batch[1])) for (input, target, task), or with "
        "batch=lambda batch: (tuple(batch[:-1]), batch[-1]) if the last is a target that happens to be constant"
    )


def _is_pair(item: object) -> bool:
    if not isinstance(item, tuple | list) or len(item) != 2:
        return False
    return not isinstance(item[0], tuple | list | Mapping) and not isinstance(item[1], Mapping)


def reservoir(items: Iterable[Any], generator: torch.Generator) -> list[Any]:
    """A uniform sample of an iterable data set, read once from its beginning.

    >>> len(reservoir(range(10), torch.Generator().manual_seed(0)))
    10
    """
    kept: list[Any] = []
    for number, item in enumerate(islice(items, MOST_READ)):
        if number < RESERVOIR:
            kept.append(item)
            continue
        place = int(torch.randint(number + 1, (1,), generator=generator))
        if place < RESERVOIR:
            kept[place] = item
    return kept
