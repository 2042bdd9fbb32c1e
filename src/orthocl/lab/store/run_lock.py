"""Claims: which process works on a run, on directories shared by many machines.

A run's directory holds `claim-1.json`, `claim-2.json`, ... Only exclusive creation of a file is relied upon (it is
atomic on local disks and on NFS; locks are not used). The claim with the highest number counts:

- it is *alive* while its file's modification time keeps moving (the heartbeat), judged by the clock of the file
  system itself, so that machines with wrong clocks agree;
- it is *over* when its owner marked it released, when its owner was a process of this machine that no longer exists, or
  when there was no heartbeat for `TIMEOUT` seconds;
- a heartbeat from the future says only that a clock was set back. Whoever sees it first moves it to the present: from
  then on its owner has `TIMEOUT` seconds to beat again, as after any other heartbeat, whatever the clocks say.

To take over, a process creates the next number: exactly one succeeds. An owner that was only asleep finds a higher
number, or, when the other has finished and tidied up, its own claim gone. Either way the claim is lost. `confirm`
looks, and is called before anything is written. Numbers are never reused while a run is unfinished.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from orthocl.errors import StoreError
from orthocl.storage import read_file, write_atomically

HEARTBEAT = 10.0
TIMEOUT = 90.0


class ClaimedError(StoreError):
    """Another process works on this run."""


class Claim:
    """The right to work on one run, held by a `with` block.

    `lost` turns true if another process took over, at the latest at the next heartbeat; `confirm` looks at once.
    """

    def __init__(self, folder: Path, *, heartbeat: float = HEARTBEAT, timeout: float = TIMEOUT):
        self.folder = folder
        self.heartbeat = heartbeat
        self.timeout = timeout
        self.lost = False
        self._over = threading.Event()
        self._finished = False
        self._path = self._create()
        self._thread = threading.Thread(target=self._beat, name="orthocl-heartbeat", daemon=True)

    def finish(self) -> None:
        """The run has its record: leaving the block removes all claims."""
        self._finished = True

    def confirm(self) -> None:
        """Look whether the run is still ours: call it before anything is written.

        Raises:
            ClaimedError: another process has taken over, or has even finished, or the claim was removed.
        """
        try:
            self._look()
        except OSError as error:
            raise ClaimedError(f"cannot look at the claim on run {self.folder.name}: {error}") from error
        if self.lost:
            raise ClaimedError(
                f"run {self.folder.name} was taken over by another process, because this one seemed dead, or its "
                "claim was removed"
            )

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        with suppress(OSError, StoreError):
            if self._finished:
                for path in _claims(self.folder).values():
                    with suppress(OSError):
                        path.unlink()
                return
            self.confirm()
            text = json.dumps({**self._owner, "released": True})
            write_atomically(self._path, text.encode(), check=self.confirm)

    def _create(self) -> Path:
        # Both from one listing: a claim that appears after it makes the creation of the next number fail.
        claims = _claims(self.folder)
        holder = _alive(claims, self.folder, self.timeout)
        if holder is not None:
            raise ClaimedError(f"run {self.folder.name} is being executed by {describe(holder)}")
        path = self.folder / f"claim-{max(claims, default=0) + 1}.json"
        self._owner = {**this_process(), "released": False}
        try:
            _create_exclusively(path, json.dumps(self._owner))
        except FileExistsError as error:
            raise ClaimedError(f"run {self.folder.name} was claimed by another process just now") from error
        return path

    def _beat(self) -> None:
        while not self._over.wait(self.heartbeat):
            with suppress(OSError):  # the file system may be briefly unavailable: go on
                os.utime(self._path)
            with suppress(OSError):
                self._look()
            if self.lost:
                return

    def _look(self) -> None:
        claims = _claims(self.folder)
        own = int(self._path.stem.split("-")[1])
        if own not in claims or max(claims) > own or _nonce(self._path) != self._owner["nonce"]:
            self.lost = True


def alive_claim(folder: Path, timeout: float = TIMEOUT) -> dict[str, Any] | None:
    """Who works on a run right now, or None."""
    return _alive(_claims(folder), folder, timeout)


def _alive(claims: dict[int, Path], folder: Path, timeout: float) -> dict[str, Any] | None:
    if not claims:
        return None
    path = claims[max(claims)]
    owner: dict[str, Any] = {}
    try:
        beat = path.stat().st_mtime
        with suppress(StoreError, ValueError, TypeError, RecursionError):
            owner = dict(json.loads(read_file(path)))
    except FileNotFoundError:
        return None
    now = _now(folder)
    if owner.get("released") or now - beat > timeout or is_gone(owner):
        return None
    if beat > now + HEARTBEAT:
        with suppress(OSError):
            os.utime(path, (now, now))
    return owner


def this_process() -> dict[str, Any]:
    """What identifies this process on this machine; nothing about its owner."""
    return {
        "machine": _machine(),
        "host": platform.node(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "nonce": uuid.uuid4().hex,
    }


def is_gone(owner: dict[str, Any]) -> bool:
    """Whether the owner certainly no longer exists: it was a process of this machine, and it is gone."""
    if owner.get("machine") != _machine() or not isinstance(owner.get("pid"), int) or owner["pid"] < 1:
        return False
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return bool(_born(owner["pid"]) != owner.get("born"))  # a new process has taken the number


def describe(owner: dict[str, Any]) -> str:
    """An owner in words."""
    return f"process {owner.get('pid', '?')} on {owner.get('host', 'another machine')}"


def _nonce(path: Path) -> object:
    """What distinguishes a claim from a later one with the same number."""
    with suppress(FileNotFoundError, StoreError, ValueError, RecursionError):
        owner = json.loads(read_file(path))
        return owner.get("nonce") if isinstance(owner, dict) else None
    return None


def _create_exclusively(path: Path, text: str) -> None:
    """Create a file with its content in one atomic step; FileExistsError if it exists."""
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    draft.write_text(text, encoding="utf-8")
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: exclusive, though not in one step with the content
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    finally:
        draft.unlink(missing_ok=True)


def _claims(folder: Path) -> dict[int, Path]:
    found = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            stem, _, number = path.stem.partition("-")
            if stem == "claim" and path.suffix == ".json" and number.isascii() and number.isdigit():
                found[int(number)] = path
    return found


def _now(folder: Path) -> float:
    """The time by the clock of the file system, or by our own clock where we cannot write, or the disk is full."""
    probe = folder / f".now-{uuid.uuid4().hex}"
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink()


def _machine() -> str:
    """This boot of this machine as far as process numbers are concerned (containers have their own)."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def _born(pid: int) -> str:
    """Start time of a process where the system tells it, to distinguish it from a later one with the same number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "zombie" if state == "Z" else rest[18]
