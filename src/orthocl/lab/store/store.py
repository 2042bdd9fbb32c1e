"""Store: one directory per run, readable with a text editor, safe to share between processes and machines.

    store/
      index.jsonl                  a summary of every record; rebuilt from the directories whenever it is out of date
      runs/<id>/settings.json      what was asked for, and how the run was first started
      runs/<id>/sources/           the files of parts that are not built in
      runs/<id>/progress.jsonl     what has been measured so far, one line per task or point of a curve
      runs/<id>/checkpoint.safetensors   where to resume; removed when the run is finished
      runs/<id>/claim-<n>.json     who is working on it
      runs/<id>/failure.json       why the last attempt failed
      runs/<id>/record.json        the result
      runs/<id>/weights.safetensors      the network after the last task

Every file is written under another name and then renamed, so it is either complete or absent.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orthocl.errors import StoreError
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.store.record import Record, readable_json
from orthocl.lab.store.run_lock import Claim, alive_claim
from orthocl.storage import write_atomically

RunState = Literal["new", "unfinished", "running", "failed", "unsupported", "finished"]


@dataclass(frozen=True)
class Summary:
    """One line of the index."""

    id: str
    stream: str
    method: str
    seed: int
    status: str
    aac: float | None
    seconds: float | None
    stamp: int


class Store:
    """Records, checkpoints and claims of runs, in one directory.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.state("0123456789abcdef"), list(store.records())
    ('new', [])
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise StoreError(f"{self.directory} is a file: a store is a directory")

    @property
    def runs(self) -> Path:
        """Where the directories of the runs are."""
        return self.directory / "runs"

    def folder(self, run: str) -> Path:
        """Directory of a run, whether it exists or not."""
        return self.runs / run

    def checkpoint(self, run: str) -> Path:
        """Path of a run's checkpoint, whether it exists or not."""
        return self.folder(run) / "checkpoint.safetensors"

    def check_writable(self) -> None:
        """Create the directory if needed, and check that it is writable: before any work, not after it."""
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.runs):
                pass
        except OSError as error:
            raise StoreError(
                f"cannot write in the store {self.directory}: {error.strerror}. Choose another directory."
            ) from error

    # ---- one run ------------------------------------------------------------------------------------------

    def state(self, run: str) -> RunState:
        """How far a run has got: an "unfinished" run was started, no process works on it, the next call resumes it."""
        folder = self.folder(run)
        record = self.record(run)
        if record is not None:
            return "finished" if record.status == "finished" else "unsupported"
        if not folder.exists():
            return "new"
        if alive_claim(folder) is not None:
            return "running"
        return "failed" if (folder / "failure.json").exists() else "unfinished"

    def record(self, run: str) -> Record | None:
        """The record of a run, or None if it has none."""
        path = self.folder(run) / "record.json"
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Record.from_json(text, where=str(path))

    def claim(self, run: str) -> Claim:
        """Claim a run for this process, for a `with` block.

        Raises:
            ClaimedError: another process works on it.
        """
        folder = self.folder(run)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return Claim(folder)
        except OSError as error:
            raise StoreError(f"cannot write in {folder}: {error.strerror}") from error

    def begin(self, run: str, settings: RunSettings, start: dict[str, Any]) -> dict[str, Any]:
        """Note the first start of a run; later starts get the note of the first. Only for the claim's owner."""
        folder = self.folder(run)
        for left_behind in folder.glob(".*.partial"):
            left_behind.unlink(missing_ok=True)
        (folder / "failure.json").unlink(missing_ok=True)
        path = folder / "settings.json"
        with suppress(OSError, ValueError, KeyError):
            noted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["start"]
            return noted
        self.keep_sources(run, settings)
        labels = {"stream": settings.stream_label, "method": settings.method_label}
        self._write(path, {"id": run, "settings": settings.recorded(), "labels": labels, "start": start})
        return start

    def keep_sources(self, run: str, settings: RunSettings) -> None:
        """Keep the files of parts that are not built in with the run that they made."""
        for name, text in settings.sources().items():
            target = self.folder(run) / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, text.encode())

    def settings(self, run: str) -> RunSettings:
        """The settings of a run that has at least been started."""
        path = self.folder(run) / "settings.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            labels = {f"{part}_label": str(text) for part, text in values.get("labels", {}).items()}
            return RunSettings.from_dict(values["settings"] | labels)
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{path} cannot be read ({error}): remove the run and start it again") from error

    def write_record(self, record: Record) -> None:
        """Write the result of a run; its checkpoint is then no longer needed."""
        folder = self.folder(record.id)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "record.json", (record.to_json() + "\n").encode())
        for name in ("checkpoint.safetensors", "failure.json"):
            (folder / name).unlink(missing_ok=True)

    def progress(self, run: str) -> list[list[float]]:
        """The test accuracies that a run, finished or not, has measured: at initialisation, then after each task."""
        rows = []
        with suppress(OSError):
            text = (self.folder(run) / "progress.jsonl").read_text(encoding="utf-8")
            for line in text.splitlines():
                with suppress(ValueError):  # the last line may be incomplete
                    values = json.loads(line)
                    if "after_task" in values:
                        rows.append(values["accuracies"])
        return rows

    def write_failure(self, run: str, failure: dict[str, Any]) -> None:
        """Note why a run failed."""
        self._write(self.folder(run) / "failure.json", failure)

    def failure(self, run: str) -> dict[str, Any] | None:
        """Why the last attempt at a run failed, or None."""
        try:
            found: dict[str, Any] = json.loads(
                (self.folder(run) / "failure.json").read_text(encoding="utf-8")
            )
            return found
        except (OSError, ValueError):
            return None

    def remove(self, run: str) -> None:
        """Delete a run and all its files, unless a process is working on it."""
        folder = self.folder(run)
        if alive_claim(folder) is not None:
            raise StoreError(f"run {run} is being executed right now: stop it first")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StoreError(f"cannot remove {folder}: {error.strerror}") from error

    # ---- all runs -----------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """All runs that have a directory."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self.runs.iterdir() if path.is_dir())
        return []

    def find(self, prefix: str) -> str:
        """The run whose id begins with this prefix."""
        found = [run for run in self.ids() if run.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise StoreError(f"no run in {self.directory} begins with {prefix!r}: see `orthocl runs list`")
        raise StoreError(
            f"{len(found)} runs in {self.directory} begin with {prefix!r}: it could be {', '.join(found[:5])}: "
            "give more letters"
        )

    def records(self) -> Iterator[Record]:
        """All records, in the order of their ids."""
        for run in self.ids():
            record = self.record(run)
            if record is not None:
                yield record

    def index(self) -> list[Summary]:
        """A summary of every record, from the index where it is up to date, else from the record itself."""
        known = self._read_index()
        found = []
        for run in self.ids():
            try:
                stamp = (self.folder(run) / "record.json").stat().st_mtime_ns
            except FileNotFoundError:
                continue
            line = known.get(run)
            found.append(line if line is not None and line.stamp == stamp else self._summarise(run, stamp))
        if {line.id: line for line in found} != known and self.directory.exists():
            text = "".join(json.dumps(vars(line)) + "\n" for line in found)
            with suppress(StoreError):  # another user's store, or a full disk: the index only saves time
                write_atomically(self.directory / "index.jsonl", text.encode())
        return found

    def _summarise(self, run: str, stamp: int) -> Summary:
        record = self.record(run)
        if record is None:
            raise StoreError(f"the record of run {run} vanished while it was read")
        settings = record.settings
        finished = record.status == "finished"
        return Summary(
            run,
            settings.stream_label or settings.stream.name,
            settings.method_label or settings.method.name,
            settings.seed,
            record.status,
            record.metric("aac") if finished else None,
            record.metric("seconds") if finished else None,
            stamp,
        )

    def _read_index(self) -> dict[str, Summary]:
        found: dict[str, Summary] = {}
        with suppress(OSError):
            for line in (self.directory / "index.jsonl").read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, TypeError):
                    summary = Summary(**json.loads(line))
                    found[summary.id] = summary
        return found

    def _write(self, path: Path, values: dict[str, Any]) -> None:
        write_atomically(path, (readable_json(values) + "\n").encode())
