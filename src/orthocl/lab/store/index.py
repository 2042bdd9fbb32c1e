"""The index of a store: a summary of every record, so that a large store is listed without reading all of it.

The index only saves time. It can be deleted at any moment, is rebuilt from the records, and is never believed over
them: a line counts only while the record's file has the size, the time and the number on the disk that it had when it
was read, and the whole index only while it matches its own checksum.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orthocl.errors import OrthoclError, StoreError
from orthocl.lab.experiment.settings import recorded_identity
from orthocl.lab.store.record import verified
from orthocl.metrics import AccuracyMatrix, compute
from orthocl.storage import read_file, write_atomically

FILE = "index.jsonl"


@dataclass(frozen=True)
class Summary:
    """One line of the index.

    Args:
        id: the run.
        stream: what the run called its stream.
        method: what it called its method.
        seed: of the run.
        status: "finished", "unsupported", or "damaged" if the record cannot be trusted.
        aac: average accuracy of a finished run.
        seconds: time that a finished run took.
        stamp: identifies the state of the record's file on the disk.
        reason: what is wrong with a damaged record.
        setting: equal for runs that differ only in their seed.
        finished: when the run finished, as its record says.
    """

    id: str
    stream: str
    method: str
    seed: int
    status: str
    aac: float | None
    seconds: float | None
    stamp: str
    reason: str = ""
    setting: str = ""
    finished: str = ""


def stamp(record: Path) -> str:
    """The state of a record's file: its time, size and number on the disk.

    Raises:
        FileNotFoundError: there is no record.
    """
    try:
        found = os.stat(record)
    except NotADirectoryError as error:
        raise FileNotFoundError(str(record)) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        return "unreadable"
    return f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}"


def summarise(run: str, record: Path, mark: str) -> Summary:
    """The summary of a record, which is read and verified; of a damaged one, what is wrong with it."""
    try:
        values = verified(read_file(record), str(record), run)
        finished = values["status"] == "finished"
        labels = values["provenance"].get("labels", {})
        seconds = values["provenance"].get("seconds", {}).get("total") if finished else None
        return Summary(
            run,
            str(labels.get("stream") or values["settings"]["stream"]["name"]),
            str(labels.get("method") or values["settings"]["method"]["name"]),
            int(values["settings"]["seed"]),
            str(values["status"]),
            _average(values["result"]["accuracies"]) if finished else None,
            None if seconds is None else float(seconds),
            mark,
            setting=recorded_identity(
                values["settings"] | {"seed": 0}, values["stream"]["fingerprint"], values["code"]
            ),
            finished=str(values["provenance"].get("finished", "")),
        )
    except FileNotFoundError:
        return _damaged(run, mark, f"{record} vanished while it was read")
    except StoreError as error:
        return _damaged(run, mark, str(error))
    except (LookupError, TypeError, ValueError, AttributeError, OrthoclError) as error:
        return _damaged(run, mark, f"{record} is not a record of orthocl ({error!r})")


def read_index(store: Path) -> dict[str, Summary]:
    """The summaries of an index by id; none if there is no index or it does not match its checksum."""
    with suppress(OSError, StoreError, ValueError, TypeError, KeyError, RecursionError):
        head, _, body = read_file(store / FILE).partition(b"\n")
        if json.loads(head)["checksum"] == hashlib.sha256(body).hexdigest():
            rows: list[dict[str, Any]] = json.loads(b"[" + b",".join(body.splitlines()) + b"]")
            if all("setting" in row for row in rows):  # an index of an earlier version is made again
                return {row["id"]: Summary(**row) for row in rows}
    return {}


def write_index(store: Path, lines: Iterable[Summary]) -> None:
    """Write the index. A store that cannot be written, or a full disk, is no reason to fail: it only saves time."""
    body = "".join(json.dumps(asdict(line)) + "\n" for line in lines).encode()
    head = json.dumps({"checksum": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
    with suppress(StoreError):
        write_atomically(store / FILE, head + body)


def current(
    store: Path, runs: Mapping[str, Path], known: Mapping[str, Summary] | None = None
) -> list[Summary]:
    """A summary of every record, from the index where it is up to date, else from the record itself.

    Args:
        store: the directory of the store.
        runs: run -> its record, whether there is one or not.
        known: the index; read from the store by default.
    """
    known = read_index(store) if known is None else known
    found = []
    for run, record in runs.items():
        try:
            mark = stamp(record)
        except FileNotFoundError:
            continue
        line = known.get(run)
        found.append(line if line is not None and line.stamp == mark else summarise(run, record, mark))
    if {line.id: line for line in found} != known and store.exists():
        write_index(store, found)
    return found


def _damaged(run: str, mark: str, reason: str) -> Summary:
    return Summary(run, "?", "?", 0, "damaged", None, None, mark, reason)


def _average(rows: list[list[float | None]]) -> float:
    numbers = [[math.nan if value is None else value for value in row] for row in rows]
    return compute("aac", AccuracyMatrix.from_rows(numbers))
