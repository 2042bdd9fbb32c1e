from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from orthocl.errors import StoreError
from orthocl.nets import MLP
from orthocl.tangents import Adapter, Subspace, collect
from orthocl.tangents.input_cache import file_tensor


def test_a_file_tensor_keeps_what_is_written(tmp_path):
    table = file_tensor((300, 7), torch.float64, tmp_path)
    values = torch.randn(300, 7, dtype=torch.float64)
    table[100:] = values[100:]
    assert torch.equal(table[100:], values[100:])
    assert torch.equal(table[:100], torch.zeros(100, 7, dtype=torch.float64))


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"missing.*ORTHOCL_SCRATCH"):
        file_tensor((2,), torch.float32, tmp_path / "missing")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a small file system")
def test_a_full_disk_is_an_error_and_not_a_crash():
    with pytest.raises(StoreError, match="Free some space"):
        file_tensor((2**50,), torch.float32, Path("/dev/shm"))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve bytes")
def test_all_bytes_are_reserved_before_any_is_written(tmp_path, monkeypatch):
    """From the first byte to the last, so that a disk that is too full is noticed at once."""
    asked = []
    monkeypatch.setattr(os, "posix_fallocate", lambda file, start, size: asked.append((start, size)))
    file_tensor((300, 7), torch.float64, tmp_path)
    assert asked == [(0, 300 * 7 * 8)]

    def full(file, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="cannot reserve 16,800 bytes"):
        file_tensor((300, 7), torch.float64, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_the_layer_that_sees_the_inputs_is_cached(count):
    """The layers are equally wide: what they see tells them apart, even with one input."""
    torch.manual_seed(0)
    model = MLP((6,), (6, 6), 3).double()
    parameters = dict(model.named_parameters())
    x = torch.randn(4, 6, dtype=torch.float64)
    subspace = Subspace(parameters)
    subspace.append(collect(model, x, torch.tensor([0, 1, 2, 0]), parameters=parameters), 1)
    adapter = Adapter(model, subspace, parameters, batch_size=1)
    assert len(adapter.layers) == 2
    inputs = torch.randn(count, 2, 3, dtype=torch.float64)
    assert adapter.cache_inputs(inputs) == count * 4 * 8
    first, second = adapter.layers
    assert second.cache is None
    torch.testing.assert_close(first.cache, inputs.flatten(1) @ first.block.inputs.T + 1)
    adapter.remove()
