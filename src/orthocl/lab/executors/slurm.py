"""SlurmExecutor: the same runs as job arrays of a Slurm cluster.

submitit writes the batch script and hands it to `sbatch`. Results are not taken from submitit's own pickled files but
from the store, which must be on a file system that the compute nodes see, and the states of jobs from `squeue`:
submitit asks `sacct`, which fails on clusters without accounting.

A run that nears its time limit writes a checkpoint and puts its job back into the queue, to resume later. It watches
the time itself: Slurm's warning signal comes up to a minute early, which for limits below ten minutes can mean at once.
The time limit thus applies to a slice of a run, not to the run; between slices Slurm holds a job back for two minutes.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from orthocl.errors import OrthoclError, SettingsError
from orthocl.formatting import counted
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
    report_on,
    unpacked,
    work_where_the_caller_does,
)
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunOptions
from orthocl.lab.store.run_lock import alive_claim, describe
from orthocl.lab.store.store import Store

WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
ACTIVE = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}


@dataclass(frozen=True)
class SlurmExecutor:
    """Executes runs as jobs of the Slurm cluster that this machine can submit to. The store must be shared with it.

    Args:
        jobs: runs at a time at most; 0 for no limit but the cluster's.
        minutes: time limit of a job; a longer run continues in further slices.
        slice_minutes: time after which a run writes a checkpoint and its job goes back into the queue, to let others
            have a turn; by default a little less than `minutes`.
        memory_gb: memory of a job; the cluster's default by default.
        cpus: processors per run, and also its number of threads.
        gpus: graphics processors per run.
        partition: of the cluster; its default by default.
        account: to charge.
        qos: quality of service.
        constraint: features that nodes must have.
        setup: shell commands to execute before the run, such as "module load python".
        parameters: further options of sbatch by their long names, such as {"exclude": "node7"}.
        retries: how often a run is tried again when its job ends without a result.
        array_size: jobs per array at most: the cluster's MaxArraySize less one.
        poll_seconds: time between checks of the queue.
        wait: whether to wait for the runs; otherwise they are submitted, and the same call later reports on them.
    """

    jobs: int = 0
    minutes: int = 60
    slice_minutes: float | None = None
    memory_gb: float | None = None
    cpus: int = 1
    gpus: int = 0
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    setup: Sequence[str] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    retries: int = 3
    array_size: int = 1000
    poll_seconds: float = 5.0
    wait: bool = True

    def __post_init__(self) -> None:
        check_positive(minutes=self.minutes, memory_gb=self.memory_gb, cpus=self.cpus)
        check_positive(
            slice_minutes=self.slice_minutes, array_size=self.array_size, poll_seconds=self.poll_seconds
        )
        check_not_negative(jobs=self.jobs, gpus=self.gpus, retries=self.retries)
        if find_spec("submitit") is None:
            raise SettingsError("the slurm backend needs the package submitit: pip install 'orthocl[slurm]'")

    def run_all(
        self, runs: Sequence[RunSettings], store: Store, *, options: RunOptions, on_event: OnEvent
    ) -> list[Outcome]:
        """Execute all runs that have no record yet. One outcome per run, in order; failures do not stop it."""
        missing = [name for name in ("sbatch", "squeue", "srun") if shutil.which(name) is None]
        if missing:
            raise SettingsError(
                f"{missing[0]} is not on this machine: submit from a login node of the Slurm cluster"
            )
        ids, todo = pending(runs, store, options, on_event)
        failures: dict[str, str] = {}
        if todo:
            options = replace(options, threads=options.threads or self.cpus)
            session = _Session(self, store, options, on_event, todo, failures)
            session.work()
        return gather(ids, runs, store, todo, failures)

    def sbatch(self) -> dict[str, Any]:
        """The parameters of a job, by submitit's names."""
        chosen = {
            "time": self.minutes,
            "mem": None if self.memory_gb is None else f"{math.ceil(1024 * self.memory_gb)}M",
            "cpus_per_task": self.cpus,
            "gpus_per_node": self.gpus or None,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "setup": list(self.setup) or None,
            "additional_parameters": {"requeue": True, **self.parameters},
            "array_parallelism": self.jobs or self.array_size,
            "job_name": "orthocl",
            "wckey": "orthocl",
            "use_srun": False,
        }
        return {name: value for name, value in chosen.items() if value is not None}


@dataclass
class _Session:
    """One call of `run_all`: the runs still to submit, and the jobs in the queue of the cluster."""

    executor: SlurmExecutor
    store: Store
    options: RunOptions
    on_event: OnEvent
    todo: dict[str, RunSettings]
    failures: dict[str, str]
    jobs: dict[str, str] = field(default_factory=dict)
    """Job id -> run."""
    tries: Counter[str] = field(default_factory=Counter)
    started: set[str] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)
    suspects: set[str] = field(default_factory=set)

    def work(self) -> None:
        waiting = list(self.todo)
        try:
            while waiting or self.jobs:
                if not self.jobs:  # one array at a time, because the limit of runs at a time is an array's
                    wave, waiting = waiting[: self.executor.array_size], waiting[self.executor.array_size :]
                    self._submit(wave)
                if self.executor.wait:
                    time.sleep(self.executor.poll_seconds)
                    waiting = self._look() + waiting
                else:
                    self.jobs.clear()
        except KeyboardInterrupt:
            subprocess.run(["scancel", *sorted({job.split("_")[0] for job in self.jobs})], check=False)
            raise

    def _submit(self, runs: Sequence[str]) -> None:
        submitit = import_module("submitit")
        folder = self.store.directory.absolute() / "slurm"
        executor = submitit.SlurmExecutor(folder)
        executor.update_parameters(**self.executor.sbatch())
        jobs = []
        for run in runs:
            jobs.append(
                packed(Job(run, self.todo[run], self.store, self.options))
                | {
                    "minutes": self.executor.slice_minutes or self.executor.minutes,
                    "patience": PATIENCE if self.tries[run] else 0.0,
                }
            )
            self.tries[run] += 1
        try:
            submitted = executor.map_array(slurm_run, jobs)
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            raise OrthoclError(f"Slurm refused the jobs: {str(error).strip()}") from error
        self.jobs = {str(job.job_id): run for job, run in zip(submitted, runs, strict=True)}
        for job, run in self.jobs.items():
            self.on_event(Event("note", run, self.todo[run], text=f"submitted as Slurm job {job}"))

    def _look(self) -> list[str]:
        """Look at the queue and at the store; the runs to be submitted again."""
        states = job_states({job.split("_")[0] for job in self.jobs})
        again = []
        for job, run in list(self.jobs.items()):
            state = states.get(job, "GONE")
            record = self.store.record(run)
            if record is not None:
                self._announce(run)
                self.on_event(Event(record.status, run, self.todo[run], text=record.reason))
            elif state in WAITING:
                continue
            elif state in ACTIVE:
                self._announce(run)
                self._progress(run)
                continue
            elif job not in self.suspects:  # a shared file system may show the record a little later
                self.suspects.add(job)
                continue
            elif self._ended_without_record(job, run, state):
                again.append(run)
            del self.jobs[job]
        return again

    def _ended_without_record(self, job: str, run: str, state: str) -> bool:
        """Whether to try again."""
        settings, failure = self.todo[run], self.store.failure(run)
        owner = alive_claim(self.store.folder(run))
        if failure is not None:
            self._fail(run, str(failure["reason"]))
        elif owner is not None:
            self.on_event(Event("elsewhere", run, settings, text=f"being executed by {describe(owner)}"))
        elif state.startswith("CANCELLED"):
            self.on_event(Event("interrupted", run, settings, text=f"Slurm job {job} was cancelled"))
        elif 0 < (self.options.pause_after or 0) <= len(self.store.progress(run)[1:]):
            text = f"paused after {counted(self.options.pause_after or 0, 'task')}"
            self.on_event(Event("paused", run, settings, text=text))
        elif self.tries[run] <= self.executor.retries:
            text = f"Slurm job {job} ended as {state} without a result, try {self.tries[run] + 1}"
            self.on_event(Event("note", run, settings, text=f"{text} of {1 + self.executor.retries}"))
            return True
        else:
            logs = self.store.directory / "slurm"
            self._fail(
                run,
                f"Slurm job {job} ended as {state}, the last of {self.tries[run]} tries: see {logs}/{job}*",
            )
        return False

    def _fail(self, run: str, reason: str) -> None:
        self.failures[run] = reason
        self.on_event(Event("failed", run, self.todo[run], text=reason))

    def _announce(self, run: str) -> None:
        if run not in self.started:
            self.started.add(run)
            self.on_event(Event("started", run, self.todo[run]))

    def _progress(self, run: str) -> None:
        """Report how many tasks are learnt, if that has changed."""
        rows = self.store.progress(run)[1:]
        tasks = self.todo[run].resolved().stream.tasks or 0
        if rows and len(rows) > self.seen.get(run, 0):
            self.seen[run] = learnt = len(rows)
            accuracy = sum(rows[-1][:learnt]) / learnt
            event = Event("progress", run, self.todo[run], min(learnt + 1, tasks), tasks, accuracy=accuracy)
            self.on_event(event)


def job_states(jobs: Iterable[str]) -> dict[str, str]:
    """State of every job and array element that Slurm still knows of."""
    done = subprocess.run(
        [
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            "--format=%i %T",
            f"--jobs={','.join(sorted(jobs))}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "Invalid job id" not in done.stderr:
        raise OrthoclError(f"squeue failed: {done.stderr.strip() or done.returncode}")
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)


def slurm_run(values: dict[str, Any]) -> str:
    """The job: one slice of a run, on whichever node this is."""
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    slice_ = Slice(values["minutes"])
    work_where_the_caller_does(values)
    try:
        job = unpacked(values)
        report = attempt(
            job.settings,
            job.store,
            job.options,
            run=job.run,
            stop=lambda: terminated.is_set() or slice_.over(),
            patience=values["patience"],
        )
    except Exception as error:
        report = report_on(error)
    print(f"{report.kind}: {report.text}\n{report.trace}", flush=True)
    if report.kind == "failed":
        _note_failure(values, report)
    if report.kind == "interrupted" and slice_.over() and not terminated.is_set():
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
    return report.kind


def _note_failure(values: dict[str, Any], report: Report) -> None:
    """Note in the store, where the caller looks for it, what failed before the run itself could note it."""
    store, run = Store(values["store"]), values["run"]
    if store.failure(run) is None:
        store.folder(run).mkdir(parents=True, exist_ok=True)
        store.write_failure(run, {"reason": report.text, "expected": not report.trace})


@dataclass
class Slice:
    """The time of one job.

    It counts from the first question, which training asks: if starting takes as long as a whole slice, the run still
    makes progress in each.

    Args:
        minutes: length.
    """

    minutes: float
    end: float | None = field(default=None, init=False)

    def over(self) -> bool:
        """Whether it is time to stop."""
        if self.end is None:
            self.end = end_of_slice(self.minutes)
            return False
        return time.time() > self.end


def end_of_slice(minutes: float) -> float:
    """When, by this machine's clock, a job should stop cleanly: a fifth of its time or a minute before the end.

    >>> 0 < end_of_slice(60) - time.time() <= 59 * 60
    True
    """
    whole = 60.0 * minutes
    end = float(os.environ.get("SLURM_JOB_END_TIME", math.inf))
    return min(end, time.time() + whole) - min(60.0, 0.2 * whole)
