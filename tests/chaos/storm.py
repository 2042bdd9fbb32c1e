"""Chaos: runs are killed, stopped, starved of disk and memory, robbed of files and lied to about the time.

    python tests/chaos/storm.py 200          # `make chaos`; a few minutes to half an hour
    python tests/chaos/storm.py 6 --seed 3   # the short form

Where libfaketime is installed, some runs are told lies by the clock itself; elsewhere the claims of runs are redated.

Whatever happens: no damaged record is read as good, no finished run is lost, and every run ends in the result, to the
bit, of the run that nobody disturbed. The exit code is 1, with the seed and the disturbance, if that is not so.

Runs are executed in forks of this process, which has imported torch and done nothing with it, so that a disturbance
costs a fraction of a second; some use processes of their own, one or two at a time, as the command does.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orthocl.errors import OrthoclError, StoreError
from orthocl.lab import Experiment, RunOptions, Store, make_experiment, run_experiment
from orthocl.lab.laboratory import ignore
from orthocl.lab.store.doctor import examine, quarantine

METHODS = ("sgd", "ewc", "a-gem", "ogd", "ogd+", "gpm")
SEEDS = (1, 2)
DAY = 86_400.0
OPTIONS = RunOptions(checkpoint_seconds=0.03, threads=1)


def experiment(method: str) -> Experiment:
    return make_experiment(
        {
            "streams": ["rotated-mnist-mini"],
            "methods": [method],
            "seeds": list(SEEDS),
            "net": {"name": "mlp", "hidden": [12]},
            "train": {"epochs": 6, "batch_size": 10, "learning_rate": 0.02},
            "stream": {"tasks": 3, "train_size": 150, "test_size": 60},
            "method": {"sgd": {}, "ewc": {"strength": 1.0}}.get(method, {"memory_per_task": 12}),
        }
    )


# ---- children ---------------------------------------------------------------------------------------------------


def start(
    method: str,
    directory: Path,
    jobs: int,
    limit: Callable[[], object] | None = None,
    log: Path | None = None,
) -> int:
    """A process, and leader of its group, that executes the runs of a method; its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.setsid()
        out = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if limit is not None:
            limit()
        results = run_experiment(experiment(method), directory, jobs=jobs, options=OPTIONS, on_event=ignore)
        code = 1 if results.failures else 0
    except (KeyboardInterrupt, MemoryError, OSError, OrthoclError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        code = 2
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def clock_library() -> Path | None:
    """libfaketime, if this machine has it."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def limited(what: str, most: int) -> None:
    """No more of a resource for this process."""
    import resource  # not on every system; the module itself can be imported anywhere

    resource.setrlimit(getattr(resource, what), (most, most))


def ended(pid: int, seconds: float) -> bool:
    """Whether a child ends within this time; it is then no more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def end(pid: int) -> None:
    kill(pid, signal.SIGCONT)
    kill(pid)
    os.waitpid(pid, 0)


# ---- the storm --------------------------------------------------------------------------------------------------


@dataclass
class Storm:
    """Disturbances of the runs of one method, in one store, and what must hold after each."""

    method: str
    directory: Path
    expected: dict[str, str]
    chance: random.Random
    finished: set[str] = field(default_factory=set)
    spoilt: set[str] = field(default_factory=set)
    """Runs whose record this storm has damaged or deleted itself."""

    @property
    def store(self) -> Store:
        return Store(self.directory)

    def files(self) -> list[Path]:
        return sorted(
            path for path in self.store.runs.glob("*/*") if path.is_file() and path.suffix != ".log"
        )

    def wait_for_work(self, pid: int) -> None:
        """Until a run has begun, and then some."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.chance.random() < 0.9:
            if list(self.store.runs.glob("*/claim-*.json")):
                break
            time.sleep(0.01)
        time.sleep(self.chance.uniform(0.0, 0.7))

    def check(self) -> None:
        """What must hold at any time."""
        store, good = self.store, set()
        for run in store.ids():
            try:
                record = store.record(run)
            except StoreError:
                assert run in self.spoilt, f"the record of {run} is damaged, and not by us"
                continue
            if record is not None:
                assert record.result_hash == self.expected[run], f"run {run} has another result"
                good.add(run)
        lost = self.finished - good - self.spoilt
        assert not lost, f"finished runs are lost: {lost}"
        self.finished = good

    def finish(self) -> None:
        """Tidy up as a user would, and let everything end in peace."""
        store = self.store
        for path in store.runs.glob("*/claim-*.json"):  # of other machines, as far as anybody can tell
            os.utime(path, (0, 0))
        if store.runs.exists():
            quarantine(store, examine(store))
        self.spoilt.clear()
        log = self.directory.parent / "finish.log"
        pid = start(self.method, self.directory, 0, log=log)
        assert ended(pid, 300), "the last call hangs"
        found = {record.id: record.result_hash for record in store.records()}
        assert found == self.expected, f"{found} is not {self.expected}: {log.read_text()[-2000:]}"
        assert not examine(store), "something is left behind"

    # ---- disturbances -----------------------------------------------------------------------------------------

    def killed(self, jobs: int) -> None:
        pid = start(self.method, self.directory, jobs)
        self.wait_for_work(pid)
        end(pid)

    def told_to_stop(self, jobs: int) -> None:
        pid = start(self.method, self.directory, jobs)
        self.wait_for_work(pid)
        kill(pid, self.chance.choice([signal.SIGINT, signal.SIGTERM]))
        if not ended(pid, 60):
            end(pid)

    def asleep(self, jobs: int) -> None:
        """Stopped, taken for dead, overtaken by another process, then woken."""
        pid = start(self.method, self.directory, jobs)
        self.wait_for_work(pid)
        kill(pid, signal.SIGSTOP)
        self._shift_claims(-1000.0)
        other = start(self.method, self.directory, 0)
        if self.chance.random() < 0.5:
            assert ended(other, 120), "a sleeper keeps others from working"
        else:
            time.sleep(self.chance.uniform(0.0, 0.5))
        kill(pid, signal.SIGCONT)
        for each in (pid, other):
            if not self._gone(each) and not ended(each, 120):
                end(each)

    def clock_jumps(self, jobs: int) -> None:
        pid = start(self.method, self.directory, jobs)
        self.wait_for_work(pid)
        self._shift_claims(self.chance.choice([-DAY, -100.0, 100.0, DAY]))
        if self.chance.random() < 0.5:
            self.killed(0)
        if not ended(pid, self.chance.uniform(0.0, 2.0)):
            end(pid)

    def clock_lies(self, jobs: int) -> None:
        """A process whose clock is wrong from the start and jumps while it works, beside one whose clock is right."""
        library = clock_library()
        if library is None:
            self.clock_jumps(jobs)
            return
        lie = self.directory.with_name("clock")
        jumps = ["-3d", "-1h", "-100s", "+0", "+100s", "+1h", "+3d"]
        lie.write_text(self.chance.choice(jumps))
        surroundings = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(lie),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # no real clock jumps there
            "NO_FAKE_STAT": "1",  # the disk keeps the right time, as a file server does
        }
        command = [sys.executable, __file__, "--run", self.method, str(self.directory), str(jobs)]
        process = subprocess.Popen(
            command,
            env=surroundings,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait_for_work(process.pid)
        lie.write_text(self.chance.choice(jumps))
        if self.chance.random() < 0.5:
            self.killed(0)
        if not ended(process.pid, self.chance.uniform(0.0, 5.0)):
            end(process.pid)

    def two_writers(self, jobs: int) -> None:
        pids = [start(self.method, self.directory, jobs), start(self.method, self.directory, 0)]
        self.wait_for_work(pids[0])
        if self.chance.random() < 0.5:
            end(pids.pop(0))
        for pid in pids:
            if not ended(pid, 120):
                end(pid)

    def files_deleted(self, jobs: int) -> None:
        pid = start(self.method, self.directory, jobs)
        self.wait_for_work(pid)
        for _ in range(3):
            files = self.files()
            if files:
                path = self.chance.choice(files)
                if path.name == "record.json":
                    self.spoilt.add(path.parent.name)
                path.unlink(missing_ok=True)
            time.sleep(0.05)
        if not ended(pid, self.chance.uniform(0.0, 2.0)):
            end(pid)

    def bits_flipped(self, jobs: int) -> None:
        self.killed(jobs)
        files = [path for path in self.files() if path.stat().st_size]
        if files:
            path = self.chance.choice(files)
            content = bytearray(path.read_bytes())
            content[self.chance.randrange(len(content))] ^= 1 << self.chance.randrange(8)
            path.write_bytes(bytes(content))
            if path.name == "record.json":
                self.spoilt.add(path.parent.name)
        self.killed(0)

    def disk_full(self, jobs: int) -> None:
        if os.geteuid() == 0 and self.chance.random() < 0.5 and self._on_small_disk(jobs):
            return
        most = self.chance.randrange(200, 30_000)
        pid = start(self.method, self.directory, 0, lambda: limited("RLIMIT_FSIZE", most))
        if not ended(pid, 60):
            end(pid)

    def disk_vanishes(self, jobs: int) -> None:
        pid = start(self.method, self.directory, jobs)
        self.wait_for_work(pid)
        away = self.directory.with_name("away")
        if self.directory.exists():
            os.rename(self.directory, away)
        time.sleep(self.chance.uniform(0.0, 0.5))
        end(pid)
        if away.exists():
            shutil.rmtree(self.directory, ignore_errors=True)
            os.rename(away, self.directory)

    def memory_short(self, jobs: int) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = used + self.chance.randrange(1_000_000, 40_000_000)
        pid = start(self.method, self.directory, 0, lambda: limited("RLIMIT_AS", most))
        if not ended(pid, 60):
            end(pid)

    def _shift_claims(self, seconds: float) -> None:
        for path in self.store.runs.glob("*/claim-*.json"):
            try:
                moment = path.stat().st_mtime + seconds
                os.utime(path, (moment, moment))
            except FileNotFoundError:
                continue

    def _gone(self, pid: int) -> bool:
        try:
            return os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def _on_small_disk(self, jobs: int) -> bool:
        """The same store on a disk that is nearly full; False where none can be mounted."""
        disk = self.directory.with_name("disk")
        disk.mkdir(exist_ok=True)
        size = sum(path.stat().st_size + 4096 for path in self.directory.rglob("*"))
        size += self.chance.randrange(20_000, 300_000)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            return False
        try:
            try:
                shutil.copytree(self.directory, disk / "store")
            except (OSError, shutil.Error):
                return True  # it does not even fit
            pid = start(self.method, disk / "store", jobs)
            if not ended(pid, 60):
                end(pid)
            shutil.rmtree(self.directory)
            shutil.copytree(disk / "store", self.directory)
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=False)
        return True


DISTURBANCES = (
    Storm.killed,
    Storm.killed,
    Storm.told_to_stop,
    Storm.asleep,
    Storm.clock_jumps,
    Storm.clock_lies,
    Storm.two_writers,
    Storm.files_deleted,
    Storm.bits_flipped,
    Storm.disk_full,
    Storm.disk_vanishes,
    Storm.memory_short,
)


def undisturbed(method: str, directory: Path) -> dict[str, str]:
    pid = start(method, directory, 0, log=directory.with_suffix(".log"))
    assert ended(pid, 300), f"the undisturbed runs of {method} hang"
    found = {record.id: record.result_hash for record in Store(directory).records()}
    assert len(found) == len(SEEDS), directory.with_suffix(".log").read_text()
    return found


def weather(count: int, seed: int, folder: Path, methods: tuple[str, ...] = METHODS) -> Counter[str]:
    """Disturb runs this many times, and check all along; how often each kind of disturbance was used."""
    chance = random.Random(seed)
    expected = {method: undisturbed(method, folder / method) for method in methods[: max(1, count)]}
    storms: dict[str, Storm] = {}
    used: Counter[str] = Counter()
    rounds = 0
    for number in range(count):
        method = methods[number % len(expected)]
        if method not in storms:
            rounds += 1
            storms[method] = Storm(method, folder / f"storm-{rounds}" / "store", expected[method], chance)
            storms[method].directory.mkdir(parents=True)
        storm = storms[method]
        disturb = chance.choice(DISTURBANCES)
        jobs = chance.choice([0, 0, 0, 0, 1, 2])
        used[disturb.__name__] += 1
        try:
            disturb(storm, jobs)
            storm.check()
            if len(storm.finished) == len(SEEDS) or number >= count - len(storms):
                storms.pop(method).finish()  # a new store for the next disturbance
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}, disturbance {number}, {method}, {disturb.__name__}: {error}"
            ) from error
    for storm in storms.values():
        storm.finish()
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--run", nargs=3, metavar=("METHOD", "STORE", "JOBS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        method, directory, jobs = given.run
        results = run_experiment(
            experiment(method), Path(directory), jobs=int(jobs), options=OPTIONS, on_event=ignore
        )
        sys.exit(bool(results.failures))
    clock = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="orthocl-chaos-") as folder:
        used = weather(given.count, given.seed, Path(folder), tuple(given.methods))
    kinds = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in sorted(used.items()))
    print(
        f"{sum(used.values())} disturbances in {time.monotonic() - clock:.0f} s: {kinds}. All results are identical."
    )


if __name__ == "__main__":
    sys.exit(main())
