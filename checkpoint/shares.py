"""Which shards of a save each host writes and holds, and the header that says what its memory has.

*Hosts.*  Each host writes a run of neighbouring shards.  It holds these, and those that the host
before it writes.  So every shard is in the memory of two hosts, and one of them may be lost.
Invariant: each shard is written by one host, and held by two if there are two.

*The header* is the first page of the memory, and a few more.  Each worker of the host has a row in
it, which it writes when all its bytes are there: of which save they are, and the digest of the
state that they are a part of.  So whoever has the memory knows what it holds.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

_ROW = struct.Struct("<16sQQQQ")
"""The digest of a state, the number of parts, and step, generation and attempt of the save.

The attempt is written last."""
HEADER_BYTES = 64 * 4096
"""Room for more workers than a host ever has: 3,640."""


def written_by(host: int, hosts: int, shards: int) -> range:
    """Return the shards that host number ``host``, from 0, of ``hosts`` writes.

    Hosts differ by at most one shard.  If there are fewer shards than hosts, some write none.
    """
    return range(-(-shards * host // hosts), -(-shards * (host + 1) // hosts))


def held_by(host: int, hosts: int, shards: int) -> tuple[int, ...]:
    """Return the shards in the memory of a host: those that it writes, and the host before it."""
    mine, others = (written_by(one % hosts, hosts, shards) for one in (host, host - 1))
    return tuple(sorted({*mine, *others}))


SaveKey: TypeAlias = "tuple[int, int, int]"
"""Step, generation and attempt of a save; no two saves of a run have the same."""


def note_part(memory: memoryview, part: int, parts: int, save: SaveKey, digest: str) -> None:
    """Note in the header that a part of a save is in the memory, with its record.

    ``digest`` is that of the whole state, in hexadecimal digits.
    """
    _ROW.pack_into(memory, _ROW.size * part, bytes.fromhex(digest), parts, *save)


def save_in(memory: memoryview) -> SaveKey | None:
    """Return the save that is whole in the memory, None if there is none."""
    *_, step, generation, attempt = _ROW.unpack_from(memory, 0)
    found = step, generation, attempt
    digests = digests_of(memory, found) if attempt else None
    return None if digests is None or len(digests) > 1 else found


def digests_of(memory: memoryview, save: SaveKey) -> frozenset[str] | None:
    """Return the digests of the states that the parts of a save are of; None if parts lack."""
    digests: list[str] = []
    parts = 1
    while len(digests) < parts:
        digest, parts, *found = _ROW.unpack_from(memory, _ROW.size * len(digests))
        if tuple(found) != save:
            return None
        digests.append(digest.hex())
    return frozenset(digests)
