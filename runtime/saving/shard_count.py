"""How many shards the state of a host is written as.

Several files are written and synced at once.  More of them than a disk or a server serves at
once cost only more names.  A file is bounded, so that a damaged block costs a mend of a part,
and no file system meets a file that it cannot stripe.  The count follows from the size
alone: all workers come to the same, on any machine.
"""

from __future__ import annotations

from holdfast.runtime.committing.committer import MOST_THREADS

WORTH_A_FILE_BYTES = 64 * 2**20
LARGEST_FILE_BYTES = 4 * 2**30


def shard_count(nbytes: int, asked: int | None = None) -> int:
    """Return the shards of ``nbytes`` of state; ``asked`` is the user's choice, if any."""
    if asked is not None:
        return asked
    paying = min(MOST_THREADS, -(-nbytes // WORTH_A_FILE_BYTES))
    return max(1, paying, -(-nbytes // LARGEST_FILE_BYTES))
