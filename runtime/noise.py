"""Open MPI's own remarks about failures, told apart from what the user's program prints.

After a death Open MPI prints lines that mean nothing to a user whose job goes
on.  Only lines known from real runs are taken for noise; an unknown line is
always shown.
"""

from __future__ import annotations

import re

_NOISE = re.compile(
    rb"NBC_Progress: an error"
    rb"|\[warn\] Epoll (?:ADD|MOD|DEL)"
)


class NoiseFilter:
    """Removes noise from a stream of complete lines."""

    def without_noise(self, lines: bytes) -> bytes:
        """Return ``lines`` without those that are noise."""
        if not _NOISE.search(lines):
            return lines
        kept = (line for line in lines.splitlines(keepends=True) if not _NOISE.search(line))
        return b"".join(kept)
