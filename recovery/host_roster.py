"""Which hosts of a job take workers: those that answer, and those that are started for it.

The first host is the head's own: it is there as long as anybody asks.  A host that was lost may
come back.  It is tried again after a while, beside the training of the others, and takes workers
from the next launch on.  A try that fails costs nothing, and doubles the time to the next one.  A
host that was lost twice is left out: it would cost the job one repair after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.recovery.placement import MOST_LOSSES, HostSlots

FIRST_TRY_AFTER_S = 5.0
LONGEST_PAUSE_S = 600.0


class _State(Enum):
    NEW = "new"
    STARTED = "started"
    """For the first time, so the first launch counts on it."""
    READY = "ready"
    GONE = "gone"
    RETURNING = "returning"
    LEFT_OUT = "left out"


@dataclass(slots=True)
class _Entry:
    state: _State
    losses: int
    try_at: float = 0.0
    pause_s: float = FIRST_TRY_AFTER_S


class HostRoster:
    """The hosts of a job by their state; feed it what happens to them."""

    def __init__(self, hosts: Sequence[HostSlots], losses: Mapping[str, int]) -> None:
        """Begin with no host but the first; ``losses`` are those of earlier jobs of the run."""
        self._hosts = tuple(hosts)
        self._entries: dict[str, _Entry] = {}
        for host in hosts:
            count = losses.get(host.name, 0)
            state = _State.NEW if count < MOST_LOSSES else _State.LEFT_OUT
            self._entries[host.name] = _Entry(state, count)
        for own in hosts[:1]:
            self._entries[own.name].state = _State.READY

    @property
    def takers(self) -> tuple[HostSlots, ...]:
        """The hosts that take workers of the next launch."""
        states = (_State.NEW, _State.STARTED, _State.READY)
        return tuple(host for host in self._hosts if self._entries[host.name].state in states)

    @property
    def missing(self) -> tuple[str, ...]:
        """The hosts that were lost and are not back."""
        states = (_State.GONE, _State.RETURNING, _State.LEFT_OUT)
        return tuple(name for name, entry in self._entries.items() if entry.state in states)

    def due(self, now: float) -> tuple[str, ...]:
        """Return the hosts to be started at ``now``; they count as started from here on."""
        found = []
        for name, entry in self._entries.items():
            if entry.state is _State.NEW:
                entry.state = _State.STARTED
                found.append(name)
            elif entry.state is _State.GONE and now >= entry.try_at:
                entry.state = _State.RETURNING
                found.append(name)
        return tuple(found)

    def answered(self, name: str) -> bool:
        """Take note that a host is ready; return whether it has come back."""
        entry = self._entries[name]
        is_back = entry.state is _State.RETURNING
        entry.state = _State.READY
        entry.pause_s = FIRST_TRY_AFTER_S
        return is_back

    def lost(self, name: str, now: float) -> int | None:
        """Take note that a host is gone; return how often it was lost.

        None if it was not there: a try to bring it back has failed.
        """
        entry = self._entries[name]
        is_loss = entry.state is not _State.RETURNING
        entry.losses += is_loss
        if is_loss:
            entry.pause_s = FIRST_TRY_AFTER_S
        else:
            entry.pause_s = min(2 * entry.pause_s, LONGEST_PAUSE_S)
        entry.try_at = now + entry.pause_s
        entry.state = _State.LEFT_OUT if entry.losses >= MOST_LOSSES else _State.GONE
        return entry.losses if is_loss else None
