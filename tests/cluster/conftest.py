"""Real clusters on this machine's loopback addresses: two Ray nodes, and a Slurm controller with one node.

Everything a fixture starts carries a marker in its environment, and only processes with that marker are ended:
`ray stop` and `pkill` would end other people's.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

MARKER = "ORTHOCL_CLUSTER_TEST"


def marked(marker: str) -> list[int]:
    """Living processes that carry the marker in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not dead and f"{MARKER}={marker}".encode() in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(entry.name))
    return found


def end(marker: str, seconds: float = 20.0) -> None:
    """Kill every process with the marker, until there is none."""
    deadline = time.monotonic() + seconds
    while (alive := marked(marker)) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.2)


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


# ---- Ray --------------------------------------------------------------------------------------------------------


@dataclass
class RayNode:
    """One node of a Ray cluster: its processes can be killed as a power cut would."""

    address: str
    marker: str

    def kill(self) -> None:
        end(self.marker)


@dataclass
class RayCluster:
    head: RayNode
    worker: RayNode
    address: str


@pytest.fixture(scope="module")
def environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def ray_cluster(
    tmp_path_factory: pytest.TempPathFactory, environment: pytest.MonkeyPatch
) -> Iterator[RayCluster]:
    """Two nodes with one processor each, at 127.0.0.2 and 127.0.0.3, with token authentication."""
    if find_spec("ray") is None:  # not imported: Ray reads how to authenticate when it is
        pytest.skip("Ray is not installed: pip install 'orthocl[ray]'")
    if not Path("/proc/self/environ").exists():
        pytest.skip("the test tells its Ray processes apart by /proc, which this system does not have")
    folder = tmp_path_factory.mktemp("r", numbered=True)
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
    environment.setenv("RAY_AUTH_MODE", "token")
    environment.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    environment.setenv("OMP_NUM_THREADS", "1")
    try:
        port = free_port("127.0.0.2")
    except OSError as error:
        pytest.skip(f"127.0.0.2 is not a loopback address here ({error})")
    address = f"127.0.0.2:{port}"
    head = RayNode("127.0.0.2", secrets.token_hex(8))
    worker = RayNode("127.0.0.3", secrets.token_hex(8))
    try:
        # Ray's socket paths must stay below 108 characters, which pytest's own folders do not leave room for.
        sessions = Path(f"/tmp/oc{head.marker}")
        start_ray(head, ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sessions}"])
        start_ray(worker, [f"--address={address}"])
        yield RayCluster(head, worker, address)
    finally:
        import ray

        ray.shutdown()
        worker.kill()
        head.kill()
        shutil.rmtree(sessions, ignore_errors=True)


def start_ray(node: RayNode, arguments: list[str]) -> None:
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        f"--node-ip-address={node.address}",
        "--num-cpus=1",
        "--num-gpus=0",
        "--object-store-memory=80000000",
        "--disable-usage-stats",
        *arguments,
    ]
    done = subprocess.run(
        command,
        env={**os.environ, MARKER: node.marker},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ray start failed:\n{done.stdout}\n{done.stderr}")


# ---- Slurm ------------------------------------------------------------------------------------------------------

SLURM_CONF = """
ClusterName=orthocl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
KillWait=3
InactiveLimit=0
SchedulerParameters=sched_interval=2,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 CoresPerSocket=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
PartitionName=spare Nodes=ALL Default=NO MaxTime=60 State=UP
"""


@dataclass
class SlurmCluster:
    folder: Path

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout

    def log(self) -> str:
        return (self.folder / "slurmctld.log").read_text()


@pytest.fixture(scope="module")
def slurm_cluster(
    tmp_path_factory: pytest.TempPathFactory, environment: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """munged, slurmctld and slurmd with a configuration and state of their own."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'orthocl[slurm]'")
    environment.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    missing = [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch", "squeue") if shutil.which(name) is None
    ]
    if missing:
        pytest.skip(
            f"{', '.join(missing)} not installed: apt-get install slurmctld slurmd slurm-client munge"
        )
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs as their owner and so needs root")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    configuration = folder / "slurm.conf"
    ports = {"controller": free_port("127.0.0.1"), "daemon": free_port("127.0.0.1")}
    host = socket.gethostname().split(".")[0]
    configuration.write_text(SLURM_CONF.format(host=host, user="root", folder=folder, **ports))
    environment.setenv("SLURM_CONF", str(configuration))
    marker = secrets.token_hex(8)
    variables = {**os.environ, MARKER: marker}
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        log = open(folder / f"{command[0]}.out", "wb")  # noqa: SIM115  # closed with the process
        processes.append(
            subprocess.Popen(command, stdout=log, stderr=log, env=variables, start_new_session=True)
        )

    try:
        start_munge(folder, start)
        start("slurmctld", "-D", "-f", str(configuration))
        start("slurmd", "-D", "-f", str(configuration))
        cluster = SlurmCluster(folder)
        wait_for(
            lambda: "idle" in cluster.ask("sinfo", "-h", "-p", "main", "-o", "%T"), 40, "an idle Slurm node"
        )
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        end(marker)


def start_munge(folder: Path, start: Callable[..., None]) -> None:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    start(
        "munged",
        "--foreground",
        "--force",  # pytest's folders are writable by their owner only, which munge would rather see for itself
        f"--key-file={key}",
        f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munged.pid",
        f"--log-file={folder}/munged.log",
        f"--seed-file={folder}/munged.seed",
    )
    wait_for(lambda: (folder / "munge.socket").exists(), 20, "the munge socket")
