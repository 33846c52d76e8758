"""How long a checkpoint that cannot be read is tried again, and what follows then.

Theory.  A step is given up for good only if it is *proved* damaged: one worker has seen a wrong
byte.  A call that failed proves nothing.  File servers fail over within minutes, and open
files come back when others are closed.  So all workers wait together and try again, for a
bounded time.  Then an older step is better than none, and the job says what it has left.

All workers see the findings of all, and the seconds of rank 0: they decide alike, without
another message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ReadFinding(IntEnum):
    """What a worker has found of a step; of several findings, the largest counts."""

    FINE = 0
    TRANSIENT = 1
    """The call failed in a way that may be gone at the next one."""
    UNREADABLE = 2
    """The call failed in a way that will last, such as a missing permission."""
    DAMAGED = 3

    @property
    def is_unread(self) -> bool:
        """Whether the step may still be whole."""
        return self in (ReadFinding.TRANSIENT, ReadFinding.UNREADABLE)


@dataclass(frozen=True, slots=True)
class Patience:
    """The bounds: one restore waits for ``whole_s``, and tries each step ``least_tries`` times."""

    whole_s: float = 180.0
    """A Lustre or NFS server fails over in one to three minutes."""
    first_nap_s: float = 0.5
    longest_nap_s: float = 10.0
    """A death, or a wish to stop, is heard of after the nap."""
    least_tries: int = 3
    """For older steps, when the newest has used up the time; a stale handle needs one."""

    def nap_s(self, worst: ReadFinding, tries: int, spent_s: float) -> float | None:
        """Return how long to wait before the next try, None to give the step up.

        ``worst`` is the worst finding of all workers at the last of so many ``tries``, and
        ``spent_s`` are the seconds that the restore has spent on failing ones.
        """
        if worst is not ReadFinding.TRANSIENT:
            return None
        doublings = min(tries - 1, 16)  # no float is too small for that
        nap_s = min(self.first_nap_s * 2.0**doublings, self.longest_nap_s)
        left_s = self.whole_s - spent_s
        if left_s > 0:
            return min(nap_s, max(left_s, self.first_nap_s))
        return nap_s if tries < self.least_tries else None


PATIENT = Patience()
