"""How much space the checkpoints of a run may take, and which steps go so that the others fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

_FORM = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(%|[a-z]*)")
_PREFIXES = ("", "k", "m", "g", "t", "p")
_UNITS = {
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES) if prefix},
}
_HELP = "give a size (200GB, 1.5TiB) or a share of the file system (20%)"


@dataclass(frozen=True, slots=True)
class Space:
    """A number of bytes, or else a share of the file system that the checkpoints lie on."""

    nbytes: int = 0
    share: Fraction | None = None

    @staticmethod
    def parse(text: str) -> Space:
        """Return the space that a text such as ``200GB``, ``1TiB`` or ``20%`` says.

        Raises ``ValueError`` for any other text.
        """
        match = _FORM.fullmatch(text.strip().lower())
        if match is None or match[2] not in {*_UNITS, "%"}:
            raise ValueError(f"{text!r} is no space: {_HELP}")
        number = Fraction(match[1])
        if match[2] == "%":
            found = Space(share=number / 100)
        else:
            found = Space(int(number * _UNITS[match[2]]))
        if not (found.nbytes > 0 or 0 < (found.share or 0) <= 1):
            raise ValueError(f"{text!r} must be more than nothing, and at most 100%")
        return found

    def limit(self, capacity: int) -> int:
        """Return the bytes that it is on a file system of ``capacity`` bytes."""
        return self.nbytes if self.share is None else int(self.share * capacity)


def steps_too_many(
    sizes: Mapping[int, int], ranks: Mapping[int, int], limit: int
) -> tuple[int, ...]:
    """Return the steps that go so that the others take ``limit`` bytes at most, if that can be.

    ``sizes`` has all steps, ``ranks`` those that may go: the lowest rank goes first, and of
    one rank the oldest.  No more go than must.
    """
    used, gone = sum(sizes.values()), list[int]()
    for step in sorted(ranks, key=lambda step: (ranks[step], step)):
        if used <= limit:
            break
        gone.append(step)
        used -= sizes[step]
    return tuple(gone)
