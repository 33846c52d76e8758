"""How much of a limited thing is in use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Resource(Enum):
    """A thing that a host runs out of; its value is its name for people."""

    MEMORY = "memory"
    SHARED_MEMORY = "shared memory"
    PROCESSES = "processes and threads"
    FILES = "open files"

    @property
    def is_bytes(self) -> bool:
        """Whether it is counted in bytes."""
        return self in (Resource.MEMORY, Resource.SHARED_MEMORY)


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a resource, and the limit that ``place`` sets to it; bytes or a count."""

    resource: Resource
    place: str
    used: int
    limit: int

    @property
    def share(self) -> float:
        """The used part of the limit."""
        return self.used / self.limit

    @property
    def free(self) -> int:
        """What is left, never below 0."""
        return max(0, self.limit - self.used)
