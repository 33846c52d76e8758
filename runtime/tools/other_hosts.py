"""Victims of a strike on a job over several hosts: found by its head, struck by their own agent.

A process of another host bears no mark that could be read here.  So the head is asked which workers
and hosts there are, and it sends the strike on to the agent of the host.  What lives on the first
host, this one, is struck as in any job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import BeStruck
from holdfast.runtime.run.progress import WorkerReport
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.tools.living_job import JobSocket, order_strike
from holdfast.runtime.tools.strike import SIGNALS, Strike, Target

_ANSWERS_WITHIN_S = 0.5
"""The job is followed meanwhile no further; an answer that is late is taken at the next look."""


@dataclass(frozen=True, slots=True)
class FoundVictim:
    """What a strike would hit, on any host of the job."""

    host: str
    target: Target
    worker: int = 0
    generation: int = 0

    def __str__(self) -> str:
        name = f"w{self.worker}" if self.target is Target.WORKER else self.target.value
        return f"host {self.host}" if self.target is Target.HOST else f"{name} of {self.host}"


class OtherHosts:
    """The hosts of a job, as its head tells of them."""

    def __init__(self, directory: RunDirectory, hosts: Sequence[str]) -> None:
        """Take the names of the hosts, the head's first."""
        self._directory = directory
        self._hosts = hosts
        self._socket = JobSocket(directory)

    def find(self, strike: Strike) -> FoundVictim | None:
        """Return the victim that a strike chooses just now, None if there is none."""
        answer = self._socket.ask(_ANSWERS_WITHIN_S)
        return None if answer is None else choose_on_hosts(strike, self._hosts, answer)

    def is_here(self, victim: FoundVictim) -> bool:
        """Whether it is on the first host."""
        return victim.host == self._hosts[0]

    def strike(self, victim: FoundVictim, strike: Strike) -> bool:
        """Have a victim of another host struck; return whether the order went there."""
        order = BeStruck(
            target=victim.target.value,
            signal=SIGNALS[strike.blow.kind],
            for_s=strike.for_s or 0.0,
            generation=victim.generation,
            worker=WorkerId(victim.worker),
        )
        with contextlib.suppress(OSError):
            return order_strike(self._directory, victim.host, order)
        return False

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()


def choose_on_hosts(
    strike: Strike, hosts: Sequence[str], answer: Mapping[str, Any]
) -> FoundVictim | None:
    """Return the victim that the index, modulo their number, chooses; None if there is none.

    ``hosts`` are those of the job, the head's first; ``answer`` is the head's to ``status``.
    """
    target, own = strike.blow.target, hosts[0]
    connected = {own, *answer.get("hosts", ())}
    if target is Target.WORKER:
        told = [WorkerReport.of(worker) for worker in answer.get("workers") or ()]
        workers = [worker for worker in told if worker is not None and worker.pid is not None]
        found = [
            FoundVictim(worker.host or own, target, worker.worker, worker.generation)
            for worker in sorted(workers, key=lambda worker: worker.worker)
        ]
    else:
        found = [FoundVictim(host, target) for host in hosts if host in connected]
        if target is Target.HOST:  # what strikes is on the first one
            found = found[1:]
    found = [victim for victim in found if strike.host in ("", victim.host)]
    return found[strike.index % len(found)] if found else None
