from __future__ import annotations

import json
import os
import stat

import pytest
import torch
from safetensors.torch import load_file, save_file

from orthocl.errors import StoreError
from orthocl.storage import (
    check_seal,
    create_atomically,
    output_file,
    parse_json,
    read_file,
    read_state,
    sealed,
    write_atomically,
    write_output,
    write_state,
)

STATE = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": [1, {"c": torch.ones(0)}],
    "d": torch.tensor(True),
    "e": None,
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "state"
    write_state(path, STATE, owner="run-1")
    return path


def test_a_state_comes_back(file):
    again = read_state(file, owner="run-1")
    assert torch.equal(again["a"], STATE["a"])
    assert again["b"][0] == 1
    assert again["b"][1]["c"].shape == (0,)
    assert bool(again["d"]) is True
    assert read_state(file)["e"] is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool])
def test_every_type_has_a_checksum(tmp_path, dtype):
    value = torch.ones(3, 2).to(dtype)
    write_state(tmp_path / "s", {"x": value.T})
    assert torch.equal(read_state(tmp_path / "s")["x"], value.T)


def test_a_state_of_another_owner_is_refused(file):
    with pytest.raises(StoreError, match="belongs to 'run-1', not to 'run-2'"):
        read_state(file, owner="run-2")


def test_no_single_flipped_bit_goes_unnoticed(file):
    good = file.read_bytes()
    reference = read_state(file)
    header = 8 + int.from_bytes(good[:8], "little")
    for place in [*range(8, header, 7), *range(header, len(good))]:
        content = bytearray(good)
        content[place] ^= 1 << (place % 8)
        file.write_bytes(bytes(content))
        try:
            again = read_state(file, owner="run-1")
        except StoreError:
            continue
        # Padding of the header may change without consequence; what is read must be what was written.
        assert place < header
        assert torch.equal(again["a"], reference["a"])
        assert again["b"][0] == reference["b"][0]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_state_is_noticed(file, share):
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(StoreError, match="damaged"):
        read_state(file)


def test_a_state_without_a_checksum_is_not_believed(tmp_path):
    save_file({"/a": torch.ones(2)}, tmp_path / "old", {"orthocl": json.dumps({"a": {"__tensor__": "/a"}})})
    with pytest.raises(StoreError, match="has no checksum"):
        read_state(tmp_path / "old")


def test_equal_states_are_equal_files(tmp_path):
    for name in ("one", "two"):
        write_state(tmp_path / name, STATE, owner="run-1")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("seal", [None, 5, {}, {"format": 2}, {"format": 2, "owner": ""}])
def test_a_broken_seal_is_damage(tmp_path, seal):
    save_file({}, tmp_path / "odd", {"orthocl": json.dumps({"__seal__": seal, "__skeleton__": {}})})
    with pytest.raises(StoreError, match="damaged"):
        read_state(tmp_path / "odd")


def test_a_later_format_is_refused(tmp_path):
    save_file({}, tmp_path / "new", {"orthocl": json.dumps({"__seal__": {"format": 99}, "__skeleton__": {}})})
    with pytest.raises(StoreError, match="has format 99"):
        read_state(tmp_path / "new")


def test_a_skeleton_that_names_what_is_not_there_is_damage(tmp_path, monkeypatch):
    monkeypatch.setattr("orthocl.storage._pack", lambda value, path, tensors: value)
    for number, skeleton in enumerate(({"a": {"__tensor__": "/b"}}, {"a": {"__tensor__": []}}, {"#x": 1})):
        write_state(tmp_path / str(number), skeleton)
        with pytest.raises(StoreError, match="damaged"):
            read_state(tmp_path / str(number))


@pytest.mark.parametrize("metadata", ["[", "5", "[]", "[" * 9999])
def test_metadata_of_the_wrong_shape_are_damage(tmp_path, metadata):
    save_file({"/a": torch.ones(2)}, tmp_path / "odd", {"orthocl": metadata})
    with pytest.raises(StoreError, match=r"damaged|has no checksum"):
        read_state(tmp_path / "odd")


def test_plain_weights_are_not_a_state(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "w")
    assert load_file(tmp_path / "w")
    with pytest.raises(StoreError, match="not a state file"):
        read_state(tmp_path / "w")


def test_directories_and_pipes_are_not_read(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(StoreError, match="is not a file"):
            read_state(tmp_path / name)
        with pytest.raises(StoreError, match="is not a file"):
            read_file(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "folder" / "none")


def test_the_last_check_leaves_everything_as_it_was(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")

    def refuse():
        raise StoreError("no longer ours")

    for write in (write_atomically, create_atomically):
        with pytest.raises(StoreError, match="no longer ours"):
            write(path, b"new", check=refuse)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("links", [True, False])
def test_creating_never_overwrites(tmp_path, monkeypatch, links):
    if not links:

        def refuse(*_):
            raise OSError("no hard links here")

        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "f"
    assert create_atomically(path, b"one")
    assert not create_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


def test_a_name_that_is_too_long_is_an_error_of_the_store(tmp_path):
    with pytest.raises(StoreError, match=r"cannot write .*too long"):
        write_atomically(tmp_path / ("x" * 300), b"")
    with pytest.raises(StoreError, match="too long"):
        read_file(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_an_output_is_written_through_links_and_keeps_its_permissions(tmp_path):
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    write_output(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "made")
    write_output(dangling, b"new")
    assert (tmp_path / "made").read_bytes() == b"new"
    assert sorted(each.name for each in tmp_path.rglob("*")) == [
        "dangling",
        "folder",
        "link",
        "made",
        "target",
    ]


def test_an_output_never_replaces_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "device", "loop", "folder"):
        with pytest.raises(StoreError, match=r"not a regular file|Nothing was changed"):
            write_output(tmp_path / name, b"new")
    for path in ("/dev/null", "a\0b", "x" * 5000):
        with pytest.raises(StoreError, match=r"not a regular file|Nothing was changed"):
            output_file(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["device", "folder", "loop", "pipe"]


def test_files_of_a_store_are_not_written_through_links(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "f").symlink_to(tmp_path / "elsewhere")
    write_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert (tmp_path / "f").read_text() == "new"


def test_sealed_values(tmp_path):
    values = sealed({"b": [1.5, None], "a": {"x": "ü"}})
    text = json.dumps(values)
    check_seal(parse_json(text.encode(), tmp_path), tmp_path)
    with pytest.raises(StoreError, match="its own checksum"):
        check_seal(parse_json(text.replace("1.5", "1.25").encode(), tmp_path), tmp_path)
    with pytest.raises(StoreError, match="has no checksum"):
        check_seal({"a": 1}, tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"3", b"[" * 100_000])
def test_what_is_not_a_table_of_json_is_damage(tmp_path, content):
    with pytest.raises(StoreError, match="is damaged"):
        parse_json(content, tmp_path)
