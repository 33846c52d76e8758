"""Jobs over the hosts of a test cluster: started on the head, struck anywhere, and looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path

import psutil
from cluster import NETWORK, WITHIN_S, Cluster
from remote_shell import SESSION
from striker import SIGNALS, Kind, Target, find_victims

from holdfast.runtime.commands.summary import summarize
from holdfast.runtime.run.entries import entries_of
from holdfast.runtime.run.journal import JournalReader, Record, read_journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.testing import JobRequest, JobRun

TIMEOUT_S = 240.0
_LOOK_S = 0.02


class Loss(Enum):
    """A way in which a job loses something of a host that is not the head."""

    KILL = "kill"
    POWER = "power"
    CUT = "cut"
    DEAF = "deaf"
    MUTE = "mute"
    FREEZE = "freeze"
    AGENT_KILLED = "agent-killed"
    AGENT_STOPPED = "agent-stopped"
    SHELL_KILLED = "shell-killed"
    SHELL_LATE = "shell-late"
    """Its end here is noticed there when the host's lease has ended, as by srun."""
    WATCHDOG_KILLED = "watchdog-killed"
    WORKER_KILLED = "worker-killed"
    WORKER_STOPPED = "worker-stopped"

    @property
    def takes_host(self) -> bool:
        """Whether the job loses all workers of the host."""
        return self not in {Loss.WATCHDOG_KILLED, Loss.WORKER_KILLED, Loss.WORKER_STOPPED}


_OF_PROCESS = {
    Loss.AGENT_KILLED: (Kind.KILL, Target.HOST_AGENT),
    Loss.AGENT_STOPPED: (Kind.STOP, Target.HOST_AGENT),
    Loss.WATCHDOG_KILLED: (Kind.KILL, Target.WATCHDOG),
    Loss.WORKER_KILLED: (Kind.KILL, Target.WORKER),
    Loss.WORKER_STOPPED: (Kind.STOP, Target.WORKER),
}


def assert_whole(job: JobRun, sha256: str) -> None:
    """Fail unless a job has ended well with this digest, and has left nothing behind."""
    assert job.exit_code == 0, job.stderr
    assert job.sha256 == sha256, job.stderr
    assert all(epoch.exact for epoch in job.report.epochs)
    assert "Traceback" not in job.stderr
    assert job.leftovers == ()


class HostJob:
    """A job that was started on the head; as a context manager it ends with the block."""

    def __init__(
        self,
        cluster: Cluster,
        request: JobRequest,
        hosts: str,
        *,
        rsh: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Start a job on hosts as ``--hosts`` names them; all must see its run directory."""
        self._cluster = cluster
        self._deadline = time.monotonic() + timeout_s
        self._directory = RunDirectory(Path(request.run_dir))
        self._lost: set[str] = set()
        words = ["--hosts", hosts, "--rsh", rsh or cluster.rsh, "--network", NETWORK]
        request = replace(request, options=[*words, *request.options])
        with self._path("stdout").open("ab") as out, self._path("stderr").open("ab") as err:
            self._process = cluster.popen(
                cluster.head,
                request.command(),
                env={**os.environ, **request.environment},
                cwd=cluster.shared,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def journal(self) -> list[Record]:
        """The records in the journal by now."""
        try:
            return read_journal(self._directory.journal_path)
        except OSError:
            return []

    def wait_for(self, event: str, **fields: object) -> Record:
        """Wait until the journal holds a record of ``event`` with these fields; return it."""

        new, found = JournalReader(self._directory.journal_path), list[Record]()

        def is_found() -> bool:
            with contextlib.suppress(OSError):
                found.extend(
                    record
                    for record in new.read()
                    if record["event"] == event and fields.items() <= record.items()
                )
            return bool(found)

        self.wait_until(is_found, f"{event} {fields} in the journal")
        return found[0]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is so; raises ``TimeoutError`` if the job ends before, or hangs."""
        while True:
            has_ended = self._process.poll() is not None
            if is_so():
                return
            if has_ended or time.monotonic() > self._deadline:
                raise TimeoutError(f"no {what}; {self._story()}")
            time.sleep(_LOOK_S)

    @property
    def has_ended(self) -> bool:
        """Whether the client has ended."""
        return self._process.poll() is not None

    def signal(self, number: int) -> None:
        """Send the client a signal."""
        self._process.send_signal(number)

    def workers(self, host: str) -> list[int]:
        """Return the workers' processes on a host."""
        return self._victims(host, Target.WORKER)

    def kill_head(self) -> None:
        """Kill the head alone; its client and its host live on."""
        os.kill(self._victims(self._cluster.head, Target.AGENT)[0], signal.SIGKILL)

    def strike(self, loss: Loss, host: str) -> None:
        """Lose a host, or what the loss names of it."""
        cluster = self._cluster
        match loss:
            case Loss.KILL | Loss.POWER:
                self._lost.add(host)
                cluster.kill(host, silently=loss is Loss.POWER)
            case Loss.CUT:
                cluster.cut(host)
            case Loss.DEAF:
                cluster.deafen(host)
            case Loss.MUTE:
                cluster.mute(host)
            case Loss.FREEZE:
                cluster.freeze(host)
            case Loss.SHELL_KILLED:
                os.kill(self._shell(host), signal.SIGKILL)
            case Loss.SHELL_LATE:
                os.kill(self._session(host), signal.SIGSTOP)
                os.kill(self._shell(host), signal.SIGKILL)
            case _:
                kind, target = _OF_PROCESS[loss]
                os.kill(self._victims(host, target)[0], SIGNALS[kind])

    def undo(self, loss: Loss, host: str) -> None:
        """Bring back what was lost of a host, as far as it comes back."""
        match loss:
            case Loss.KILL | Loss.POWER:
                self._cluster.restart(host)
                self._lost.discard(host)
            case Loss.CUT | Loss.DEAF | Loss.MUTE:
                self._cluster.heal(host)
            case Loss.FREEZE:
                self._cluster.thaw(host)

    def wait_end(self) -> int:
        """Wait until the client has ended; return its exit code."""
        try:
            return self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job did not end; {self._story()}") from None

    def wait(self) -> JobRun:
        """Wait until the client has ended, and nothing of the job is left on any living host."""
        exit_code = self.wait_end()
        journal = self.journal
        return JobRun(
            exit_code=exit_code,
            stdout=self._path("stdout").read_text(errors="replace"),
            stderr=self._path("stderr").read_text(errors="replace"),
            journal=tuple(journal),
            report=summarize(entries_of(journal)),
            leftovers=tuple(
                f"on {host}: {what}"
                for host in self._cluster.names
                if host not in self._lost
                for what in self._cluster.wait_empty(host, WITHIN_S)
            ),
        )

    def close(self) -> None:
        """Kill the client; the rest ends with the cluster."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> HostJob:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _victims(self, host: str, target: Target) -> list[int]:
        lines = self._cluster.processes(host)
        names = {pid: line.partition(":")[0] for pid, line in lines.items()}
        return find_victims(target, names)

    def _shell(self, host: str) -> int:
        """Return the process of the remote shell to a host that the head's agent talks through."""
        found = [
            pid
            for pid, line in self._cluster.processes(self._cluster.head).items()
            if f" {host} " in line and ("remote_shell.py" in line or line.startswith("ssh:"))
        ]
        (pid,) = found
        return pid

    def _session(self, host: str) -> int:
        """Return the process on a host that serves the shell of its agent."""
        (agent,) = self._victims(host, Target.HOST_AGENT)
        above = psutil.Process(agent).parents()
        return next(found.pid for found in above if found.name().startswith((SESSION, "sshd")))

    def _path(self, name: str) -> Path:
        return self._cluster.directory / f"job.{name}"

    def _story(self) -> str:
        alive = {host: self._cluster.processes(host) for host in self._cluster.names}
        records = "\n".join(str(record) for record in self.journal[-5:])
        stderr = self._path("stderr").read_text(errors="replace")
        return (
            f"alive: {alive}; the end of its stderr:\n{stderr[-3000:]}\n"
            f"the end of its journal:\n{records}"
        )
