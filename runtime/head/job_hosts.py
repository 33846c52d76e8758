"""The other hosts of a job: started, tried again when they were lost, and given their workers.

`recovery.host_roster` says which of them take workers, and when a lost one is tried again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.recovery.host_roster import HostRoster
from holdfast.recovery.placement import place_workers, total_slots
from holdfast.runtime.head.job import Job
from holdfast.runtime.host.__main__ import DEFAULT_ENTRY
from holdfast.runtime.host.agent import Agent
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.witnessed_time import witnessed_s


class JobHosts:
    """Starts the other hosts of a job, and places workers on those that take some."""

    def __init__(self, job: Job, agent: Agent, tell: Callable[[Message], None]) -> None:
        """Take the way to tell that a host is back."""
        self._job = job
        self._agent = agent
        self._tell = tell
        self._roster = HostRoster(job.hosts, job.losses)

    def place(self, count: int) -> tuple[str, ...]:
        """Start the hosts that are due, and return the host of each of ``count`` workers.

        It is empty if the job has one host.
        """
        self.poll(witnessed_s())
        return place_workers(count, self._roster.takers) if self._job.hosts else ()

    def poll(self, now: float) -> None:
        """Start the hosts that are due."""
        for name in self._roster.due(now):
            try:
                self._start(name)
            except OSError as error:
                lost = {"kind": "host_lost", "host": name, "workers": []}
                self._tell({**lost, "reason": f"its remote shell cannot be started: {error}"})

    def lose(self, name: str) -> Message | None:
        """Take note that a host is gone; return how often it is, and the slots that are left.

        None if it was not there: a try to bring it back has failed.
        """
        losses = self._roster.lost(name, witnessed_s())
        return None if losses is None else {"losses": losses, "slots": self._slots}

    @property
    def missing(self) -> list[str]:
        """The hosts that were lost, in this job or a day before it, and are not back."""
        return list(self._roster.missing)

    @property
    def _slots(self) -> int:
        return total_slots(self._roster.takers)

    def _answered(self, name: str) -> None:
        if self._roster.answered(name):
            self._tell({"kind": "host_back", "host": name, "slots": self._slots})

    def _start(self, name: str) -> None:
        # A job on one host imports nothing for others.
        from holdfast.runtime.hosts.remote_host import RemoteHost
        from holdfast.runtime.hosts.remote_shell import RemoteShell, python_there
        from holdfast.runtime.hosts.wire import Greeting

        options = self._job.config.options
        greeting = Greeting(
            host=name,
            environment=dict(os.environ),
            directory=os.getcwd(),
            heartbeat_timeout_s=options.heartbeat_timeout_s,
            preload=self._job.preload,
            entry=DEFAULT_ENTRY,
            verbose=options.verbose,
        )
        shell = RemoteShell.of(options.rsh)
        command = shell.command(name, python_there("holdfast.runtime.hosts.agent"))
        reactor, output = self._agent.reactor, self._agent.output
        self._agent.host.add_host(
            lambda hear, lose: RemoteHost(
                reactor, output, command, greeting, hear, lose, lambda: self._answered(name)
            )
        )
