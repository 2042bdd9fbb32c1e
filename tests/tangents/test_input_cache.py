from __future__ import annotations

from pathlib import Path

import pytest
import torch

from orthocl.errors import StoreError
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
