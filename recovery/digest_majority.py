"""Whose memory is wrong, when replicas that must be equal are not.

All replicas of a world hold the same bytes after the same step, so their digests
differ only if the memory of one was damaged, or its processor has miscomputed.  More
than half of them being alike is proof enough of who is right: two independent
errors do not make the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DigestComparison:
    """What a comparison of digests came to, the same for everyone who made it."""

    minority: tuple[int, ...]
    """Ranks whose digest is not that of the majority; all of them if there is none."""
    has_majority: bool

    @property
    def is_unanimous(self) -> bool:
        """Whether all are alike."""
        return not self.minority


def compare_digests(digests: Sequence[bytes]) -> DigestComparison:
    """Return which ranks differ from the majority of ``digests``, which are in rank order."""
    digest, count = Counter(digests).most_common(1)[0]
    if 2 * count <= len(digests) and len(digests) > 1:
        return DigestComparison(tuple(range(len(digests))), has_majority=False)
    odd = (rank for rank, found in enumerate(digests) if found != digest)
    return DigestComparison(tuple(odd), has_majority=True)
