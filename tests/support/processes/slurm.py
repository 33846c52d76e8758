"""A private Slurm cluster on one machine: munged, slurmctld and slurmd, started and stopped here.

Everything lies in one temporary directory: keys, sockets, states, logs.  Ports are free
ones of the loopback.  A keeper (`slurm_keeper.py`) is the parent of all daemons
and their orphans, and ends them when this process lets go of it or dies.  Slurm's daemons
want to be root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

_DAEMONS = ("munged", "slurmctld", "slurmd")
_PROGRAMS = (*_DAEMONS, "sbatch", "scontrol", "squeue", "srun", "scancel")
_WITHIN_S = 60.0
_KEEPER = Path(__file__).resolve().parent / "slurm_keeper.py"

_CONFIGURATION = """\
ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
CommunicationParameters=NoAddrCache
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
MinJobAge=600
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs={cores} State=UNKNOWN
PartitionName=work Nodes=n1 Default=YES MaxTime=60 State=UP OverSubscribe=NO PriorityTier=1
PartitionName=urgent Nodes=n1 MaxTime=60 State=UP OverSubscribe=NO PriorityTier=9 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Return the reason why no cluster can be started here, None if one can."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started as root only"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [program for program in _PROGRAMS if shutil.which(program, path=path) is None]
    return f"{', '.join(missing)} is not installed" if missing else None


class SlurmCluster:
    """A cluster of one node with as many cores as jobs may ask for."""

    def __init__(self, directory: Path, cores: int = 8) -> None:
        self.directory = directory
        self._clean = {
            "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
            "SLURM_CONF": str(directory / "slurm.conf"),
            "TMPDIR": str(directory),
            "HOME": os.environ.get("HOME", "/"),
        }
        self._configure(cores)

    def start(self) -> None:
        """Start the daemons, and wait until the node takes jobs."""
        with (self.directory / "daemons.log").open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, str(_KEEPER), str(self.directory)],
                env=self._clean,
                cwd=self.directory,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait(lambda: "idle" in self._try("sinfo", "-h", "-o", "%T"), "an idle node")

    @property
    def keeper(self) -> int:
        """The number of the process that keeps the daemons."""
        return self._keeper.pid

    def stop(self) -> None:
        """End all jobs, and then the daemons."""
        with contextlib.suppress(subprocess.SubprocessError, TimeoutError):
            self.call("scancel", "--user=root")
            self.wait(lambda: not self.call("squeue", "-h"), "end of all jobs")
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(_WITHIN_S)

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need beside the test's own environment."""
        return {"SLURM_CONF": self._clean["SLURM_CONF"], "PATH": self._clean["PATH"]}

    def call(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Return what a command of Slurm says; raises if it fails."""
        environment = self._clean if env is None else {**os.environ, **self.environment, **env}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise subprocess.SubprocessError(f"{command}: {done.returncode} {done.stderr}")
        return done.stdout.strip()

    def facts(self, job: int) -> dict[str, str]:
        """Return what the controller knows of a job."""
        words = self.call("scontrol", "show", "job", str(job), "-o").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def has_steps(self, job: int) -> bool:
        """Return whether a step of a job, or its batch script, has not ended yet."""
        for process in psutil.Process(self.keeper).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if " ".join(process.cmdline()).startswith(f"slurmstepd: [{job}."):
                    return True
        return False

    def wait(self, is_so: Callable[[], bool], what: str, within_s: float = _WITHIN_S) -> None:
        """Look again and again until something is so: the controller tells nobody."""
        until = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > until:
                raise TimeoutError(f"no {what} within {within_s:.0f} s; {self._logs()}")
            time.sleep(0.1)

    def wait_for_state(self, job: int, *states: str, within_s: float = _WITHIN_S) -> str:
        """Return the state of a job once it is one of these."""
        self.wait(lambda: self.facts(job)["JobState"] in states, f"{states} of {job}", within_s)
        return self.facts(job)["JobState"]

    def _configure(self, cores: int) -> None:
        at = self.directory
        for name in ("state", "spool"):
            (at / name).mkdir()
        key = at / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        controller, node = _free_ports(2)
        text = _CONFIGURATION.format(
            host=os.uname().nodename, controller=controller, node=node, directory=at, cores=cores
        )
        (at / "slurm.conf").write_text(text)

    def _try(self, *command: str) -> str:
        try:
            return self.call(*command)
        except subprocess.SubprocessError:
            return ""

    def _logs(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)


@contextlib.contextmanager
def running_cluster() -> Iterator[SlurmCluster]:
    """A cluster for as long as the block lasts."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-slurm-", dir="/tmp"))
    directory.chmod(0o755)
    cluster = SlurmCluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
