"""Generated cases of bad input, some hundreds in every run: `ORTHOCL_BAD_INPUT=1500` makes it that many.

Every case ends in a result that is right, or in one of the project's own errors: never in another exception, a hang, or
nonsense that was accepted. A case is made from its family and number alone, so that a failing one can be run again.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import orthocl
from orthocl.cli.app import call
from orthocl.errors import OrthoclError, StoreError, TrainingError
from orthocl.lab import Record, Store, make_experiment
from orthocl.lab.experiment.file import toml_value
from orthocl.lab.experiment.grid import flat
from orthocl.lab.reporting.page_data import PageInput
from orthocl.lab.reporting.view_server import ViewServer
from orthocl.lab.run.execute import make_optimizer
from orthocl.lab.search.search import result_path
from orthocl.methods import METHODS, make_method
from orthocl.nets import make_net
from orthocl.plotting import save_figure
from orthocl.storage import read_state, write_output, write_state
from orthocl.streams import from_arrays, from_npz, save_npz
from orthocl.streams.folder import from_image_folder

CASES = int(os.environ.get("ORTHOCL_BAD_INPUT", "300"))
SECONDS = 30
RECORDS = Path(__file__).parents[2] / "results-gpm"
STEERING = set(map(chr, [*range(9), *range(11, 32), 127, *range(128, 160)]))

TEXTS = [
    "",
    " ",
    "a",
    "nan",
    "-1",
    "²",
    "٣",
    "\0",
    "\x1b[31m",
    "a\nb",
    "../x",
    "/x",
    "a/b",
    "x" * 5000,
    "ü" * 150,
    "{}",
    "%s",
]
MANY = 10**6
NUMBERS = [
    0,
    1,
    2,
    3,
    -1,
    MANY,
    10**20,
    -(10**20),
    10**400,
    0.0,
    0.5,
    1.5,
    -0.5,
    1e-320,
    1e38,
    1e300,
    math.nan,
    math.inf,
]
VALUES: list[Any] = [
    *(None, True, False, [], [1], [0], [-1], [math.nan], [10**400], ["a"], {}, {"a": 1}, (), b"x", print, int),
    *(np.float64("nan"), np.int64(3), np.ones(2), torch.tensor(1.0), torch.zeros(2), Path("."), 1j, range(3), object()),
    *TEXTS,
    *NUMBERS,
]  # fmt: skip


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Fail instead of hanging, where the system has alarms."""

    def stop(*_: object) -> None:
        pytest.fail(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def reasonable(value: Any) -> bool:
    """Whether no number in a nested value is NaN or infinite."""
    if isinstance(value, dict | list | tuple):
        return all(map(reasonable, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def text_of(value: Any) -> str:
    """A value as somebody might write it in TOML or after `--set`, right or wrong."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | list | dict):
        try:
            return json.dumps(value).replace("NaN", "nan")
        except ValueError:
            return str(value)
    return str(value) if not isinstance(value, int) or abs(value) < 10**300 else "9" * 400


# ---- the families: each makes one case from random numbers ----------------------------------------------------------

METHOD_KEYS = (
    "memory_per_task",
    "variant",
    "engine",
    "threshold",
    "strength",
    "energy",
    "decay",
    "dropout",
    "batch_size",
)
KEYS = [
    *(
        f"train.{key}"
        for key in ("epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "optimizer")
    ),
    *(f"train.{key}" for key in ("evaluate_every", "batch_norm", "loss", "nesterov", "zzz", "loss_source")),
    *(
        f"stream.{key}"
        for key in ("tasks", "train_size", "test_size", "seed", "step", "angles", "resample", "zzz")
    ),
    *(f"net.{key}" for key in ("hidden", "name", "zzz")),
    *(f"method.{key}" for key in METHOD_KEYS),
    *("", ".", "train", "train.", "a.b", "x" * 5000),
]


def settings(draw: random.Random, folder: Path) -> None:
    """Settings on the command line: what is accepted is what was given, finite, and can be used."""
    key, value = draw.choice(KEYS), draw.choice(VALUES)
    text = f"{key}={value if draw.random() < 0.3 else text_of(value)}"
    content = {"streams": ["rotated-mnist-mini"], "methods": [draw.choice(sorted(METHODS))]}
    (run,) = make_experiment(content, overrides=[text]).runs
    whole = run.resolved()
    values = flat(
        {
            **{part: vars(getattr(whole, part)) for part in ("train",)},
            "method": whole.method.settings,
            "net": {"name": whole.net.name, **whole.net.settings},
            "stream": {**vars(whole.stream), **whole.stream.options},
        }
    )
    given = toml_value(text.partition("=")[2].strip())
    assert values[key.strip()] == given or key == "train.loss_source"
    assert reasonable(values)
    assert whole.train.epochs <= 10**6
    make_optimizer(whole.train, nn.Linear(2, 2))
    make_method(whole.method.name, whole.method.settings)


SECTIONS = (
    "train",
    "net",
    "stream",
    "method",
    "grid",
    "table",
    "search",
    "name",
    "only",
    "seeds",
    "description",
    "zzz",
)


def experiment_files(draw: random.Random, folder: Path) -> None:
    """An experiment file, looked at by the command: an answer in words, whatever it holds."""
    lines = [] if draw.random() < 0.2 else ['streams = ["rotated-mnist-mini"]', 'methods = ["sgd"]']
    for _ in range(draw.randint(1, 3)):
        key, value = draw.choice(SECTIONS), text_of(draw.choice(VALUES))
        inner = draw.choice(KEYS).rpartition(".")[2] or "a"
        lines.append(
            draw.choice([f"{key} = {value}", f"{key}.{inner} = {value}", f"grid.{key}.{inner} = [{value}]"])
        )
    (folder / "x.toml").write_text("\n".join(lines), encoding="utf-8", errors="replace")
    before = {path.name for path in folder.iterdir()}
    assert call(["search", str(folder / "x.toml"), "--dry-run", "--store", str(folder / "store")]) in (0, 2)
    assert {path.name for path in folder.iterdir()} == before


LETTERS = [*"ab ./\\~\0\n\x1b:*ü", "..", "../", "/etc/", "x" * 150]


def names_of_searches(draw: random.Random, folder: Path) -> None:
    """The name of a search leads into the folder of searches, or is refused."""
    name = "".join(draw.choice(LETTERS) for _ in range(draw.randint(0, 4)))
    path = result_path(Store(folder), name)
    assert path.parent == folder / "searches"
    assert path.name == f"{name}.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert os.listdir(folder / "searches") == [f"{name}.json"]


def an_array(draw: random.Random, labels: bool = False) -> Any:
    """An array as data sets have them, or not."""
    size = draw.choice([4, 4, 4, 4, 0, 1, 3])
    shape = (size,) if labels else draw.choice([(size, 2), (size, 2), (size, 2, 2), (size,), (), (size, 0)])
    numbers = np.arange(math.prod(shape), dtype=np.float64).reshape(shape) % 3
    if draw.random() < 0.3 and numbers.size:
        numbers.flat[0] = draw.choice([math.nan, math.inf, -1.0, 1e300, 1e12, 0.5])
    kinds = [
        "float32",
        "float64",
        "float16",
        "int64",
        "uint8",
        "complex64",
        "U3",
        "object",
        "bool",
        "uint64",
        ">f4",
        "M8[s]",
    ]
    with np.errstate(all="ignore"):
        try:
            return numbers.astype(draw.choice(["int64", "int64", "float32", *kinds] if labels else kinds))
        except (ValueError, TypeError):
            return numbers


def check_stream(stream: Any) -> None:
    """Finite inputs, and targets that a head of the announced size can learn."""
    for task in stream:
        for split in (task.train, task.test):
            inputs, targets = split.samples()
            assert len(inputs) == len(targets) > 0
            assert bool(inputs.isfinite().all())
            if task.kind == "classification":
                assert 0 <= int(targets.min()) <= int(targets.max()) < task.outputs <= 10**7
            else:
                assert bool(targets.isfinite().all())


def arrays(draw: random.Random, folder: Path) -> None:
    """A stream of arrays: it can be trained on, or the task is named."""
    tasks = [
        tuple(an_array(draw, labels=place % 2 == 1) for place in range(draw.choice([4, 4, 4, 3])))
        for _ in range(draw.randint(0, 2))
    ]
    options = {
        key: draw.choice(VALUES)
        for key in ("heads", "kind", "outputs", "names", "dtype")
        if draw.random() < 0.1
    }
    check_stream(from_arrays(tasks, **options))


def npz_files(draw: random.Random, folder: Path) -> None:
    """A file of arrays with any names, damaged or not."""
    parts = ("x_train", "y_train", "x_test", "y_test")
    numbers = ["1", "1", "2", "0", "", "99999999999", "9" * 30, "٣", "a"]
    content = {
        f"{part}_{draw.choice(['1', '1', *numbers])}": an_array(draw, part.startswith("y"))
        for part in (*parts, *parts)
    }
    if draw.random() < 0.3:  # a good file, but for one name
        content = {
            f"{part}_1": np.arange(4)[:, None] % 2 if part[0] == "x" else np.arange(4) % 2 for part in parts
        }
        content[f"{draw.choice(parts)}_{draw.choice(['2', '99999999999', '99999999999', *numbers[6:]])}"] = (
            np.ones((4, 1))
        )
    content |= {} if draw.random() < 0.4 else {f"{part}_1": np.arange(4)[:, None] % 2 for part in parts[::2]}
    path = folder / "x.npz"
    np.savez(path, **content)
    if draw.random() < 0.3:
        broken = bytearray(path.read_bytes())
        broken[draw.randrange(len(broken))] ^= 1 << draw.randrange(8)
        path.write_bytes(broken[: draw.choice([len(broken), draw.randrange(len(broken))])])
    check_stream(from_npz(path, tasks=draw.choice([None, None, 1, *VALUES])))


ARGUMENTS = ("protect", "loss", "batch_norm", "seed", "tasks", "outputs", "batch")


def attaching(draw: random.Random, folder: Path) -> None:
    """`attach` with any argument: what is accepted trains two tasks, and the weights stay finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = {name: draw.choice(VALUES) for name in draw.sample(ARGUMENTS, draw.choice([1, 1, 2]))}
    head = draw.choice([None, None, None, None, "main", *VALUES])
    method = make_method(draw.choice(["ogd", "ewc", "sgd", "gpm"]))
    learner = orthocl.attach(method, model, optimizer, **given)
    for name, value in given.items():
        whole = value is None or (hasattr(value, "__index__") and not isinstance(value, bool))
        assert whole or name not in ("seed", "tasks"), f"{name}={value!r} was accepted"
        assert name != "batch_norm" or value in ("freeze", "keep")
        assert name not in ("loss", "batch", "outputs") or value is None or callable(value)
    if callable(given.get("loss")) or callable(given.get("batch")) or callable(given.get("outputs")):
        return  # a function, though a strange one: what it raises is its own
    data = TensorDataset(torch.randn(6, 2), torch.arange(6) % 2)
    for _ in range(2):
        with learner.learning(data, head=head):
            optimizer.zero_grad()
            (
                nn.functional.cross_entropy(model(data.tensors[0]), data.tensors[1]) + learner.penalty()
            ).backward()
            optimizer.step()
    assert head is None, f"head={head!r} was accepted by a model without heads"
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def states(draw: random.Random, folder: Path) -> None:
    """A state file that was damaged, or stripped of its checksum, is not read; or it is what was written."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    path, state = folder / "state", {"a": torch.arange(4.0), "b": [1, {"c": "x"}]}
    write_state(path, state, owner="run")
    content = bytearray(path.read_bytes())
    kind = draw.choice(["bits", "cut", "zeros", "unsealed", "resealed"])
    if kind == "bits":
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    elif kind in ("cut", "zeros"):
        place = draw.randrange(len(content))
        path.write_bytes(content[:place] + (b"" if kind == "cut" else bytes(len(content) - place)))
    else:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            values = json.loads(file.metadata()["orthocl"])
        tensors["/a"][draw.randrange(4)] *= -1 - draw.random()
        values = values["__skeleton__"] if kind == "unsealed" else values
        tensors["/a"][0] += 1
        save_file(tensors, path, {"orthocl": json.dumps(values)})
    again = read_state(path, owner="run")
    assert torch.equal(again["a"], state["a"])
    assert again["b"] == state["b"]


def records(draw: random.Random, folder: Path) -> None:
    """A record in which something was changed is not believed, with or without its checksum."""
    path = draw.choice(sorted(RECORDS.glob("runs/*/record.json")))
    values = json.loads(path.read_text())
    place, key = values, draw.choice([key for key in values if key != "checksum"])
    while isinstance(place[key], dict | list) and place[key] and draw.random() < 0.9:
        place = place[key]
        key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
    old = place[key]
    place[key] = draw.choice([value for value in [None, 0, -1.5, "a", [], {}, True, 1e300] if value != old])
    if draw.random() < 0.5:
        del values["checksum"]
    with pytest.raises(StoreError):
        Record.from_json(json.dumps(values), run=path.parent.name)


def save_memory(path: Path) -> None:
    model = nn.Linear(2, 2)
    orthocl.attach(orthocl.OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1)).save(path)


WRITERS = {
    ".bin": lambda path: write_output(path, b"content"),
    ".safetensors": save_memory,
    ".npz": lambda path: save_npz(path, [(np.ones((2, 2)), np.array([0, 1])) * 2]),
    ".svg": lambda path: save_figure(Figure(), path),
}
PLACES = (
    "new",
    "file",
    "link",
    "chain",
    "dangling",
    "loop",
    "pipe",
    "device",
    "folder",
    "link to pipe",
    "no folder",
)


def outputs(draw: random.Random, folder: Path) -> None:
    """An output goes to a regular file, through links, which keeps its permissions; all else is refused and stays."""
    suffix, place = draw.choice(list(WRITERS)), draw.choice(PLACES)
    path, target = folder / f"out{suffix}", folder / f"target{suffix}"
    mode = draw.choice([0o600, 0o640, 0o644, 0o666])
    if place in ("file", "link", "chain"):
        target.write_bytes(b"old")
        target.chmod(mode)
    if place == "file":
        path = target
    elif place in ("link", "dangling"):
        path.symlink_to(target)
    elif place == "chain":
        (folder / "between").symlink_to(target)
        path.symlink_to(folder / "between")
    elif place == "loop":
        path.symlink_to(path)
    elif place == "pipe":
        os.mkfifo(path)
    elif place == "link to pipe":
        os.mkfifo(target)
        path.symlink_to(target)
    elif place == "device":
        path.symlink_to("/dev/full")
    elif place == "folder":
        path.mkdir()
    elif place == "no folder":
        path = folder / "x\0" / f"out{suffix}"
    before = {each.name: os.lstat(each).st_mode for each in folder.iterdir()}
    try:
        WRITERS[suffix](path)
    except OrthoclError:
        assert place not in ("new", "file", "link", "chain", "dangling")
        assert {each.name: os.lstat(each).st_mode for each in folder.iterdir()} == before
        raise
    assert place in ("new", "file", "link", "chain", "dangling")
    real = path if place == "new" else target
    assert stat.S_ISREG(os.lstat(real).st_mode)
    assert real.stat().st_size > 5
    assert all(os.lstat(folder / name).st_mode == kept for name, kept in before.items())


def folders_of_images(draw: random.Random, folder: Path) -> None:
    """A folder of images with anything in it and any setting."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        for number in range(3):
            mode, size = draw.choice(["RGB", "L", "RGBA", "1"]), draw.choice([1, 4, 9])
            path = folder / name / f"{number}{draw.choice(['.png', '.png', '.png', '.bmp', '.jpg'])}"
            try:
                Image.new(mode, (size, size), 1).save(path)
            except OSError:
                path.write_bytes(b"no image")
    if draw.random() < 0.3:
        (folder / "a" / "z.png").write_bytes(bytes(draw.randrange(256) for _ in range(40)))
    names = ("size", "test_fraction", "classes_per_task", "tasks", "train_size", "test_size", "seed")
    check_stream(from_image_folder(folder, **{name: draw.choice(VALUES) for name in draw.sample(names, 1)}))


def networks(draw: random.Random, folder: Path) -> None:
    """A network of any settings gives finite outputs of the right shape."""
    value = draw.choice([each for each in VALUES if type(each) is not int or each != MANY])
    name, key = draw.choice(
        [("mlp", "hidden"), ("mlp", "dropout"), ("lenet", "channels"), ("lenet", "hidden"), ("mlp", "x")]
    )
    shape = draw.choice([(4,), (1, 32, 32), (3, 32, 32)])
    net = make_net(name, shape, {"main": 2}, {key: value})
    found = net(torch.zeros(2, *shape))
    assert found.shape == (2, 2)
    assert bool(found.isfinite().all())


LINES = [
    ["runs", "list"],
    ["runs", "show"],
    ["runs", "compare"],
    ["runs", "export"],
    ["runs", "doctor"],
    ["report", "--out", "page.html"],
    ["list"],
    ["plan", "mlp", "--input-shape", "4", "--tasks", "3"],
    ["data", "fetch"],
    ["audit"],
    ["check"],
    ["search"],
]
OPTIONS = (
    *(
        "--stream",
        "--method",
        "--last",
        "--metric",
        "--only",
        "--seed",
        "--figure",
        "--input-shape",
        "--tasks",
    ),
    *(
        "--budget",
        "--hidden",
        "--outputs",
        "--energy",
        "--memory-per-task",
        "--json",
        "--quiet",
        "--zzz",
        "--table",
        "--out",
    ),
)


def command_lines(draw: random.Random, folder: Path) -> None:
    """A command with hostile arguments: an exit code, words, nothing that steers the terminal."""
    store = folder / draw.choice(["store", "store\x1b[31m"])
    if draw.random() < 0.5:
        shutil.copytree(RECORDS, store)
    line = [*draw.choice(LINES)]
    for _ in range(draw.randint(0, 2)):
        line += [draw.choice(OPTIONS)] if draw.random() < 0.6 else []
        value = draw.choice(["a\x1b[31m.toml", draw.choice([*TEXTS, *map(text_of, NUMBERS)])])
        line.append(value.replace("/", "_") if "--out" in line else value)
    if line[0] in ("runs", "report"):
        line += ["--store", str(store)]
    assert call(line) in (0, 1, 2)


def requests(draw: random.Random, folder: Path) -> None:
    """Whatever a browser sends, the next one is answered."""
    server = ViewServer(lambda: PageInput([], "t", "", (), (), folder, ""))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        host = b"Host: 127.0.0.1:%d\r\n" % server.server_port
        heads = [
            b"GET / HTTP/1.1\r\n",
            b"GET /../x HTTP/1.0\r\n",
            b"PUT / HTTP/1.1\r\n",
            b"\0\xff\r\n",
            b"GET\r\n",
            b"A" * 70000,
        ]
        more = [
            host,
            b"Host: evil\r\n",
            b"X: " + b"y" * 70000 + b"\r\n",
            b"Content-Length: -1\r\n",
            b"",
            b"X: \x1b[31m\r\n",
        ]
        sent = draw.choice(heads) + b"".join(draw.sample(more, 2)) + draw.choice([b"\r\n", b""])
        with socket.create_connection(server.server_address, timeout=10) as browser:
            browser.sendall(sent)
        with socket.create_connection(server.server_address, timeout=10) as browser:
            browser.sendall(b"GET / HTTP/1.0\r\n" + host + b"\r\n")
            assert browser.recv(15) == b"HTTP/1.0 200 OK"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


FAMILIES = {
    each.__name__: each
    for each in (
        *(
            settings,
            experiment_files,
            names_of_searches,
            arrays,
            npz_files,
            attaching,
            states,
            records,
            outputs,
        ),
        *(folders_of_images, networks, command_lines, requests),
    )
}
ALL = [(list(FAMILIES)[number % len(FAMILIES)], number // len(FAMILIES)) for number in range(CASES)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "number"), ALL, ids=[f"{family}-{number}" for family, number in ALL])
def test_a_case_is_right_or_refused(tmp_path, monkeypatch, capsys, family, number):
    monkeypatch.chdir(tmp_path)
    refusal = OrthoclError("nothing was refused")
    with limited(SECONDS):
        try:
            FAMILIES[family](random.Random(f"{family} {number}"), tmp_path)
        except OrthoclError as error:
            refusal = error
    assert not isinstance(refusal, TrainingError), "it was not refused before the training"
    assert 10 < len(str(refusal)) < 3000, "an answer in a few words"
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert not STEERING & set(captured.out + captured.err), "nothing steers the terminal"
