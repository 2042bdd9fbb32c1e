"""RayExecutor: the same runs on the machines of a Ray cluster.

Each run is one Ray task with the resources it asks for. Ray's own retries are off: this executor retries, so that it
can report it, and because a run that has started must resume from its checkpoint and not start over.

With a store that every node sees under the same path, workers write there themselves: a run whose node died resumes
from its latest checkpoint on another node. Without one (`shared=False`), each node keeps its runs in its own folder and
finished records, with progress and weights, are sent back.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orthocl.errors import SettingsError
from orthocl.lab.executors.interface import (
    Event,
    OnEvent,
    Outcome,
    check_not_negative,
    check_positive,
    gather,
    pending,
)
from orthocl.lab.executors.worker import (
    PATIENCE,
    Job,
    Report,
    attempt,
    packed,
    unpacked,
    work_where_the_caller_does,
)
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunOptions
from orthocl.lab.store.record import Record
from orthocl.lab.store.run_lock import Claim, ClaimedError
from orthocl.lab.store.store import Store
from orthocl.storage import write_atomically

POLL_SECONDS = 0.5
RETURNED_FILES = ("weights.safetensors", "progress.jsonl", "settings.json")
"""What a node without the store sends back with the record."""


@dataclass(frozen=True)
class RayExecutor:
    """Executes runs on an existing Ray cluster; it never starts or stops one.

    Args:
        jobs: runs at a time at most; 0 for as many as the cluster has room for.
        address: of the cluster, such as "10.0.0.1:6379"; by default the value of RAY_ADDRESS, or the cluster that
            this machine is part of.
        cpus: processors per run, and also its number of threads.
        gpus: graphics processors per run, for placement.
        memory_gb: memory per run, for placement.
        resources: further resources per run, by the names the cluster gave them.
        retries: how often a run is tried again after its worker or node died.
        shared: whether all nodes see the store under the same path.
    """

    jobs: int = 0
    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    retries: int = 3
    shared: bool = True

    def __post_init__(self) -> None:
        check_positive(cpus=self.cpus, memory_gb=self.memory_gb)
        check_not_negative(jobs=self.jobs, gpus=self.gpus, retries=self.retries)
        if find_spec("ray") is None:
            raise SettingsError("the ray backend needs the package ray: pip install 'orthocl[ray]'")

    def run_all(
        self, runs: Sequence[RunSettings], store: Store, *, options: RunOptions, on_event: OnEvent
    ) -> list[Outcome]:
        """Execute all runs that have no record yet. One outcome per run, in order; failures do not stop it."""
        ids, todo = pending(runs, store, options, on_event)
        failures: dict[str, str] = {}
        if todo:
            options = replace(options, threads=options.threads or max(1, int(self.cpus)))
            with self._cluster() as ray, _mark(store) as mark:
                _Session(self, ray, store, options, on_event, todo, failures, mark).work()
        return gather(ids, runs, store, todo, failures)

    def needs(self) -> dict[str, float]:
        """What one run asks of a node, by Ray's names."""
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": (self.memory_gb or 0.0) * 2**30}
        return {name: amount for name, amount in (needs | dict(self.resources)).items() if amount}

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        ray: Any = import_module("ray")
        if ray.is_initialized():
            yield ray
            return
        try:
            _check_reachable(self.address or os.environ.get("RAY_ADDRESS", ""))
            ray.init(address=self.address or "auto", log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise SettingsError(
                f"cannot join a Ray cluster at {self.address or 'the default address'} ({error}): start one with "
                "`ray start --head`, or give its address; with token authentication, set RAY_AUTH_MODE and the token "
                "as on the cluster"
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()


@dataclass
class _Session:
    """One call of `run_all`: the runs still to submit and those on the cluster."""

    executor: RayExecutor
    ray: Any
    store: Store
    options: RunOptions
    on_event: OnEvent
    todo: dict[str, RunSettings]
    failures: dict[str, str]
    mark: str
    queue: deque[str] = field(default_factory=deque)
    tasks: dict[Any, str] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    claims: dict[str, Claim] = field(default_factory=dict)
    """Without a shared store the workers cannot claim runs: this process does, while they are on the cluster."""

    def work(self) -> None:
        executor, ray = self.executor, self.ray
        self.queue.extend(self.todo)
        self._note_if_no_node_fits()
        self.task = ray.remote(
            num_cpus=executor.cpus,
            num_gpus=executor.gpus,
            memory=int((executor.memory_gb or 0.0) * 2**30) or None,
            resources=dict(executor.resources) or None,
            max_retries=0,
        )(remote_run)
        here = ray.get_runtime_context().get_node_id()
        pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        self.mailbox = ray.remote(num_cpus=0, scheduling_strategy=pinned)(Mailbox).remote()
        try:
            while self.queue or self.tasks:
                while self.queue and len(self.tasks) < (executor.jobs or len(self.todo)):
                    self._submit(self.queue.popleft())
                ready, _ = ray.wait(list(self.tasks), timeout=POLL_SECONDS) if self.tasks else ([], [])
                self._read_mail()
                for reference in ready:
                    self._ended(self.tasks.pop(reference), reference)
        except KeyboardInterrupt:
            self._cancel()
            raise
        finally:
            for claim in self.claims.values():
                claim.__exit__(None, None, None)
            ray.kill(self.mailbox)

    def _submit(self, run: str) -> None:
        if not self.executor.shared and run not in self.claims:
            try:
                self.claims[run] = self.store.claim(run).__enter__()
            except ClaimedError as error:
                self.on_event(Event("elsewhere", run, self.todo[run], text=str(error)))
                return
        job = packed(Job(run, self.todo[run], self.store, self.options)) | {
            "mark": self.mark if self.executor.shared else "",
            "patience": PATIENCE if self.tries[run] else 0.0,
        }
        self.tries[run] += 1
        self.tasks[self.task.remote(job, self.mailbox)] = run

    def _read_mail(self) -> None:
        try:
            mail = self.ray.get(self.mailbox.take.remote(), timeout=10)
        except self.ray.exceptions.RayError:
            return
        for event in mail:
            run = event.pop("run")
            self.on_event(Event(event.pop("kind"), run, self.todo[run], **event))

    def _ended(self, run: str, reference: Any) -> None:
        errors = self.ray.exceptions
        try:
            report, files = self.ray.get(reference)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError, errors.TaskCancelledError) as error:
            report, files = Report("failed", str(error).strip().splitlines()[-1]), {}
        except errors.RayError as error:
            reason = str(error).strip().splitlines()[0]
            if self.tries[run] <= self.executor.retries:
                again = (
                    f"worker or node died, try {self.tries[run] + 1} of {1 + self.executor.retries}: {reason}"
                )
                self.on_event(Event("note", run, self.todo[run], text=again))
                self.queue.append(run)
                return
            report, files = Report("failed", f"its worker or node died {self.tries[run]} times: {reason}"), {}
        claim = self.claims.pop(run, None)
        if claim is not None:
            self._keep_returned(run, report, files, claim)
        if report.kind == "failed":
            self.failures[run] = report.text
        self.on_event(Event(report.kind, run, self.todo[run], text=report.text))

    def _keep_returned(self, run: str, report: Report, files: Mapping[str, bytes], claim: Claim) -> None:
        """Write what a node without the store sent; the record last, because it shows that everything is there."""
        with ExitStack() as stack:
            stack.push(claim.__exit__)
            for name in RETURNED_FILES:
                if name in files:
                    write_atomically(self.store.folder(run) / name, files[name])
            if "record.json" in files:
                self.store.keep_sources(run, self.todo[run].resolved())
                record = Record.from_json(files["record.json"], where=f"record of run {run}", run=run)
                self.store.write_record(record, check=claim.confirm)
                claim.finish()
            elif report.kind == "failed":
                self.store.write_failure(run, {"reason": report.text, "expected": True})

    def _note_if_no_node_fits(self) -> None:
        needs = self.executor.needs()
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0.0) >= amount for name, amount in needs.items()) for node in nodes):
            run = next(iter(self.todo))
            wanted = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
            text = f"no node of the cluster has {wanted}: waiting for one to join"
            self.on_event(Event("note", run, self.todo[run], text=text))

    def _cancel(self) -> None:
        """Interrupt all tasks: their claims are released, and their checkpoints stay."""
        for reference in self.tasks:
            self.ray.cancel(reference)
        self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=10)


class Mailbox:
    """Where runs leave their events: an actor next to the driver. Only the latest position is kept."""

    def __init__(self) -> None:
        self.latest: dict[str, dict[str, Any]] = {}
        self.others: list[dict[str, Any]] = []

    def put(self, event: dict[str, Any]) -> None:
        """Leave an event."""
        if event["kind"] == "progress":
            self.latest[event["run"]] = event
        else:
            self.others.append(event)

    def take(self) -> list[dict[str, Any]]:
        """Take all events."""
        found = [*self.others, *self.latest.values()]
        self.others, self.latest = [], {}
        return found


def remote_run(values: dict[str, Any], mailbox: Any) -> tuple[Report, dict[str, bytes]]:
    """The Ray task: one attempt at a run, on whichever node this is."""
    ray: Any = import_module("ray")
    node = ray.util.get_node_ip_address()
    last = [0.0]

    def tell(**event: Any) -> None:
        if event["kind"] == "progress" and time.monotonic() - last[0] >= POLL_SECONDS:
            last[0] = time.monotonic()
            mailbox.put.remote(event)

    work_where_the_caller_does(values)
    job = unpacked(values)
    mailbox.put.remote({"run": job.run, "kind": "started", "text": f"on {node}"})
    if values["mark"] and not Path(values["mark"]).exists():
        where = job.store.directory
        text = f"node {node} does not see the store {where}: share that folder, or set shared=false"
        return Report("failed", text), {}
    store = job.store if values["mark"] else Store(folder_of_node(values["store"]))
    report = attempt(job.settings, store, job.options, run=job.run, tell=tell, patience=values["patience"])
    if values["mark"]:
        return report, {}
    folder = store.folder(job.run)
    names = (*RETURNED_FILES, "record.json")
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    if report.kind in ("finished", "unsupported", "failed") and folder.exists():
        store.remove(job.run)
    return report, files


def folder_of_node(store: str) -> Path:
    """Where a node keeps unfinished runs of a store that it does not see: the same on every attempt."""
    owner = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"orthocl-ray-{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / hashlib.sha256(store.encode()).hexdigest()[:16]


def _check_reachable(address: str) -> None:
    """Reject a HOST:PORT where nothing answers: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def _mark(store: Store) -> Iterator[str]:
    """A file that only those who see this store can see."""
    store.directory.mkdir(parents=True, exist_ok=True)
    path = store.directory.absolute() / f".seen-{uuid.uuid4().hex}"
    path.touch()
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)
