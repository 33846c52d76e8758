"""The memory that the workers of a world map of each other, if all are on one host.

Each worker maps the vectors of all others, and two vectors for results.  The results
belong to rank 0 and are new for every world.  So a worker that was given up for dead, but
still runs for a moment, can only write into an old result that no worker reads.

Invariant: no worker writes into a vector that holds a root, or reads the result, before
the vote that follows the sum (`exchange`).

Sums use the two results in turns.  A slow worker may read the last result while a fast one
writes the next.  Only the vote between proves that all have read the one before.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.recovery.partial import FloatVector
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.exchange.shared_vectors import SharedVectors

_LENGTH_BYTES = 2


@dataclass(frozen=True, slots=True)
class CommonMemory:
    """The vectors of all ranks for one kind of transaction."""

    vectors: tuple[SharedVectors, ...]
    """By rank; the one of this rank is its own."""
    results: tuple[FloatVector, FloatVector]
    turns: Iterator[FloatVector]
    """The results in turns, for ever: also a new plan goes on with the other one."""


def map_peers(membership: Membership, mine: Sequence[SharedVectors]) -> list[CommonMemory | None]:
    """Map the vectors that all members offer, one offer for each kind of transaction.

    All members of a new world call this at the same point.  The entries are None on all of
    them alike if one cannot map another's memory.  Then they are on several hosts, or may
    not look into each other's ``/proc``.

    Raises:
        WorldBroken: a member has died; repair.
    """
    communicator = membership.communicator
    results = [SharedVectors.create(v.floats, 2) for v in mine] if membership.is_first else []
    tickets = [vectors.ticket for vectors in (*mine, *results)]
    card = _pack([_host(), *tickets])
    try:
        cards = membership.together(lambda: communicator.allgather_bytes(card))
        found = _map_all(cards, mine, communicator.rank)
        is_common = membership.agree_all(found is not None)
    finally:
        for vectors in results:
            vectors.close()
    if found is None or not is_common:
        return [None for _ in mine]
    return list(found)


def _map_all(
    cards: Sequence[bytes], mine: Sequence[SharedVectors], rank: int
) -> list[CommonMemory] | None:
    """Return the common memory for each of ``mine``, or None if some of it cannot be mapped."""
    hosts, offers = zip(*((host, offer) for host, *offer in map(_unpack, cards)), strict=True)
    if len(set(hosts)) > 1:
        return None
    try:
        common = []
        for kind, own in enumerate(mine):
            shared = SharedVectors.open(offers[0][len(mine) + kind])
            vectors = [
                own if peer == rank else SharedVectors.open(offer[kind])
                for peer, offer in enumerate(offers)
            ]
            results = (shared.at(0), shared.at(1))
            common.append(CommonMemory(tuple(vectors), results, itertools.cycle(results)))
    except (OSError, LookupError):
        return None
    return common


@functools.lru_cache(maxsize=1)
def _host() -> bytes:
    """Return bytes that are equal only for processes that see each other in ``/proc``."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return boot + b" %d" % os.stat("/proc/self/ns/pid").st_ino


def _pack(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "little") + part for part in parts)


def _unpack(joined: bytes) -> list[bytes]:
    parts, start = [], 0
    while start < len(joined):
        length = int.from_bytes(joined[start : start + _LENGTH_BYTES], "little")
        start += _LENGTH_BYTES
        parts.append(joined[start : start + length])
        start += length
    return parts
