"""The hosts of a job: which live, where workers are placed, which are left out, and which saves.

*Placement.*  Workers fill the hosts in the order in which they were named, as with mpiexec:
neighbours in rank order are neighbours in space, so a subtree of the reduction seldom crosses a
link.

Each worker has the whole state, so a save needs no byte of another host.  Each host saves a share,
and its workers divide that among them (`recovery.saves`).

*Roster.*  The first host is the head's own: it is there as long as anybody asks.  A host that was
lost may come back.  It is tried again after a while, beside the training of the others, and takes
workers from the next launch on.  A try that fails costs nothing, and doubles the time to the next
one.  A host that was lost twice within a day is left out until the day has passed: it would cost
the job one repair after the other.

A loss is charged to the host, unless the head itself may be at fault: it stood still, or its own
link was cut, so that all other hosts are lost within a moment.

*Pairs.*  The head speaks to each host by a shell, but workers speak over the job's network.  Two
hosts that have lost each other there cannot both have workers of one world.  A set of hosts
explains what is broken if it has one of each such pair (a vertex cover).  The smallest set is left
out; of equally small ones that with the fewest workers, then that of the hosts that are named last.
The head's own host always stays: all ranks need mpiexec, which is there.

To find a smallest cover is hard for hundreds of hosts that fail at random.  But a cable, a switch
or a rule of a firewall breaks few pairs, or all pairs of one host.  Beyond two dozen hosts with a
broken pair, the one with most of them is taken, again and again.

Invariant: the hosts that stay all reach each other, and the first one stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from holdfast.recovery.world import WorkerId

MOST_LOSSES = 2
"""A host that was lost so often is left out."""

FIRST_TRY_AFTER_S = 5.0
LONGEST_PAUSE_S = 600.0
REMEMBERED_S = 86_400.0
"""A host may be mended within a day."""

_MOMENT_S = 15.0
"""Hosts that are lost by one cause are given up one after the other."""

Pair: TypeAlias = "frozenset[str]"
"""Two hosts by their names."""

_MOST_EXACT = 24


@dataclass(frozen=True, slots=True)
class HostSlots:
    """A host by its name, and how many workers it takes."""

    name: str
    slots: int

    def __str__(self) -> str:
        """Return it as a user writes it."""
        return f"{self.name}:{self.slots}"


def place_workers(count: int, hosts: Sequence[HostSlots]) -> tuple[str, ...]:
    """Return the name of the host of each of ``count`` workers, in rank order.

    When all slots are taken, the rest goes round the hosts that have any: a launch on the hosts
    that are left may have more workers than slots.

    Raises ``ValueError`` if no host takes a worker.
    """
    takers = [host for host in hosts if host.slots > 0]
    if not takers and count:
        raise ValueError(f"no host takes a worker: {[host.name for host in hosts]}")
    placed = [host.name for host in takers for _ in range(host.slots)]
    order = {host.name: number for number, host in enumerate(takers)}
    for number in range(max(0, count - len(placed))):
        placed.append(takers[number % len(takers)].name)
    return tuple(sorted(placed[:count], key=order.__getitem__))


def usable_hosts(hosts: Sequence[HostSlots], losses: Mapping[str, int]) -> tuple[HostSlots, ...]:
    """Return the hosts that live or may come back; the first one is the head's own and stays.

    ``losses`` tells how often each was lost: one that was lost ``MOST_LOSSES`` times is left out.
    """
    own = hosts[:1]
    return tuple(h for h in hosts if h in own or losses.get(h.name, 0) < MOST_LOSSES)


def total_slots(hosts: Iterable[HostSlots]) -> int:
    """Return how many workers the hosts take."""
    return sum(host.slots for host in hosts)


@dataclass(frozen=True, slots=True)
class SavePart:
    """A worker's part of a save: number ``part`` of the ``parts`` of host number ``host``."""

    host: int = 0
    hosts: int = 1
    part: int = 0
    parts: int = 1


WHOLE_SAVE = SavePart()
"""That of a worker that saves alone."""


def save_parts(
    workers: Sequence[WorkerId], host_of: Mapping[WorkerId, str]
) -> Mapping[WorkerId, SavePart]:
    """Return the parts of ``workers``, which are in rank order; each host has its own."""
    by_host: dict[str, list[WorkerId]] = {}
    for worker in workers:
        by_host.setdefault(host_of[worker], []).append(worker)
    return {
        worker: SavePart(number, len(by_host), part, len(mine))
        for number, mine in enumerate(by_host.values())
        for part, worker in enumerate(mine)
    }


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


def left_out(workers: Mapping[str, int], broken: Collection[Pair]) -> tuple[str, ...]:
    """Return the hosts that are left out, in the order of ``workers``.

    Args:
        workers: how many live on each host, that of the head first.
        broken: pairs that do not reach each other.
    """
    places = {name: place for place, name in enumerate(workers)}
    head = next(iter(workers))

    def cost(hosts: Collection[str]) -> tuple[int, int, list[int]]:
        return len(hosts), sum(workers[h] for h in hosts), sorted(-places[h] for h in hosts)

    beside_head = frozenset(name for pair in broken if head in pair for name in pair - {head})
    rest = _without(frozenset(broken), beside_head | {head})
    return tuple(sorted(beside_head | _cover(rest, cost), key=lambda name: places[name]))


def _cover(pairs: Collection[Pair], cost: Callable[[Collection[str]], Any]) -> Pair:
    """Return the cheapest set of hosts with one of each pair."""
    if not pairs:
        return frozenset()
    counts = Counter(sorted(name for pair in pairs for name in pair))
    most = max(counts, key=lambda name: counts[name])
    ways = [frozenset({most})]
    if len(counts) <= _MOST_EXACT:  # without that host, all its partners must go
        ways.append(frozenset(name for pair in pairs if most in pair for name in pair - {most}))
    return min((way | _cover(_without(pairs, way), cost) for way in ways), key=cost)


def _without(pairs: Collection[Pair], hosts: Pair) -> frozenset[Pair]:
    return frozenset(pair for pair in pairs if not pair & hosts)
