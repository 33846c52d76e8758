"""Which hosts of a job reach each other on its network: each pair is tried, by their agents.

The head reaches each host by a shell, perhaps over another network than the job's.  So it asks all
hosts to listen, and then each one to come to those before it.  That takes milliseconds, or seconds
where nothing arrives.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import TypeAlias

from holdfast.recovery.placement import Pair
from holdfast.runtime.host.host_messages import HostLink, Meet, Met
from holdfast.runtime.system.daemon_executor import DaemonExecutor
from holdfast.runtime.system.network import Meeting, MeetingPlace, fault_of, interface_on
from holdfast.runtime.system.witnessed_time import Bound

_TAKES_S = 20.0
"""A host that has not answered by then is no better known than before."""

Broken: TypeAlias = "dict[Pair, str]"
"""Pairs that do not reach each other, and why."""
_NO_ADDRESS = "no interface is up there"


class Ways:
    """One host's part: it listens for the others, and tries the ways to them on threads."""

    def __init__(self, tell: Callable[[Met], None]) -> None:
        self._tell = tell
        self._listening = contextlib.ExitStack()
        self._until = Bound(0.0)
        self._tried: list[tuple[int, list[Future[str]]]] = []

    def take(self, order: Meet) -> None:
        """Listen for the others, or come to those that do, which a poll tells.

        Where there is nothing to spare for it, there is no answer.
        """
        with contextlib.suppress(OSError):
            if order.meetings:
                executor = DaemonExecutor(len(order.meetings), "ways")
                trying = [executor.submit(fault_of, one, order.word) for one in order.meetings]
                executor.shutdown()
                self._tried.append((order.trial, trying))
            else:
                self._tell(Met(order.trial, self._listen(IPv4Network(order.network), order.word)))

    def _listen(self, network: IPv4Network, word: str) -> tuple[Meeting, ...]:
        self.close()
        found = interface_on(network)
        if found is None:
            return ()
        self._until = Bound(_TAKES_S)
        place = MeetingPlace([(network, found.address)], word)
        return self._listening.enter_context(place).meetings

    def poll(self) -> None:
        """Tell what was found out, and listen no longer than a trial takes."""
        for trial, trying in list(self._tried):
            if all(way.done() for way in trying):
                self._tried.remove((trial, trying))
                self._tell(Met(trial, faults=tuple(way.result() for way in trying)))
        if self._until.has_passed:
            self.close()

    def close(self) -> None:
        """Listen no more."""
        self._listening.close()


@dataclass(slots=True)
class _Trial:
    number: int
    hosts: dict[str, HostLink]
    conclude: Callable[[Broken], None]
    bound: Bound = field(default_factory=lambda: Bound(_TAKES_S))
    word: str = field(default_factory=lambda: secrets.token_hex(8))
    meetings: dict[str, Meeting | None] = field(default_factory=dict)
    asked: dict[str, list[str]] | None = None
    """Whom each host comes to that has not said how that went; None while some do not listen."""
    broken: Broken = field(default_factory=dict)


class PairTrials:
    """Tries all pairs of hosts; one trial waits for the end of another."""

    def __init__(self, network: str = "", own_name: str = "") -> None:
        """Take the network of the job and the name of this host; a job on one host has neither."""
        self.network = network
        self.own_name = own_name
        self._trials: list[_Trial] = []
        self._count = 0

    def begin(self, hosts: Iterable[HostLink], conclude: Callable[[Broken], None]) -> None:
        """Try all pairs of these hosts; ``conclude`` hears which of them are broken."""
        if not self.network:
            conclude({})
            return
        self._count += 1
        named = {host.name or self.own_name: host for host in hosts}
        self._trials.append(_Trial(self._count, named, conclude))
        if len(self._trials) == 1:
            self._ask()

    def hear(self, host: HostLink, answer: Met) -> None:
        """Take note of where a host listens, or of what it has found out."""
        if not self._trials or answer.trial != self._trials[0].number:
            return
        trial, name = self._trials[0], host.name or self.own_name
        if trial.asked is None:
            trial.meetings[name] = next(iter(answer.meetings), None)
        else:
            for other, fault in zip(trial.asked.pop(name, ()), answer.faults, strict=False):
                if fault:
                    trial.broken[frozenset({name, other})] = fault
        self._go_on(trial)

    def lose(self, host: HostLink) -> None:
        """Wait no more for the answers of a host that is lost."""
        for trial in list(self._trials):
            if trial.hosts.pop(host.name, None) is not None:
                (trial.asked or {}).pop(host.name, None)
                if trial is self._trials[0]:
                    self._go_on(trial)

    def poll(self) -> None:
        """End a trial that takes too long with what is known."""
        if self._trials and self._trials[0].bound.has_passed:
            self._end()

    def why(self, name: str, broken: Broken) -> str:
        """Return in words whom a host does not reach, "" if it reaches all."""
        found = {next(iter(pair - {name})): why for pair, why in broken.items() if name in pair}
        others, faults = ", ".join(sorted(found)), "; ".join(sorted({*found.values()}))
        return "" if not found else f"{name} does not reach {others} on {self.network} ({faults})"

    def _ask(self) -> None:
        trial = self._trials[0]
        trial.bound = Bound(_TAKES_S)
        for host in trial.hosts.values():
            host.post(Meet(trial.number, self.network, trial.word))

    def _go_on(self, trial: _Trial) -> None:
        if trial.asked is None and trial.hosts.keys() <= trial.meetings.keys():
            self._let_them_come(trial)
        if trial.asked == {}:
            self._end()

    def _let_them_come(self, trial: _Trial) -> None:
        names = list(trial.hosts)
        deaf = [name for name in names if trial.meetings[name] is None]
        trial.broken |= {frozenset({d, n}): _NO_ADDRESS for d in deaf for n in names if n != d}
        there = [(name, found) for name in names if (found := trial.meetings[name]) is not None]
        trial.asked = {name: [n for n, _ in there[:i]] for i, (name, _) in enumerate(there) if i}
        for place, (name, _) in enumerate(there[1:], start=1):
            meetings = tuple(found for _, found in there[:place])
            trial.hosts[name].post(Meet(trial.number, self.network, trial.word, meetings))

    def _end(self) -> None:
        trial = self._trials.pop(0)
        if self._trials:
            self._ask()
        trial.conclude(trial.broken)
