"""Ranks of a real MPI job on the hosts of a cluster, without a job: mpiexec and guards on the head.

This process is the agent of all hosts.  It takes what the guards bring, and starts a program with
it on each rank's host.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster import NETWORK, Cluster

from holdfast.runtime.host import guard as guard_module
from holdfast.runtime.host.hosted_worker import WorkerLeft
from holdfast.runtime.host.launchers import LaunchLine, LaunchTerms, find_mpiexec
from holdfast.runtime.system import become
from holdfast.runtime.system.channel import Channel, Listener, to_message
from holdfast.runtime.system.connections import watch_strangers
from holdfast.runtime.system.processes import kill_tree

_GUARD = (sys.executable, "-I", "-S", str(Path(guard_module.__file__).resolve()))
_CAME_WITHIN_S = 60.0


class RanksOnHosts:
    """One launch; as a context manager it leaves no process behind."""

    def __init__(self, cluster: Cluster, hosts: Sequence[str], program: Sequence[str]) -> None:
        """Start a rank of ``program`` on each of ``hosts``; all write to ``output``."""
        self._directory = cluster.shared / "launch"
        self._directory.mkdir()
        self.output = self._directory / "output"
        self._guards: dict[int, Channel] = {}
        self.ranks: dict[int, subprocess.Popen[Any]] = {}
        agent = Listener(self._directory / "agent.sock")
        with self.output.open("ab") as output, contextlib.closing(agent):
            self._mpiexec = self._start(cluster, len(hosts), output)
            for _ in hosts:
                assert select.select([agent.fileno()], [], [], _CAME_WITHIN_S)[0], self.words()
                guard = agent.accept()
                assert guard is not None
                hello = guard.receive()
                assert hello is not None
                rank = int(hello["rank"])
                self._guards[rank] = guard
                self.ranks[rank] = cluster.popen(
                    hosts[rank],
                    program,
                    env={**os.environ, **hello["environment"]},
                    stdout=output,
                    stderr=output,
                )
        self._threads = [threading.Thread(target=self._tend, args=(rank,)) for rank in self.ranks]
        for thread in self._threads:
            thread.start()

    def words(self) -> str:
        """Return what ranks and mpiexec have written so far."""
        return self.output.read_text(errors="replace")

    def wait(self, within_s: float) -> list[int]:
        """Wait for the end of all ranks; return their codes in rank order."""
        return [self.ranks[rank].wait(within_s) for rank in sorted(self.ranks)]

    def __enter__(self) -> RanksOnHosts:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self.ranks.values():
            process.kill()
        for thread in self._threads:
            thread.join()
        kill_tree(self._mpiexec.pid)
        self._mpiexec.wait()

    def _start(self, cluster: Cluster, ranks: int, output: Any) -> subprocess.Popen[Any]:
        """Start mpiexec on the head, watched for strangers as in a job."""
        terms = LaunchTerms(NETWORK)
        line = LaunchLine(find_mpiexec(), ranks, self._directory, _GUARD, terms=terms)
        told = {"HOLDFAST_AGENT": str(self._directory / "agent.sock"), "HOLDFAST_GENERATION": "1"}
        shim = [sys.executable, "-I", "-S", str(become.__file__)]
        process = cluster.popen(
            cluster.head,
            [*shim, str(os.getpid()), *line.command()],
            env=line.environment(os.environ, **told),
            start_new_session=True,
            stdout=output,
            stderr=output,
        )
        watch_strangers(process.pid, ranks, lambda _: None)
        return process

    def _tend(self, rank: int) -> None:
        """Let the guard end as its rank does."""
        code = self.ranks[rank].wait()
        guard = self._guards.pop(rank, None)
        if guard is None:
            return
        if code == 0:
            guard.send(to_message(WorkerLeft()))
        guard.close()
