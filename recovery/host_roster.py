"""Which hosts of a job take workers: those that answer, and those that are started for it.

The first host is the head's own: it is there as long as anybody asks.  A host that was lost may
come back.  It is tried again after a while, beside the training of the others, and takes workers
from the next launch on.  A try that fails costs nothing, and doubles the time to the next one.  A
host that was lost twice within a day is left out until the day has passed: it would cost the job
one repair after the other.

A loss is charged to the host, unless the head itself may be at fault: it stood still, or its own
link was cut, so that all other hosts are lost within a moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.recovery.placement import MOST_LOSSES, HostSlots

FIRST_TRY_AFTER_S = 5.0
LONGEST_PAUSE_S = 600.0
REMEMBERED_S = 86_400.0
"""A host may be mended within a day."""

_MOMENT_S = 15.0
"""Hosts that are lost by one cause are given up one after the other."""


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
    losses: list[float]
    """The moments of those that are charged to it."""
    try_at: float = 0.0
    pause_s: float = FIRST_TRY_AFTER_S


class HostRoster:
    """The hosts of a job by their state; feed it what happens to them."""

    def __init__(
        self,
        hosts: Sequence[HostSlots],
        losses: Mapping[str, int],
        now: float = 0.0,
        missing: Sequence[str] = (),
    ) -> None:
        """Begin with no host but the first; ``losses`` are those of the day before ``now``.

        Those that are ``missing`` are tried at once, and the first launch does not wait for them.
        """
        self._hosts = tuple(hosts)
        self._entries: dict[str, _Entry] = {}
        for host in hosts:
            count = losses.get(host.name, 0)
            state, try_at = _State.NEW, now
            if count >= MOST_LOSSES:
                state, try_at = _State.LEFT_OUT, now + REMEMBERED_S
            elif host.name in missing:
                state = _State.GONE
            self._entries[host.name] = _Entry(state, [now] * count, try_at)
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

    def is_tried(self, name: str) -> bool:
        """Whether a host was started to bring it back."""
        return self._entries[name].state is _State.RETURNING

    @property
    def may_grow(self) -> bool:
        """Whether a host may come back soon."""
        states = (_State.GONE, _State.RETURNING)
        return any(entry.state in states for entry in self._entries.values())

    def due(self, now: float) -> tuple[str, ...]:
        """Return the hosts to be started at ``now``; they count as started from here on."""
        found = []
        for name, entry in self._entries.items():
            if entry.state is _State.NEW:
                entry.state = _State.STARTED
                found.append(name)
            elif entry.state in (_State.GONE, _State.LEFT_OUT) and now >= entry.try_at:
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

    def lost(self, name: str, now: float, *, is_charged: bool = True) -> int | None:
        """Take note that a host is gone; return how often it was lost within a day.

        None if it was not there: a try to bring it back has failed.
        """
        entry = self._entries[name]
        if entry.state is _State.RETURNING:
            entry.pause_s = min(2 * entry.pause_s, LONGEST_PAUSE_S)
            self._try_later(entry, now)
            return None
        entry.pause_s = FIRST_TRY_AFTER_S
        entry.losses = [at for at in entry.losses if now - at < REMEMBERED_S]
        if is_charged:
            entry.losses.append(now)
        self._try_later(entry, now)
        self._forgive_common_losses(now)
        return len(entry.losses)

    def _try_later(self, entry: _Entry, now: float) -> None:
        is_left_out = len(entry.losses) >= MOST_LOSSES
        entry.state = _State.LEFT_OUT if is_left_out else _State.GONE
        entry.try_at = entry.losses[0] + REMEMBERED_S if is_left_out else now + entry.pause_s

    def _forgive_common_losses(self, now: float) -> None:
        """Charge nobody if all other hosts, at least two, were lost within a moment."""
        others = [self._entries[host.name] for host in self._hosts[1:]]
        fresh = [entry for entry in others if entry.losses and now - entry.losses[-1] < _MOMENT_S]
        if len(others) > 1 and len(fresh) == len(others):
            for entry in others:
                entry.losses.pop()
                if entry.state in (_State.GONE, _State.LEFT_OUT):  # others are on their way back
                    self._try_later(entry, now)
