"""Store: one directory per run, readable with a text editor, safe to share between processes and machines.

    store/
      index.jsonl                  a summary of every record; rebuilt from the directories whenever it is out of date
      quarantine/<id>/             damaged files that `orthocl runs doctor` has moved out of the way
      runs/<id>/settings.json      what was asked for, and how the run was first started
      runs/<id>/sources/           the files of parts that are not built in
      runs/<id>/progress.jsonl     what has been measured so far, one line per task or point of a curve
      runs/<id>/checkpoint.safetensors   where to resume; removed when the run is finished
      runs/<id>/claim-<n>.json     who is working on it
      runs/<id>/failure.json       why the last attempt failed
      runs/<id>/record.json        the result
      runs/<id>/weights.safetensors      the network after the last task

Every file is written under another name and then renamed, so it is either complete or absent. Records, settings,
checkpoints and weights hold the id of their run and a checksum, which are verified whenever they are read.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orthocl.errors import OrthoclError, StoreError, warn
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.store.index import Summary, current
from orthocl.lab.store.record import Record, readable_json
from orthocl.lab.store.run_lock import Claim, alive_claim
from orthocl.storage import check_seal, create_atomically, parse_json, read_file, sealed, write_atomically

RunState = Literal["new", "unfinished", "running", "failed", "unsupported", "finished", "damaged"]
MOST_THREADS = 4096
"""No machine has more, and torch crashes when asked for many more."""


class DamagedRecordWarning(UserWarning):
    """A record was left out, because it is damaged."""


@dataclass(frozen=True)
class Damage:
    """A file of a store that cannot be trusted.

    Args:
        run: the run it belongs to, by its folder.
        path: the file.
        reason: what is wrong with it.
    """

    run: str
    path: Path
    reason: str


class Store:
    """Records, checkpoints and claims of runs, in one directory.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.state("0123456789abcdef"), list(store.records())
    ('new', [])
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        try:
            is_directory = stat.S_ISDIR(os.stat(self.directory).st_mode)
        except (FileNotFoundError, NotADirectoryError):  # writing will say if it cannot be created
            return
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise StoreError(f"{str(self.directory)[:80]!r} cannot be a store: {reason}") from error
        if not is_directory:
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
        try:
            record = self.record(run)
        except StoreError:
            return "damaged"
        if record is not None:
            return "finished" if record.status == "finished" else "unsupported"
        if not folder.exists():
            return "new"
        if alive_claim(folder) is not None:
            return "running"
        return "failed" if (folder / "failure.json").exists() else "unfinished"

    def record(self, run: str) -> Record | None:
        """The record of a run, or None if it has none.

        Raises:
            StoreError: it is damaged, or it is the record of another run.
        """
        path = self.folder(run) / "record.json"
        try:
            content = read_file(path)
        except FileNotFoundError:
            return None
        return Record.from_json(content, where=str(path), run=run)

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
        """Note the first start of a run; later starts get the note of the first. Only for the claim's owner.

        Raises:
            StoreError: the note is damaged, and there is a checkpoint that cannot be resumed without it.
        """
        folder = self.folder(run)
        for left_behind in folder.glob(".*.partial"):
            left_behind.unlink(missing_ok=True)
        path = folder / "settings.json"
        try:
            noted = self.first_start(run)
        except (FileNotFoundError, StoreError) as error:
            if self.checkpoint(run).exists():
                raise StoreError(
                    f"{path} is missing or damaged ({error}), and the checkpoint cannot be resumed without it: move "
                    "both away (orthocl runs doctor --quarantine), and the run starts over"
                ) from error
            self.keep_sources(run, settings)
            labels = {"stream": settings.stream_label, "method": settings.method_label}
            values = {"id": run, "settings": settings.recorded(), "labels": labels, "start": start}
            self._write(path, sealed(values))
            noted = start
        (folder / "failure.json").unlink(missing_ok=True)
        return noted

    def first_start(self, run: str) -> dict[str, Any]:
        """How a run was first started: the number of threads, the time, the system.

        Raises:
            FileNotFoundError: it was not started yet.
            StoreError: what was noted is damaged.
        """
        return _start_of(self._noted(run))

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
            values = self._noted(run)
            labels = {f"{part}_label": str(text) for part, text in values.get("labels", {}).items()}
            return RunSettings.from_dict(values["settings"] | labels)
        except (OSError, LookupError, TypeError, ValueError, AttributeError, OrthoclError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}): move it away (orthocl runs doctor --quarantine), or remove the run"
            ) from error

    def write_record(self, record: Record, *, check: Callable[[], object] | None = None) -> None:
        """Write the result of a run; its checkpoint is then no longer needed. A record is never overwritten.

        Args:
            record: the result.
            check: called just before, such as `Claim.confirm`; an error from it leaves everything as it was.

        Raises:
            StoreError: the run has a record already, with another result.
        """
        folder = self.folder(record.id)
        folder.mkdir(parents=True, exist_ok=True)
        content = (record.to_json() + "\n").encode()
        if not create_atomically(folder / "record.json", content, check=check):
            there = self.record(record.id)
            if there is not None and there.result_hash != record.result_hash:
                raise StoreError(
                    f"run {record.id} has a record in {self.directory} already, with another result: that one was kept"
                )
        for name in ("checkpoint.safetensors", "failure.json"):
            with suppress(OSError):
                (folder / name).unlink()

    def progress(self, run: str) -> list[list[float]]:
        """The test accuracies that a run, finished or not, has measured: at initialisation, then after each task."""
        rows = []
        with suppress(OSError, StoreError):
            text = read_file(self.folder(run) / "progress.jsonl").decode("utf-8", errors="replace")
            for line in text.splitlines():
                with suppress(
                    ValueError, TypeError, LookupError, AttributeError, RecursionError
                ):  # the last may be incomplete
                    values = json.loads(line)
                    if values.get("run", run) != run:
                        return []
                    if "after_task" in values:
                        rows.append([float(value) for value in values["accuracies"]])
        return rows

    def write_failure(self, run: str, failure: dict[str, Any]) -> None:
        """Note why a run failed."""
        self._write(self.folder(run) / "failure.json", failure)

    def failure(self, run: str) -> dict[str, Any] | None:
        """Why the last attempt at a run failed, or None. It has at least a "reason" and a "traceback" (lines)."""
        path = self.folder(run) / "failure.json"
        try:
            found = parse_json(read_file(path), path)
        except FileNotFoundError:
            return None
        except StoreError as error:
            found = {"reason": str(error)}
        trace = found.get("traceback", [])
        lines = [str(line) for line in trace] if isinstance(trace, list) else []
        return {**found, "reason": str(found.get("reason", "unknown")), "traceback": lines}

    def remove(self, run: str) -> None:
        """Delete a run and all its files, unless a process is working on it."""
        folder = self.folder(run)
        if alive_claim(folder) is not None:
            raise StoreError(f"run {run} is being executed right now: stop it first")
        if folder.is_symlink():
            raise StoreError(f"cannot remove {folder}: it is a symbolic link, to {os.readlink(folder)}")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StoreError(f"cannot remove {folder}: {error.strerror or error}") from error

    # ---- all runs -----------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """All runs that have a directory."""
        try:
            with os.scandir(self.runs) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(
                f"cannot read the store {self.directory}: {error.strerror}: {self.runs}"
            ) from error

    def find(self, prefix: str) -> str:
        """The run whose id begins with this prefix."""
        if not prefix.strip():
            raise StoreError("say which run: give the first letters of its id, see `orthocl runs list`")
        found = [run for run in self.ids() if run.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise StoreError(f"no run in {self.directory} begins with {prefix!r}: see `orthocl runs list`")
        raise StoreError(
            f"{len(found)} runs in {self.directory} begin with {prefix!r}: it could be {', '.join(found[:5])}: "
            "give more letters"
        )

    def records(self, on_damage: Callable[[Damage], None] | None = None) -> Iterator[Record]:
        """All records, in the order of their ids. Damaged ones are left out.

        Args:
            on_damage: told of each damaged record; by default each gives a `DamagedRecordWarning`.
        """
        for run in self.ids():
            try:
                record = self.record(run)
            except StoreError as error:
                damage = Damage(run, self.folder(run) / "record.json", str(error))
                if on_damage is None:
                    warn(f"left out: {error}", DamagedRecordWarning)
                else:
                    on_damage(damage)
                continue
            if record is not None:
                yield record

    def index(self, *, rebuild: bool = False) -> list[Summary]:
        """A summary of every record, from the index where it is up to date, else from the record itself.

        Args:
            rebuild: read and verify all records again.
        """
        records = {run: self.folder(run) / "record.json" for run in self.ids()}
        return current(self.directory, records, {} if rebuild else None)

    def _noted(self, run: str) -> dict[str, Any]:
        path = self.folder(run) / "settings.json"
        values = parse_json(read_file(path), path)
        if values.get("id", run) != run:
            raise StoreError(f"{path} belongs to run {values['id']}: it was copied here")
        check_seal(values, path)
        return values

    def _write(self, path: Path, values: dict[str, Any]) -> None:
        write_atomically(path, (readable_json(values) + "\n").encode())


def _start_of(values: dict[str, Any]) -> dict[str, Any]:
    """How a run was first started, from its settings file."""
    start = values.get("start")
    if not isinstance(start, dict):
        raise StoreError(f"its `start` must be a table, got {str(start)[:40]}")
    threads = start.get("threads", 1)
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise StoreError(
            f"its number of threads must be between 1 and {MOST_THREADS}, got {str(threads)[:40]}"
        )
    return start
