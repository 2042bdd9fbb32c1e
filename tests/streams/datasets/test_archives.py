"""Extraction of archives that mean harm."""

from __future__ import annotations

import io
import tarfile

import pytest

from orthocl.streams.datasets.archives import extract_files, extract_tree
from orthocl.streams.datasets.schema import DataFile, SourceError, no_progress

WANTED = (DataFile("a", 5, ""), DataFile("b", 3, ""))


def archive(path, members, mode="w:gz"):
    """Members: (name, content) or a TarInfo."""
    with tarfile.open(path, mode) as tar:
        for member in members:
            if (
                isinstance(member, tarfile.TarInfo) and member.size
            ):  # its header alone: there is no such content
                tar.fileobj.write(member.tobuf())
            elif isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


GOOD = [("data/a", b"aaaaa"), ("data/other", b"ignored"), ("data/b", b"bbb")]


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2", "w"])
def test_wanted_files_and_nothing_else(tmp_path, mode):
    (tmp_path / "out").mkdir()
    extract_files(
        archive(tmp_path / "t", [("./data/a", b"aaaaa"), *GOOD[1:]], mode),
        "data",
        WANTED,
        tmp_path / "out",
        no_progress,
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        "a": b"aaaaa",
        "b": b"bbb",
    }


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (GOOD[:2], "does not hold data/b"),
        ([("data/a", b"aaaaaa"), GOOD[2]], "6 bytes in the archive, expected 5"),
        ([special("data/a", tarfile.SYMTYPE, "/etc/passwd"), GOOD[2]], "0 bytes in the archive"),
        ([("../data/a", b"aaaaa"), GOOD[2]], "does not hold"),
        ([("/data/a", b"aaaaa"), GOOD[2]], "does not hold"),
    ],
)
def test_refused_files(tmp_path, members, message):
    (tmp_path / "out").mkdir()
    with pytest.raises(SourceError, match=message):
        extract_files(archive(tmp_path / "t", members), "data", WANTED, tmp_path / "out", no_progress)


def test_a_link_of_the_right_size_is_not_followed(tmp_path):
    link = special("data/a", tarfile.LNKTYPE, "data/b")
    link.size = 0
    with pytest.raises(SourceError, match="link or device"):
        extract_files(archive(tmp_path / "t", [link]), "data", (DataFile("a", 0, ""),), tmp_path, no_progress)


def test_a_bomb_is_not_scanned_to_its_end(tmp_path):
    bomb = tarfile.TarInfo("junk")
    bomb.size = 1 << 33
    with pytest.raises(SourceError, match="far larger"):
        extract_files(archive(tmp_path / "t", [bomb]), "data", WANTED, tmp_path, no_progress)


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_damaged_archives(tmp_path, cut):
    path = archive(tmp_path / "t", GOOD)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(SourceError, match=r"damaged|does not hold"):
        extract_files(path, "data", WANTED, tmp_path, no_progress)


def tree(tmp_path, members, **limits):
    allowed = {"most_bytes": 100, "most_files": 5, **limits}
    extract_tree(archive(tmp_path / "t", members), "data", tmp_path / "out", progress=no_progress, **allowed)


def test_trees(tmp_path):
    tree(tmp_path, [special("data", tarfile.DIRTYPE), *GOOD, ("data/deep/er", b"x"), ("beside", b"y")])
    found = {
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == {"a", "b", "other", "deep/er"}


@pytest.mark.parametrize(
    "member",
    [
        ("data/../../escape", b"x"),
        ("/absolute", b"x"),
        ("data\\..\\escape", b"x"),
        ("C:/escape", b"x"),
        special("data/link", tarfile.SYMTYPE, "../../escape"),
        special("data/hard", tarfile.LNKTYPE, "/etc/passwd"),
        special("data/pipe", tarfile.FIFOTYPE),
        special("data/device", tarfile.CHRTYPE),
    ],
    ids=lambda member: member[0] if isinstance(member, tuple) else member.name,
)
def test_trees_never_leave_their_folder(tmp_path, member):
    with pytest.raises(SourceError, match=r"unsafe path|link or device"):
        tree(tmp_path, [member])
    assert {path.name for path in tmp_path.rglob("*")} <= {"t", "out"}


def test_trees_have_limits(tmp_path):
    with pytest.raises(SourceError, match="more than expected"):
        tree(tmp_path, GOOD, most_bytes=14)
    with pytest.raises(SourceError, match="more than expected"):
        tree(tmp_path, GOOD, most_files=2)
