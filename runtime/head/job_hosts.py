"""The other hosts of a job: started, tried again when they were lost, and given their workers.

`recovery.placement` says which of them take workers, and when a lost one is tried again.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from holdfast.recovery.detector import LEASE_SHARE
from holdfast.recovery.event import HostBack, HostLost
from holdfast.recovery.placement import HostRoster, place_workers, total_slots
from holdfast.runtime.head.job import Job
from holdfast.runtime.host.agent import Agent
from holdfast.runtime.host.pairs import PairTrials
from holdfast.runtime.host.pool_process import ENTRY
from holdfast.runtime.run.events import HostRefused
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.network import interfaces
from holdfast.runtime.system.own_process import logical_directory, own_umask
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import lease_clock_s

if TYPE_CHECKING:
    from holdfast.runtime.hosts.wire import Question

_WAITS_S = 600.0
"""So long a job without a host waits for one to come back."""


class JobHosts:
    """Starts the other hosts of a job, and places workers on those that take some."""

    def __init__(self, job: Job, agent: Agent, *, is_taken_over: bool = False) -> None:
        """Take the agent, which other hosts are added to.

        No host has been asked of late if another head had the job before.
        """
        self._job = job
        self._is_taken_over = is_taken_over
        self._agent = agent
        self._roster = HostRoster(job.hosts, job.losses, witnessed_s(), job.missing)
        self._waits_since: float | None = None
        self._leased = ("", 0.0)
        """A host that may have the last world of its launch, and until when."""
        self._refusals: dict[str, str] = {}
        """What was told last of a host that may not work."""
        self._refused: set[str] = set()
        """Those whose agents end for that."""
        for own in job.hosts[:1]:
            # Now: when a host is lost, the disk with the modules may hang.  A job on one host
            # imports nothing for others.
            import holdfast.runtime.hosts.checked_hosts
            import holdfast.runtime.hosts.remote_host  # noqa: F401

            agent.launch.pairs = PairTrials(job.network or "", own.name)
        self._looked_at = self._stood_still_at = lease_clock_s()
        self._lease_s = LEASE_SHARE * job.config.options.heartbeat_timeout_s
        self._stood_still_at -= self._lease_s

    def place(self, count: int) -> tuple[str, ...]:
        """Start the hosts that are due, and return the host of each of ``count`` workers.

        It is empty if the job has one host.
        """
        self.poll(witnessed_s())
        return place_workers(count, self._roster.takers) if self._job.hosts else ()

    def poll(self, now: float) -> None:
        """Start the hosts that are due."""
        self._look_at_clock()
        for name in self._roster.due(now):
            try:
                self._start(name)
            except OSError as error:
                why = f"its remote shell cannot be started: {error}"
                self._agent.tell(HostLost(name, why, ()))

    def lose(self, lost: HostLost) -> HostLost | None:
        """Take note that a host is gone; return the loss with the slots that are left.

        While its workers may go on alone, no other launch may begin.  The reason is another one if
        this host's own link is down.  None if the host was not there: a try to bring it back has
        failed.
        """
        self._look_at_clock()
        name = lost.host
        if lost.leased_s:
            self.hold(name, lost.leased_s)
        was_refused = name in self._refused
        self._refused.discard(name)
        # While this process stood still, the hosts' leases have run out: that is its own fault.
        has_stood_still = self._looked_at - self._stood_still_at < self._lease_s
        own_fault = self._why_cut_off()
        is_charged = not (was_refused or has_stood_still or own_fault)
        losses = self._roster.lost(name, witnessed_s(), is_charged=is_charged)
        if losses is None:
            return None
        return replace(lost, reason=own_fault or lost.reason, slots=self._slots)

    def _why_cut_off(self) -> str:
        """Return why this host reaches no other, empty as long as its own link is up."""
        if self._job.network is None:
            return ""
        network = IPv4Network(self._job.network)
        own = [one for one in interfaces() if IPv4Address(one.address) in network]
        if any(one.is_up for one in own):
            return ""
        names = f" ({', '.join(map(str, own))})" if own else ""
        return f"the link of {self._job.hosts[0].name} itself to {network} is down{names}"

    def _look_at_clock(self) -> None:
        now = lease_clock_s()
        if now - self._looked_at >= self._lease_s:
            self._stood_still_at = now
        self._looked_at = now

    def hold(self, name: str, leased_s: float) -> None:
        """Let no launch begin while a host that is not reached may have the last world."""
        self._leased = max(
            self._leased, (name, witnessed_s() + leased_s), key=lambda found: found[1]
        )

    def why_wait(self, now: float) -> str:
        """Return why the next launch must wait, empty if it may begin.

        No host takes a worker just now, and one may come back soon; or workers may live on one that
        does not know of its loss.
        """
        name, until = self._leased
        if now < until:
            return (
                f"{name} may not know yet that it is lost, and its workers may live on: waiting "
                f"for the end of their lease, {until - now:.0f} s at most"
            )
        if not self._job.hosts or self._slots or not self._roster.may_grow:
            self._waits_since = None
            return ""
        if self._waits_since is None:
            self._waits_since = now
        names = ", ".join(self._roster.missing)
        is_long = now - self._waits_since >= _WAITS_S
        return "" if is_long else f"no host takes a worker just now: waiting for {names}"

    @property
    def missing(self) -> list[str]:
        """The hosts that were lost, in this job or a day before it, and are not back."""
        return list(self._roster.missing)

    @property
    def _slots(self) -> int:
        return total_slots(self._roster.takers)

    def _refuse(self, name: str, refusal: str) -> str:
        """Tell why a host may not work, once as long as that does not change; return it."""
        if refusal:
            self._refused.add(name)
        if refusal and refusal != self._refusals.get(name):
            self._refusals[name] = refusal
            self._agent.tell(HostRefused(name, refusal))
        return refusal

    def _answered(self, name: str) -> None:
        if self._roster.is_tried(name):
            self._agent.launch.admit(name, lambda why: self._admitted(name, why))
        else:
            self._roster.answered(name)

    def _admitted(self, name: str, why_not: str) -> None:
        if not self._refuse(name, why_not):
            self._refusals.pop(name, None)
            self._roster.answered(name)
            self._agent.tell(HostBack(name, self._slots))

    def _start(self, name: str) -> None:
        from holdfast.runtime.hosts.remote_host import HostStart, RemoteHost, RemoteShell
        from holdfast.runtime.hosts.wire import Greeting

        options = self._job.config.options
        greeting = Greeting(
            host=name,
            environment=dict(os.environ),
            directory=str(logical_directory()),
            heartbeat_timeout_s=options.heartbeat_timeout_s,
            preload=self._job.preload,
            entry=ENTRY,
            verbose=options.verbose,
            umask=own_umask(),
        )
        start = HostStart(RemoteShell.of(options.rsh).agent_on(name), greeting)
        is_tried = self._roster.is_tried(name)
        if is_tried or self._is_taken_over:  # it was asked long ago
            question = self._question()
            start = replace(start, question=question, examine=partial(self._examine, name))
        reactor, output = self._agent.reactor, self._agent.output
        self._agent.launch.start_host(
            lambda hear, lose: RemoteHost(
                reactor, output, start, hear, lose, lambda: self._answered(name)
            ),
            is_tried=is_tried,
        )

    def _question(self) -> Question:
        from holdfast.runtime.hosts.wire import Question

        config = self._job.config
        lease, script = RunDirectory(config.options.run_dir).lease_path, config.options.script
        return Question(logical_directory(), script, lease, config.lease_token, self._job.mpiexec)

    def _examine(self, name: str, answer: Message) -> str:
        """Return why a host may not work that has answered, as ``HostStart`` wants it."""
        from holdfast.runtime.hosts.checked_hosts import why_not_again
        from holdfast.runtime.hosts.wire import HostFacts

        begun = [from_plain(HostFacts, found) for found in self._job.facts]
        why = why_not_again(self._job.hosts, begun, name, answer, self._question(), os.environ)
        return self._refuse(name, why)
