"""A Slurm of the tests' own: real daemons on the loopback interface, two nodes on this machine.

Nothing of the system's Slurm or MUNGE is used or changed: configuration, keys, sockets, logs and
ports are the cluster's own. Each node has one GPU by name (its device file is /dev/null).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from command import environment
from shell import ROOT
from waiting import HANG_SECONDS, wait_for

DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = ("node1", "node2")

# Slurm waits with a requeued job until the credential of its last step is void: 2 minutes by
# default, which cred_expire shortens. OverTimeLimit is for slow machines: a step that is warned of
# its time limit has five minutes more to save. Jobs that have ended are kept (MinJobAge). Their
# numbers are not those of another cluster: slurm/ray.sbatch makes a folder and a port of them.
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
FirstJobId={first_job}
MinJobAge=3600
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
OverTimeLimit=5
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {size}
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {size}
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SIZE = "CPUs=64 RealMemory=200000 Gres=gpu:1"

# The first attempt of a job step named in $FREEZE stops itself (SIGSTOP) in the middle of its work,
# where it forces its second file to the disk, and so stays there however long a test takes.
FREEZE = """
import os, signal, sys
if (
    os.environ.get("SLURM_JOB_NAME", "") in os.environ.get("FREEZE", "").split()
    and "SLURM_STEP_ID" in os.environ
    and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    and os.environ.get("SLURM_ARRAY_TASK_ID", "0") == "0"
    and {"worldmodels", "submitit.core._submit"} & set(sys.orig_argv)
):
    writes, fsync = [], os.fsync
    def freezing_fsync(descriptor):
        fsync(descriptor)
        writes.append(descriptor)
        if len(writes) == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
    os.fsync = freezing_fsync
"""


class Cluster:
    """The cluster, and a checkout of ``slurm/`` to submit from.

    Attributes:
        home: where commands run: a folder with ``slurm/`` and ``data/``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.daemons: list[subprocess.Popen[bytes]] = []
        (self.home / "data").mkdir(parents=True)
        shutil.copytree(ROOT / "slurm", self.home / "slurm")
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(FREEZE)
        paths = [str(folder / "site"), *(path for path in sys.path if path)]
        self.env = environment() | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONPATH": os.pathsep.join(paths),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
        }
        for name in [name for name in self.env if re.match(r"S(LURM|BATCH)_(?!CONF$)", name)]:
            del self.env[name]

    def run(self, *command: str, **variables: str) -> str:
        """The output of a command that succeeds."""
        done = subprocess.run(
            command,
            cwd=self.home,
            env=self.env | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            command,
            cwd=self.home,
            env=self.env | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, run: str, *overrides: str, freeze: str = "") -> dict[str, str]:
        """Queue the chain of a run; the number of each stage's job."""
        listed = self.run("slurm/submit.sh", run, *overrides, FREEZE=freeze)
        return {stage: job for job, stage in (line.split() for line in listed.splitlines())}

    def show(self, job: str) -> dict[str, str]:
        """The properties of a job."""
        words = self.run("scontrol", "show", "job", job, "--oneliner").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *states: str) -> None:
        """Wait until a job is in one of these states; fails when it ends in another."""
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}

        def there() -> bool:
            state = self.show(job)["JobState"]
            assert state in states or state not in ended, f"{state}: {self.logs()}"
            return state in states

        wait_for(there)

    def frozen(self, job: str) -> psutil.Process:
        """The program in a job step named in $FREEZE, once it has stopped itself."""
        found: list[psutil.Process] = []

        def stopped() -> bool:
            assert self.show(job)["JobState"] in ("PENDING", "CONFIGURING", "RUNNING"), self.logs()
            found[:] = [process for process in self.processes(job) if _is_stopped(process)]
            return bool(found)

        wait_for(stopped)
        return found[0]

    def processes(self, job: str) -> Iterator[psutil.Process]:
        """What runs in a job."""
        of_job = {"SLURM_JOB_ID": job, "SLURM_CONF": self.env["SLURM_CONF"]}
        for process in psutil.process_iter():
            try:
                if of_job.items() <= process.environ().items():
                    yield process
            except psutil.Error:
                continue  # it has ended, or it is another user's

    def logs(self) -> str:
        """The logs of all jobs."""
        paths = sorted(path for path in (self.home / "data").rglob("*.out") if path.is_file())
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in paths)

    def log(self, job: str) -> str:
        """The log of a job of ``slurm/submit.sh``."""
        [path] = (self.home / "data").glob(f"slurm-*-{job}.out")
        return path.read_text()


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def pending(process: psutil.Process, number: signal.Signals) -> bool:
    """Whether a signal waits for a process, such as one that is stopped."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    sets = re.findall(r"^(?:Sig|Shd)Pnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in sets)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start the daemons; end them and every job of theirs. Skips the test where they do not run."""
    for name in DAEMONS:
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            pytest.skip(f"there is no {name} (apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("only root can start a Slurm that runs jobs")
    made = Cluster(folder)
    _configure(folder)
    with ExitStack() as running:
        _start(running, made, "munged", *_munge_options(folder))
        wait_for((folder / "munge.socket").exists)
        _start(running, made, "slurmctld", "-D", "-i")
        for node in NODES:
            _start(running, made, "slurmd", "-D", "-N", node)
        _wait_until_idle(made)
        try:
            yield made
        finally:
            made.run("scancel", "--user=root")
            wait_for(lambda: not made.run("squeue", "--noheader"))


def _configure(folder: Path) -> None:
    host = socket.gethostname().split(".")[0]
    first_job = 1 + secrets.randbelow(1_000_000)
    text = CONFIGURATION.format(
        folder=folder, host=host, ports=_free_ports(3), first_job=first_job, size=SIZE
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(f"NodeName={','.join(NODES)} Name=gpu File=/dev/null\n")
    # Needed to start, although nothing is confined. Its default finds out which version there is.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    for name in ("state", *NODES):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def _free_ports(count: int) -> list[int]:
    """Ports that are free until the daemons take them: below those that Linux gives to sockets
    without one (32768), and below those of slurm/ray-node.sh (20000)."""
    found: list[int] = []
    with ExitStack() as bound:
        while len(found) < count:
            port = 10_000 + secrets.randbelow(10_000)
            with suppress(OSError):
                bound.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found


def _munge_options(folder: Path) -> list[str]:
    files = {"key-file": "key", "socket": "socket", "log-file": "log", "pid-file": "pid"}
    options = [f"--{name}={folder}/munge.{suffix}" for name, suffix in files.items()]
    return ["--foreground", "--force", f"--seed-file={folder}/munge.seed", *options]


def _start(running: ExitStack, made: Cluster, program: str, *options: str) -> None:
    with (made.folder / f"{program}{len(options)}.log").open("ab") as log:
        process = subprocess.Popen(
            [program, *options],
            cwd=made.folder,
            env=made.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    running.callback(process.wait, timeout=HANG_SECONDS)
    running.callback(process.terminate)
    made.daemons.append(process)


def _wait_until_idle(made: Cluster) -> None:
    def answer() -> bool:
        if any(process.poll() is not None for process in made.daemons):
            logs = "\n".join(path.read_text() for path in made.folder.glob("*.log"))
            pytest.skip(f"a daemon of Slurm does not run here: {logs}")
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%D %T"],
            env=made.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split() == [str(len(NODES)), "idle"]

    wait_for(answer)
