"""Names of everything in a checkpoint store, and their meaning.

``step-%012d`` is committed; ``.tmp-%012d-g%d-a%d`` is staging; ``.del-%012d`` and
``.del-%012d-g%d-a%d`` are being removed.  ``.bad-%012d-g%d-a%d`` was found damaged: that
generation and attempt saved the step again, or mended it.

A generation (``g``) belongs to one world, which counts its attempts (``a``).  So a writer never
meets a name of another world's writer, whatever both do at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

STORE_NAME = "checkpoints"
"""The folder of the store in the directory of a run."""

MANIFEST_NAME = "MANIFEST.json"
LARGEST_MANIFEST_BYTES = 64 * 2**20
"""Room for 200,000 tensors; parsed JSON takes up to twenty times the memory of its text."""

_STEP = re.compile(r"step-([0-9]{12,18})")
_SAVE = re.compile(r"\.(tmp|bad)-([0-9]{12,18})-g([0-9]{1,18})-a([0-9]{1,18})")
_REMOVED = re.compile(r"\.del-[0-9]{12,18}(?:-g[0-9]{1,18}-a[0-9]{1,18})?")


@dataclass(frozen=True, slots=True, order=True)
class StagingName:
    """Which save a staging directory belongs to."""

    step: int
    generation: int
    attempt: int

    def __str__(self) -> str:
        return f".tmp-{self._suffix}"

    @property
    def bad_name(self) -> str:
        """Where this save moves a damaged checkpoint of its step."""
        return f".bad-{self._suffix}"

    @property
    def removed_name(self) -> str:
        """The name of a directory of this save while it is being removed."""
        return f".del-{self._suffix}"

    @property
    def _suffix(self) -> str:
        return f"{self.step:012d}-g{self.generation}-a{self.attempt}"

    @staticmethod
    def parse(name: str, *kinds: str) -> StagingName | None:
        """Return the save that a name tells, None for names of other kinds.

        The kinds are "tmp" for staging, and "bad" where it has moved a damaged checkpoint.
        """
        kind, *numbers = match.groups() if (match := _SAVE.fullmatch(name)) else ("",)
        return StagingName(*map(int, numbers)) if kind in kinds else None


def bad_names(names: Iterable[str], step: int | None = None) -> list[StagingName]:
    """Return the damaged steps among the names in a store, or those of one step: newest first."""
    parsed = ((StagingName.parse(name, "bad"), name) for name in names)
    found = [bad for bad, name in parsed if bad is not None and bad.bad_name == name]
    return sorted((bad for bad in found if step in (None, bad.step)), reverse=True)


def shard_name(index: int, writers: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{index:05d}-of-{writers:05d}.h5"


def step_name(step: int) -> str:
    """Return the name of a committed step's directory."""
    return f"step-{step:012d}"


def removed_name(step: int) -> str:
    """Return the name of a step's directory while it is being removed."""
    return f".del-{step:012d}"


def step_of(name: str) -> int | None:
    """Return the step of a committed directory's name, None for other names."""
    match = _STEP.fullmatch(name)
    if match is None or step_name(int(match[1])) != name:
        return None
    return int(match[1])


def is_removed(name: str) -> bool:
    """Return whether a name is that of a directory that is being removed."""
    return _REMOVED.fullmatch(name) is not None
