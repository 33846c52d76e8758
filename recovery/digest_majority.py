"""The replicas whose bytes are wrong, when replicas that must be equal differ.

All replicas of a world hold the same bytes after the same step.  So their digests differ
only if one replica's memory was damaged, or its processor has miscomputed.  If more than
half of them agree, those are right: two independent errors do not make the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DigestComparison:
    """The outcome of a comparison of digests; every worker comes to the same one."""

    minority: tuple[int, ...]
    """Ranks whose digest is not that of the majority; all ranks if there is no majority."""
    has_majority: bool

    @property
    def is_unanimous(self) -> bool:
        """Whether all digests are equal."""
        return not self.minority


def compare_digests(digests: Sequence[bytes]) -> DigestComparison:
    """Return the ranks that differ from the majority of ``digests``, given in rank order."""
    digest, count = Counter(digests).most_common(1)[0]
    if 2 * count <= len(digests) and len(digests) > 1:
        return DigestComparison(tuple(range(len(digests))), has_majority=False)
    odd = (rank for rank, found in enumerate(digests) if found != digest)
    return DigestComparison(tuple(odd), has_majority=True)
