"""The hosts of a job: which there are, where the workers of a launch go, and who comes back.

The first host is the head's own.  A host that was lost is started again for the next launch.  One
that was lost twice is left out, also in later jobs of the run, until a day has passed.
"""

from __future__ import annotations

import os
from collections import Counter

from holdfast.recovery.placement import HostSlots, place_workers, total_slots, usable_hosts
from holdfast.runtime.head.job import Job
from holdfast.runtime.host.__main__ import DEFAULT_ENTRY
from holdfast.runtime.host.agent import Agent
from holdfast.runtime.system.channel import Message


class JobHosts:
    """Starts the other hosts of a job, and places workers on those that live."""

    def __init__(self, job: Job, agent: Agent) -> None:
        self._job = job
        self._agent = agent
        self._living: set[str] = {host.name for host in job.hosts[:1]}
        self._losses: Counter[str] = Counter(job.losses)

    def place(self, count: int) -> tuple[str, ...]:
        """Start the hosts that are not there, and return the host of each of ``count`` workers.

        It is empty if the job has one host.
        """
        for host in self._usable:
            if host.name not in self._living:
                self._start(host)
        if not self._job.hosts:
            return ()
        return place_workers(count, [h for h in self._usable if h.name in self._living])

    def lose(self, name: str) -> Message:
        """Take note that a host is gone; return how often it is, and the slots that are left."""
        self._living.discard(name)
        self._losses[name] += 1
        return {"losses": self._losses[name], "slots": total_slots(self._usable)}

    @property
    def _usable(self) -> tuple[HostSlots, ...]:
        return usable_hosts(self._job.hosts, self._losses)

    def _start(self, host: HostSlots) -> None:
        # A job on one host imports nothing for others.
        from holdfast.runtime.hosts.remote_host import RemoteHost
        from holdfast.runtime.hosts.remote_shell import RemoteShell, python_there
        from holdfast.runtime.hosts.wire import Greeting

        options = self._job.config.options
        greeting = Greeting(
            host=host.name,
            environment=dict(os.environ),
            directory=os.getcwd(),
            heartbeat_timeout_s=options.heartbeat_timeout_s,
            preload=self._job.preload,
            entry=DEFAULT_ENTRY,
            verbose=options.verbose,
        )
        shell = RemoteShell.of(options.rsh)
        command = shell.command(host.name, python_there("holdfast.runtime.hosts.agent"))
        reactor, output = self._agent.reactor, self._agent.output
        self._agent.host.add_host(
            lambda hear, lose: RemoteHost(reactor, output, command, greeting, hear, lose)
        )
        self._living.add(host.name)
