"""Files that commands and calls write: links are followed, permissions kept, and nothing but a file is replaced."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import orthocl
from orthocl.cli.app import call
from orthocl.errors import StoreError
from orthocl.plotting import save_figure
from orthocl.streams import save_npz

RECORDS = Path(__file__).parents[2] / "results-gpm"


def save_memory(path):
    model = torch.nn.Linear(2, 2)
    orthocl.attach(orthocl.OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1)).save(path)


CALLS = {
    "memory": (save_memory, ".safetensors"),
    "arrays": (lambda path: save_npz(path, [(np.ones((2, 2)), np.ones(2)) * 2]), ".npz"),
    "figure": (lambda path: save_figure(Figure(), path), ".svg"),
}
COMMANDS = {
    "page": (["report", "--out"], ".html"),
    "figure of runs": (["report", "--figure", "accuracy", "--out"], ".svg"),
    "table": (["runs", "export"], ".csv"),
    "records": (["runs", "export"], ".json"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return shutil.copytree(RECORDS, tmp_path_factory.mktemp("store") / "store")


@pytest.fixture
def write(store):
    def write(what, path):
        if what in CALLS:
            CALLS[what][0](path)
            return
        code = call([*COMMANDS[what][0], str(path), "--store", str(store), "--quiet"])
        if code:
            raise StoreError(f"exit code {code}")

    return write


WRITERS = [(what, suffix) for what, (_, suffix) in (CALLS | COMMANDS).items()]


@pytest.mark.parametrize(("what", "suffix"), WRITERS)
def test_a_link_leads_to_its_file_which_keeps_its_permissions(tmp_path, write, what, suffix):
    target, link = tmp_path / f"kept{suffix}", tmp_path / f"link{suffix}"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    write(what, link)
    assert link.is_symlink()
    assert target.stat().st_size > 10
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize(("what", "suffix"), WRITERS)
def test_nothing_but_a_file_is_replaced(tmp_path, write, capsys, what, suffix, kind):
    path = tmp_path / f"out{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/full")
    before = os.stat(path).st_mode
    with pytest.raises(StoreError):
        write(what, path)
    assert os.stat(path).st_mode == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert "Traceback" not in capsys.readouterr().err
