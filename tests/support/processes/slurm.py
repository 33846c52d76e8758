"""A private Slurm cluster on one machine: munged, slurmctld and slurmd, started and stopped here.

Keys, states and logs lie in one temporary directory.  Slurm's daemons want to be root.  There are
two sites:

* one node on free ports of the loopback, whose daemons and their orphans are the children of a
  keeper (`slurm_keeper.py`).  The keeper ends them when this process lets go of it or dies;
* a node on each host of a test cluster but the head.  There is the controller, and commands run
  there, as on the login node of a site.  What daemons have for themselves lies in the ``/run`` of
  their host: the path of a step's socket has 108 characters at most, and pytest's are longer.
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
from typing import Any

import psutil
from cluster import Cluster

_DAEMONS = ("munged", "slurmctld", "slurmd")
_PROGRAMS = (*_DAEMONS, "sbatch", "scontrol", "squeue", "srun", "scancel")
_WITHIN_S = 240.0
_EMPTY_WITHIN_S = 90.0
_LOOK_S = 0.2
_MUNGE_OF_HOST = "/run/munge.socket"
_KEEPER = Path(__file__).resolve().parent / "slurm_keeper.py"

_CONFIGURATION = """\
ClusterName=holdfast
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
SlurmdTimeout={lost_after_s}
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={own}/slurmd.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={own}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
CommunicationParameters=NoAddrCache
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={directory}/prolog
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
{nodes}
PartitionName=work Nodes=ALL Default=YES MaxTime=2-0 State=UP OverSubscribe=NO PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=2-0 State=UP OverSubscribe=NO PriorityTier=9 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Return the reason why no cluster can be started here, None if one can."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started as root only"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [program for program in _PROGRAMS if shutil.which(program, path=path) is None]
    return f"{', '.join(missing)} is not installed" if missing else None


class SlurmCluster:
    """A cluster whose nodes have as many cores as jobs may ask for: one node, or several."""

    def __init__(self, directory: Path, cores: int = 8, hosts: Cluster | None = None) -> None:
        self.directory = directory
        self._hosts = hosts
        self._lost: set[str] = set()
        self._clean = {
            "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
            "SLURM_CONF": str(directory / "slurm.conf"),
            "TMPDIR": str(directory) if hosts is None else "/tmp",
            "HOME": os.environ.get("HOME", "/"),
        }
        self._configure(cores)

    def start(self) -> None:
        """Start the daemons, and wait until all nodes take jobs."""
        if self._hosts is None:
            self._start_keeper()
        else:
            self._hosts.at_start(self._start_node)
        self._wait_for_nodes()

    def _wait_for_nodes(self) -> None:
        nodes = 1 if self._hosts is None else len(self.nodes)
        shown = ("sinfo", "-h", "-N", "-p", "work", "-o", "%T")
        self.wait(lambda: self._try(*shown).split() == ["idle"] * nodes, "idle nodes")

    def _start_keeper(self) -> None:
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

    def _start_node(self, host: str) -> None:
        """Start the daemons of a host, which stay behind as daemons do."""
        assert self._hosts is not None
        files = [f"--{name}-file=/run/munged.{name}" for name in ("pid", "seed")]
        files += [f"--log-file={self.directory}/munged.{host}.log"]
        key = [f"--socket={_MUNGE_OF_HOST}", f"--key-file={self.directory}/munge.key"]
        daemon = ["slurmctld", "-c"] if host == self._hosts.head else ["slurmd", "-c", "-N", host]
        for line in (["munged", "--force", *key, *files], daemon):
            self._hosts.run(host, line, env=self._clean)

    @property
    def shared(self) -> Path:
        """The folder that all hosts see."""
        assert self._hosts is not None
        return self._hosts.shared

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts that take jobs, on a site of several."""
        assert self._hosts is not None
        return self._hosts.names[1:]

    def lose(self, node: str) -> None:
        """Take the power from a node: nobody is told."""
        assert self._hosts is not None
        self._lost.add(node)
        self._hosts.kill(node, silently=True)

    def bring_back(self, node: str) -> None:
        """Start a lost node again."""
        assert self._hosts is not None
        self._hosts.restart(node)
        self._lost.discard(node)

    def clear(self) -> dict[str, list[str]]:
        """End all jobs and bring lost nodes back; return what the jobs have left on each host.

        A step that Slurm still knows stands beside the processes, files and listening sockets of
        the hosts that live.
        """
        assert self._hosts is not None
        self.call("scancel", "--user=root")
        self.wait(lambda: not self.call("squeue", "-h"), "end of all jobs")
        steps = self.call("squeue", "-h", "--steps", "-o", "%i").split()
        left = {"steps": steps} if steps else {}
        for host in self._hosts.names:
            if host not in self._lost:
                found = self._hosts.wait_empty(host, within_s=_EMPTY_WITHIN_S)
                left |= {host: found} if found else {}
                listening = [str(one) for one in self._hosts.listening(host)]
                left |= {f"{host} listens": listening} if listening else {}
        for host in sorted(self._lost):
            self.bring_back(host)
        self._wait_for_nodes()
        return left

    @property
    def keeper(self) -> int:
        """The number of the process that keeps the daemons."""
        return self._keeper.pid

    def stop(self) -> None:
        """End all jobs, and then the daemons."""
        with contextlib.suppress(subprocess.SubprocessError, TimeoutError):
            self.call("scancel", "--user=root")
            self.wait(lambda: not self.call("squeue", "-h"), "end of all jobs")
        if self._hosts is not None:
            return  # the daemons end with the hosts
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(_WITHIN_S)

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need beside the test's own environment."""
        return {"SLURM_CONF": self._clean["SLURM_CONF"], "PATH": self._clean["PATH"]}

    def call(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Return what a command of Slurm says; raises if it fails."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self.popen(*command, env=env, **pipes) as process:
            try:
                out, err = process.communicate(timeout=60)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise subprocess.SubprocessError(f"{command}: {process.returncode} {err}")
        return str(out).strip()

    def popen(
        self, *command: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command of Slurm, such as an ``salloc`` that stays; with hosts, on the head."""
        environment = self._clean if env is None else {**os.environ, **self.environment, **env}
        if self._hosts is not None:
            return self._hosts.popen(self._hosts.head, command, env=environment, **options)
        return subprocess.Popen(command, env=environment, **options)

    def facts(self, job: int) -> dict[str, str]:
        """Return what the controller knows of a job."""
        words = self.call("scontrol", "show", "job", str(job), "-o").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def has_steps(self, job: int) -> bool:
        """Return whether a step of a job, or its batch script, has not ended yet."""
        if self._hosts is None:
            found = psutil.Process(self.keeper).children(recursive=True)
        else:
            found = [process for process in psutil.process_iter() if self._hosts.has(process.pid)]
        for process in found:
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
            time.sleep(_LOOK_S)

    def wait_for_state(self, job: int, *states: str, within_s: float = _WITHIN_S) -> str:
        """Return the state of a job once it is one of these."""
        self.wait(lambda: self.facts(job)["JobState"] in states, f"{states} of {job}", within_s)
        return self.facts(job)["JobState"]

    def _configure(self, cores: int) -> None:
        at = self.directory
        (at / "state").mkdir()
        key = at / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        prolog = at / "prolog"
        prolog.write_text('#!/bin/sh\n[ -z "$GREETING" ] || echo print "$GREETING"\n')
        prolog.chmod(0o755)
        terms = f"CPUs={cores} State=UNKNOWN"
        if self._hosts is None:
            name = os.uname().nodename
            lost_after_s = 300  # Slurm's own
            port, node = _free_ports(2)
            own = str(at)
            controller, munge = f"{name}(127.0.0.1)", str(at / "munge.socket")
            nodes = [f"NodeName=n1 NodeHostname={name} NodeAddr=127.0.0.1 Port={node} {terms}"]
        else:
            lost_after_s = 20
            port, munge, own = 6817, _MUNGE_OF_HOST, "/run"
            controller = f"{self._hosts.head}({self._hosts.address(self._hosts.head)})"
            nodes = [
                f"NodeName={name} NodeAddr={self._hosts.address(name)} {terms}"
                for name in self.nodes
            ]
        text = _CONFIGURATION.format(
            controller=controller,
            port=port,
            lost_after_s=lost_after_s,
            munge=munge,
            directory=at,
            own=own,
            nodes="\n".join(nodes),
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
