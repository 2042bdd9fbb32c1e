"""Downloads against a local server with every bad habit."""

from __future__ import annotations

import hashlib
import socket

import numpy as np
import pytest

from orthocl.streams.datasets.download import CHUNK, download
from orthocl.streams.datasets.schema import SourceError, no_progress

CONTENT = np.random.RandomState(0).bytes(500_000)
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def get(web, habit, target, limit=500_000, checksum=CHECKSUM, progress=no_progress):
    web.content["file"] = CONTENT
    download(
        f"{web.url}/{habit}/file",
        target,
        checksum=checksum,
        limit=limit,
        progress=progress,
        connect_seconds=1,
        read_seconds=0.3,
    )


@pytest.mark.parametrize("habit", ["ok", "redirect", "no-length", "truncate", "other-range"])
def test_delivers_the_file(web, tmp_path, habit):
    get(web, habit, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_cut_download_goes_on_where_it_was(web, tmp_path):
    get(web, "truncate", tmp_path / "file")
    assert web.requests == [
        ("/truncate/file", None),
        ("/truncate/file", f"bytes={len(CONTENT) // 2 // CHUNK * CHUNK}-"),
    ]


def test_what_an_earlier_run_left_is_continued(web, tmp_path):
    (tmp_path / "file.partial").write_bytes(CONTENT[:123_456])
    get(web, "ok", tmp_path / "file")
    assert web.requests == [("/ok/file", "bytes=123456-")]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_anew(web, tmp_path):
    (tmp_path / "file.partial").write_bytes(bytes(1000))
    get(web, "no-range", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_wrong_beginning_is_thrown_away_and_fetched_anew(web, tmp_path):
    (tmp_path / "file.partial").write_bytes(bytes(1000))
    get(web, "ok", tmp_path / "file")
    assert [asked for _, asked in web.requests] == ["bytes=1000-", None]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_too_long_a_beginning_is_thrown_away(web, tmp_path):
    (tmp_path / "file.partial").write_bytes(bytes(len(CONTENT)))
    get(web, "ok", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("habit", "message"),
    [
        ("missing", "404"),
        ("wrong", "does not have the checksum"),
        ("endless", "more than the expected 500000"),
        ("silent", "no answer in time|cannot be reached"),
    ],
)
def test_refuses(web, tmp_path, habit, message):
    with pytest.raises(SourceError, match=message):
        get(web, habit, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_file_longer_than_expected_is_not_downloaded(web, tmp_path):
    with pytest.raises(SourceError, match="more than the expected 1000"):
        get(web, "ok", tmp_path / "file", limit=1000)


def test_a_server_that_never_finishes_is_given_up_and_the_beginning_kept(web, tmp_path):
    with pytest.raises(SourceError, match="the connection was cut"):
        get(web, "stuck", tmp_path / "file")
    assert (tmp_path / "file.partial").read_bytes() == CONTENT[: 100_000 // CHUNK * CHUNK]
    assert len(web.requests) == 3


def test_nobody_listening(web, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        web.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(SourceError, match="cannot be reached"):
            get(web, "ok", tmp_path / "file")


def test_progress_counts_all_bytes(web, tmp_path):
    seen = []
    get(web, "ok", tmp_path / "file", progress=lambda *step: seen.append(step))
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
