"""What the head and the agent of another host say to each other on their connection.

Beside the messages of `host_messages` there are those of the connection itself.  State and
gradients never travel here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import Down, Logged, Up
from holdfast.runtime.hosts.host_facts import HostFacts, Question
from holdfast.runtime.system.channel import MessageKinds

TEXT = "latin-1"
"""Any bytes are text in this encoding."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message of a head to a host that may work: all that it must know."""

    host: str
    environment: Mapping[str, str]
    directory: str
    heartbeat_timeout_s: float
    preload: tuple[str, ...]
    entry: str
    verbose: bool = False
    umask: int = 0o022


@dataclass(frozen=True, slots=True)
class Unasked:
    """Nothing has come to the agent, or no message: its shell passes no stdin on."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of the head, which has ``heard`` this answer last."""

    number: int
    heard: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping."""

    number: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The words of a worker's status that have changed."""

    generation: int
    worker: WorkerId
    words: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """What has changed in statuses, at this time of the sender's monotonic clock."""

    of: tuple[Changes, ...]
    clock: float


@dataclass(frozen=True, slots=True)
class Output:
    """Lines for a stream of the head."""

    fd: int
    lines: str


@dataclass(frozen=True, slots=True)
class Taken:
    """So much output has been read."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class EndHost:
    """The agent ends its workers and itself."""

    why: str = "the job has ended"


Opening = Question | Greeting | EndHost
"""What the head says to an agent that it has started."""
Answer = HostFacts | Unasked
"""What the agent says to that."""
FromHead = Down | Ping | Words | Taken | EndHost
FromHost = Up | Pong | Words | Output
"""What both say from the greeting on."""

OPENING: MessageKinds[Opening] = MessageKinds(Opening)
ANSWER: MessageKinds[Answer] = MessageKinds(Answer)
FROM_HEAD: MessageKinds[FromHead] = MessageKinds(FromHead)
FROM_HOST: MessageKinds[FromHost] = MessageKinds(FromHost)


def taken_bytes(message: FromHost) -> int:
    """Return how much output of workers a message carries, for a stream or for log files."""
    match message:
        case Output(lines=lines) | Logged(lines=lines):
            return len(lines)
    return 0
