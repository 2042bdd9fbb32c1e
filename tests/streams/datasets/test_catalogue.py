"""Readers of the canonical files: right ones, wrong ones, and mutated ones."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

from orthocl import streams
from orthocl.errors import DataError
from orthocl.streams.datasets import load
from orthocl.streams.datasets.catalogue import CIFAR10, CIFAR100, ENTRIES, FASHION_MNIST, MNIST
from orthocl.streams.datasets.cifar import (
    cifar10_from_binary,
    cifar10_from_pickles,
    cifar100_from_binary,
    cifar100_from_pickles,
    parse_binary,
    parse_pickle,
)
from orthocl.streams.datasets.idx import parse_idx
from orthocl.streams.datasets.locate import contents, data_roots, find, find_verified, read_verified
from orthocl.streams.datasets.mnist import mnist_from_idx
from orthocl.streams.datasets.npz import read_npz
from orthocl.streams.datasets.schema import DataFile, Edition, Entry


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture(scope="module")
def small_mnist() -> dict[str, bytes]:
    draw = np.random.RandomState(0)
    files = {}
    for prefix, count in (("train", 30), ("t10k", 10)):
        files[f"{prefix}-images-idx3-ubyte"] = idx(draw.randint(0, 256, (count, 28, 28)).astype(np.uint8))
        files[f"{prefix}-labels-idx1-ubyte"] = idx((np.arange(count) % 10).astype(np.uint8))
    return files


@pytest.fixture(scope="module")
def small_cifar() -> dict[str, bytes]:
    """CIFAR-10 and CIFAR-100, binary and pickled, of ten images per file."""
    draw = np.random.RandomState(0)
    files = {}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "train", "test"]:
        images, labels = draw.randint(0, 256, (10, 3072)).astype(np.uint8), np.arange(10, dtype=np.uint8)
        fine = name in ("train", "test")
        columns = [labels[:, None] // 2, labels[:, None]] if fine else [labels[:, None]]
        files[f"{name}.bin"] = np.hstack([*columns, images]).tobytes()
        key = b"fine_labels" if fine else b"labels"
        files[name] = pickle.dumps({b"data": images, key: labels.tolist()}, protocol=4)
    return files


def entry_of(name: str, files: dict[str, bytes], read, gzipped=False) -> Entry:
    known = tuple(
        DataFile(key, len(value), f"sha256:{hashlib.sha256(value).hexdigest()}")
        for key, value in files.items()
    )
    return Entry(name, name, "", "", "https://example.org", (Edition((name,), known, read, gzipped),))


def put(folder, files, compress=()):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name in compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (folder / name).write_bytes(content)


def test_idx_and_padding(small_mnist):
    data = mnist_from_idx(small_mnist)
    raw = parse_idx(small_mnist["train-images-idx3-ubyte"], "x", 3)
    assert data.train_images.shape == (30, 1, 32, 32)
    assert (data.train_images[:, 0, 2:30, 2:30].numpy() == raw).all()
    assert data.test_labels.tolist() == list(range(10))


def test_binary_and_pickled_cifar_agree(small_cifar):
    for pickled, binary in (
        (cifar10_from_pickles, cifar10_from_binary),
        (cifar100_from_pickles, cifar100_from_binary),
    ):
        one, other = pickled(small_cifar), binary(small_cifar)
        assert one.fingerprint == other.fingerprint
        assert one.train_labels.tolist()[:10] == list(range(10))
        first = np.frombuffer(small_cifar["train.bin" if "100" in one.name else "data_batch_1.bin"], np.uint8)
        assert bytes(one.train_images[0].numpy()) == bytes(first[len(first) // 10 - 3072 : len(first) // 10])
    assert len(cifar10_from_binary(small_cifar).train_labels) == 50


@pytest.mark.parametrize("compress", [(), ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte")])
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "."])
def test_torchvision_and_plain_layouts_are_found(tmp_path, small_mnist, compress, folder):
    entry = entry_of("mnist", small_mnist, mnist_from_idx, gzipped=True)
    entry = replace(entry, editions=(replace(entry.editions[0], folders=MNIST.editions[0].folders),))
    put(tmp_path / folder, small_mnist, compress)
    place = find(entry, tmp_path)
    assert place.folder == tmp_path / folder
    assert contents(place) == small_mnist


def test_layouts_of_torchvision():
    first = {name: [edition.folders[0] for edition in entry.editions] for name, entry in ENTRIES.items()}
    assert first["mnist"] == ["MNIST/raw"]
    assert first["fashion-mnist"] == ["FashionMNIST/raw"]
    assert first["cifar10"] == ["cifar-10-batches-py", "cifar-10-batches-bin"]
    assert first["cifar100"] == ["cifar-100-python", "cifar-100-binary"]


def test_roots_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTHOCL_DATA", str(tmp_path))
    assert data_roots("given")[0].name == "given"
    assert len(data_roots("given")) == 1
    assert data_roots()[0] == tmp_path
    monkeypatch.delenv("ORTHOCL_DATA")
    assert "orthocl" in str(data_roots()[0])


def test_nothing_there_says_what_where_and_what_else(tmp_path):
    with pytest.raises(DataError) as caught:
        streams.make("rotated-mnist", data_root=tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "MNIST" / "raw") in message
    for file in MNIST.editions[0].files:
        assert f"{file.name} (or .gz), {file.size} bytes, {file.checksum}" in message
    assert "orthocl data fetch mnist" in message
    assert "rotated-mnist-mini" in message
    assert "--data-root" in message
    assert "ORTHOCL_DATA" in message


@pytest.mark.parametrize("name", ["permuted-fashion", "split-cifar10", "split-cifar100", "cub200"])
def test_every_stream_says_how_to_get_its_data(tmp_path, name):
    with pytest.raises(DataError, match=r"orthocl data[\s\S]*rotated-mnist-mini"):
        streams.make(name, data_root=tmp_path)


def test_what_is_missing_of_a_half_complete_folder(tmp_path, small_mnist):
    put(tmp_path / "MNIST" / "raw", {name: small_mnist[name] for name in list(small_mnist)[:3]})
    with pytest.raises(DataError, match=r"but not t10k-labels-idx1-ubyte\."):
        load("mnist", tmp_path)


def test_files_of_another_data_set_are_recognised(tmp_path, small_mnist):
    mine = entry_of("mine", small_mnist, mnist_from_idx)
    swapped = dict(
        zip(small_mnist, [*list(small_mnist.values())[2:], *list(small_mnist.values())[:2]], strict=True)
    )
    theirs = entry_of("theirs", small_mnist, mnist_from_idx)
    same_size = {name: bytes(len(content)) for name, content in small_mnist.items()}
    put(tmp_path / "mine", swapped)
    with pytest.raises(DataError, match="truncated, damaged or another version"):
        contents(find(mine, tmp_path))
    put(tmp_path / "other", small_mnist)
    other = replace(entry_of("other", same_size, mnist_from_idx))
    with pytest.raises(DataError, match="its content is train-images-idx3-ubyte of theirs"):
        contents(find(other, tmp_path), (theirs,))


@pytest.mark.parametrize(
    ("content", "dimensions", "message"),
    [
        (b"", 1, "not an IDX file"),
        (b"\x00\x00\x08", 1, "not an IDX file"),
        (b"\x1f\x8b\x08\x00", 1, "not an IDX file"),
        (idx(np.zeros((2, 2, 2), np.uint8)), 1, "swapped"),
        (idx(np.zeros(3, np.uint8))[:6], 1, "truncated in its header"),
        (idx(np.zeros(3, np.uint8))[:-1], 1, "promises .3,., 3 bytes, but 2 follow"),
        (idx(np.zeros(3, np.uint8)) + b"x", 1, "but 4 follow"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, 3, "but 0 follow"),
        (b"\x00\x00\x08\x03" + b"\xff" * 4 + b"\x00" * 4 + b"\xff" * 4, 3, "nothing at all"),
    ],
)
def test_wrong_idx(content, dimensions, message):
    with pytest.raises(DataError, match=message):
        parse_idx(content, "file", dimensions)


def test_wrong_cifar(small_cifar):
    with pytest.raises(DataError, match="not a whole number of records"):
        parse_binary(small_cifar["train.bin"][:-1], "train.bin", 2)
    with pytest.raises(DataError, match="not a whole number of records"):
        parse_binary(small_cifar["train.bin"], "train.bin", 1)
    with pytest.raises(DataError, match="no list of 10 labels under the key 'fine_labels'"):
        parse_pickle(small_cifar["test_batch"], "test_batch", "fine_labels")
    images = np.zeros((2, 3072), np.uint8)
    for batch, message in (
        ([1], "expected a dictionary"),
        ({b"data": images[:, 1:], b"labels": [0, 0]}, "no uint8 images"),
        ({b"data": images, b"labels": [0]}, "no list of 2 labels"),
        ({b"data": images, b"labels": [0, 300]}, "integers from 0 to 255"),
        ({b"data": images, b"labels": [0, "1"]}, "integers from 0 to 255"),
        ({}, "no uint8 images"),
    ):
        with pytest.raises(DataError, match=message):
            parse_pickle(pickle.dumps(batch, protocol=4), "batch", "labels")


class Harm:
    def __reduce__(self):
        return (print, ("harm done",))


def test_a_pickle_that_calls_anything_is_refused_even_behind_the_checksum(capsys):
    with pytest.raises(DataError, match="which no CIFAR file does"):
        parse_pickle(pickle.dumps({b"data": Harm()}), "batch", "labels")
    assert "harm" not in capsys.readouterr().out


def test_a_pickle_is_not_even_parsed_unless_its_checksum_is_known(tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("unpickled")

    monkeypatch.setattr("orthocl.streams.datasets.cifar.unpickle", never)
    folder = tmp_path / "cifar-100-python"
    put(folder, {"meta": b"x" * 1473})
    for name, size in (("train", 155_249_918), ("test", 31_049_707)):
        with (folder / name).open("wb") as stream:
            stream.truncate(size)
    with pytest.raises(DataError, match="is not the published train"):
        load("cifar100", tmp_path)


def test_a_good_copy_is_found_behind_a_damaged_one(tmp_path, small_mnist, monkeypatch):
    entry = entry_of("mnist", small_mnist, mnist_from_idx)
    put(tmp_path / "first" / "mnist", {**small_mnist, "train-labels-idx1-ubyte": b"damaged"})
    put(tmp_path / "second" / "mnist", small_mnist)
    monkeypatch.setattr(
        "orthocl.streams.datasets.locate.data_roots", lambda _: [tmp_path / "first", tmp_path / "second"]
    )
    place, files = find_verified(entry)
    assert place.folder == tmp_path / "second" / "mnist"
    assert files == small_mnist
    (tmp_path / "second" / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"first.*truncated, damaged"):
        find_verified(entry)


def test_without_a_published_checksum_the_size_must_fit(tmp_path):
    (tmp_path / "x").write_bytes(b"123")
    assert read_verified(tmp_path / "x", DataFile("x", 3, "")) == b"123"
    with pytest.raises(DataError, match="this file only 3"):
        read_verified(tmp_path / "x", DataFile("x", 4, ""))
    assert not CIFAR100.editions[1].verifiable
    assert CIFAR100.editions[0].verifiable


def test_unreadable_paths(tmp_path):
    file = DataFile("x", 3, "")
    with pytest.raises(DataError, match="cannot be read"):
        read_verified(tmp_path / "nothing", file)
    with pytest.raises(DataError, match="cannot be read"):
        read_verified(tmp_path, file)
    (tmp_path / "x.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="is damaged"):
        read_verified(tmp_path / "x.gz", file)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(DataError, match="has 3 bytes, this file more"):
        read_verified(tmp_path / "bomb.gz", file)


def mutations(content: bytes, draw: random.Random, count: int):
    """Flipped bytes, cuts, repeats, insertions, and rubbish."""
    yield from (
        b"",
        content[:1],
        content[:-1],
        content + b"\0",
        content[::-1],
        bytes(len(content)),
        content * 2,
    )
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 8, 64])):
            # Headers are where the harm is.
            changed[draw.randrange(min(len(changed), draw.choice([16, 200, len(changed)])))] = draw.randrange(
                256
            )
        start = draw.randrange(len(changed))
        kind = draw.randrange(4)
        if kind == 1:
            del changed[start : start + draw.randrange(1, 50)]
        elif kind == 2:
            changed[start:start] = draw.randbytes(draw.randrange(1, 50))
        elif kind == 3:
            del changed[start:]
        if bytes(changed) != content:
            yield bytes(changed)


@pytest.mark.parametrize("compress", [False, True])
def test_fuzz_verified_files(tmp_path, small_mnist, compress):
    """Through the checksum nothing changed gets, and nothing but DataError comes out."""
    entry = entry_of("mnist", small_mnist, mnist_from_idx, gzipped=True)
    put(tmp_path / "mnist", small_mnist, tuple(small_mnist) if compress else ())
    draw = random.Random(0)
    for name, content in small_mnist.items():
        path = tmp_path / "mnist" / (f"{name}.gz" if compress else name)
        stored = path.read_bytes()
        for mutated in mutations(stored, draw, 80):
            path.write_bytes(mutated)
            try:
                assert contents(find(entry, tmp_path))[name] == content  # a gzip header may change harmlessly
            except DataError:
                continue
            assert compress
        path.write_bytes(stored)


def test_fuzz_parsers(small_mnist, small_cifar):
    """Without the checksum, what comes out is a data set in range, or a DataError."""
    draw = random.Random(1)
    for files, read in (
        (small_mnist, mnist_from_idx),
        (small_cifar, cifar10_from_binary),
        (small_cifar, cifar100_from_binary),
    ):
        for name in files:
            if read is not mnist_from_idx and not name.endswith(".bin"):
                continue
            for mutated in mutations(files[name], draw, 150):
                try:
                    data = read({**files, name: mutated})
                except DataError:
                    continue
                assert len(data.train_labels) == len(data.train_images)
                assert int(data.train_labels.max()) < len(data.classes)


def test_fuzz_pickles_with_wrong_contents():
    draw = random.Random(2)
    values = [
        None,
        0,
        "x",
        b"x",
        [1],
        [0] * 10,
        {},
        np.zeros(3),
        np.zeros((10, 3072), np.uint8),
        np.zeros((10, 3072), object),
    ]
    for _ in range(200):
        batch = {draw.choice([b"data", b"labels", "data", 3]): draw.choice(values) for _ in range(3)}
        try:
            images, labels = parse_pickle(pickle.dumps(batch, protocol=4), "batch", "labels")
        except DataError:
            continue
        assert len(images) == len(labels)


def test_fuzz_npz(tmp_path):
    path = tmp_path / "x.npz"
    arrays = {
        "a": np.arange(60, dtype=np.float32).reshape(6, 10),
        "b": np.array("text"),
        "c": np.arange(3) > 1,
    }
    draw = random.Random(3)
    for save in (np.savez, np.savez_compressed):
        save(path, **arrays)
        stored = path.read_bytes()
        assert all((read_npz(path, most_bytes=10_000)[name] == array).all() for name, array in arrays.items())
        for mutated in mutations(stored, draw, 400):
            path.write_bytes(mutated)
            try:
                read = read_npz(path, most_bytes=10_000)
            except DataError:
                continue
            assert all(array.nbytes <= 10_000 for array in read.values())


def test_npz_refuses_objects_giants_and_lies(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="holds object"):
        read_npz(path, most_bytes=1000)
    np.savez(path, a=np.zeros(1001, np.uint8))
    with pytest.raises(DataError, match="larger than it can be"):
        read_npz(path, most_bytes=1000)
    with pytest.raises(DataError, match="holds a but not b"):
        read_npz(path, ["b"], most_bytes=1000)
    np.savez(path, a=np.zeros((4, 4), np.uint8))
    path.write_bytes(path.read_bytes().replace(b"(4, 4)", b"(4,99)"))
    with pytest.raises(DataError, match=r"larger than it can be|damaged"):
        read_npz(path, most_bytes=1 << 40)
    shutil.copy(__file__, path)
    with pytest.raises(DataError, match=r"damaged or not an .npz file"):
        read_npz(path, most_bytes=1000)


def test_the_catalogue_is_consistent():
    for entry in ENTRIES.values():
        assert entry.licence
        assert entry.citation
        for edition in entry.editions:
            assert edition.files
        for number, source in entry.sources:
            assert number < len(entry.editions)
            assert source.label
    for entry, counts in ((MNIST, (60_000, 10_000)), (FASHION_MNIST, (60_000, 10_000))):
        sizes = [file.size for file in entry.editions[0].files]
        assert sizes == [16 + 784 * counts[0], 8 + counts[0], 16 + 784 * counts[1], 8 + counts[1]]
    assert {file.size for file in CIFAR10.editions[1].files} == {10_000 * 3073}
    assert [file.size for file in CIFAR100.editions[1].files] == [50_000 * 3074, 10_000 * 3074]
    assert [len({file.checksum for file in entry.editions[0].files}) for entry in (MNIST, CIFAR10)] == [4, 6]
