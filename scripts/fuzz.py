"""Coverage-guided nonsense for every parser, with atheris (`pip install atheris`, where it has a wheel).

    python scripts/fuzz.py              # every parser, 30 seconds each; `make fuzz`
    python scripts/fuzz.py records 300  # one of them, longer

A parser answers with an error of ours or with a value; anything else ends the script with the input that shows it.
`tests/bad_input/test_fuzz.py` does the same with hypothesis, in seconds and in every test run.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["orthocl"]):
    import torch

    from orthocl.cli.plan import parse_size
    from orthocl.errors import OrthoclError
    from orthocl.lab import Record, Result, RunSettings, Store, make_experiment
    from orthocl.lab.experiment.file import read_file, toml_value
    from orthocl.lab.experiment.settings import MethodSettings, StreamSettings, identity
    from orthocl.lab.store.run_lock import alive_claim
    from orthocl.storage import read_state, write_state
    from orthocl.streams import from_npz
    from orthocl.streams.datasets.idx import parse_idx

FOLDER = Path(tempfile.mkdtemp(prefix="orthocl-fuzz-"))
STORE = Store(FOLDER / "store")


def record() -> Record:
    """A small record."""
    run = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("sgd")).resolved()
    stream = {"name": "s", "fingerprint": "f", "settings": {}, "tasks": ["one"]}
    result = Result([[0.1], [0.9]], [{1: 1.0}], [], [{}], [[0.5]], 7, [10])
    return Record(identity(run, "f"), run, stream, result=result, provenance={"seconds": {"total": 1.0}})


def written(name: str, content: bytes) -> Path:
    """A file with this content."""
    path = FOLDER / name
    path.write_bytes(content)
    return path


def small_files(content: bytes) -> None:
    """Everything in the folder of a run that is not its record."""
    folder = STORE.folder("x")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("claim-1.json", "failure.json", "progress.jsonl", "settings.json"):
        (folder / name).write_bytes(content)
    alive_claim(folder)
    for read in (STORE.state, STORE.failure, STORE.progress, STORE.settings):
        read("x")


def indexes(content: bytes) -> None:
    """The index is never believed over the records."""
    STORE.directory.mkdir(exist_ok=True)
    (STORE.directory / "index.jsonl").write_bytes(content)
    STORE.index()


def experiments(content: bytes) -> None:
    """A file, and the runs that it means."""
    make_experiment(read_file(written("x.toml", content)))


def overrides(content: bytes) -> None:
    """Settings on the command line."""
    text = content.decode("utf-8", errors="replace")
    toml_value(text)
    make_experiment({"streams": ["rotated-mnist-mini"], "methods": ["ewc"]}, overrides=[text])


EXPERIMENT = b"""name = "x"
seeds = [1, 2]
methods = ["sgd", "ogd"]
streams = ["rotated-mnist-mini"]
[train]
epochs = 1
[grid]
train.learning_rate = [0.1, 0.2]
"""
PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "records": (lambda content: Record.from_json(content), record().to_json().encode()),
    "states": (lambda content: read_state(written("state", content), owner="run"), b""),
    "small-files": (small_files, b'{"id": "x", "start": {"threads": 1}, "settings": {}}'),
    "indexes": (indexes, b'{"checksum": ""}\n{"id": "x"}\n'),
    "experiments": (experiments, EXPERIMENT),
    "overrides": (overrides, b"train.epochs=[1, 2]"),
    "sizes": (lambda content: parse_size(content.decode("utf-8", errors="replace")), b"1.5 GB"),
    "arrays": (lambda content: from_npz(written("x.npz", content)), b"PK\x03\x04"),
    "idx": (lambda content: parse_idx(content, "idx", 3), b"\0\0\x08\x03\0\0\0\1\0\0\0\1\0\0\0\1\7"),
}


def fuzz(name: str, seconds: int) -> None:
    """Give one parser nonsense for so many seconds; does not return."""
    parse, example = PARSERS[name]
    if name == "states":
        write_state(FOLDER / "good", {"a": torch.arange(4.0), "b": [1, {"c": "x"}]}, owner="run")
        example = (FOLDER / "good").read_bytes()
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    (corpus / "example").write_bytes(example)

    def one(content: bytes) -> None:
        try:
            parse(content)
        except OrthoclError:
            return

    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-verbosity=0", "-print_final_stats=1"]
    limits.append(f"-artifact_prefix={FOLDER}/")
    atheris.Setup([sys.argv[0], *limits, str(corpus)], one)
    atheris.Fuzz()


def main() -> None:
    """Read the command line; every parser has a process of its own, because the fuzzer ends the one it runs in."""
    names = [word for word in sys.argv[1:] if word in PARSERS] or list(PARSERS)
    seconds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 30)
    if "--here" in sys.argv:
        fuzz(names[0], seconds)
    for name in names:
        command = [sys.executable, __file__, name, str(seconds), "--here"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        runs = next((line.split()[-1] for line in done.stderr.splitlines() if "executed_units" in line), "?")
        print(f"{name}: {runs} inputs, {'no complaint' if done.returncode == 0 else 'BROKEN'}", flush=True)
        if done.returncode:
            sys.exit(done.stderr[-3000:])


if __name__ == "__main__":
    main()
