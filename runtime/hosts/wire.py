"""Messages between the head and the agent of another host, as lines of JSON.

The words of `host_messages` travel with their names.  Beside them there are those of the connection
itself: ``question`` and its answer ``facts``, ``greeting``, ``ping`` and its answer ``pong``,
``words`` of the workers' statuses, ``output`` and ``end``.  State and gradients never travel here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from holdfast.runtime.host.host_messages import Down, Told, Up
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.codec import from_plain, to_plain

_DOWN = {kind.__name__: kind for kind in get_args(Down)}
_UP = {kind.__name__: kind for kind in get_args(Up)}

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


def line_of(message: Down | Up) -> Message:
    """Return a message as it travels."""
    return {"kind": type(message).__name__, "value": to_plain(message)}


def read_down(line: Message) -> Down:
    """Return what a host is told; raises ``ValueError`` if it makes no sense."""
    found: Down = _read(_DOWN, line)
    return found


def read_up(line: Message) -> Up:
    """Return what a host tells; raises ``ValueError`` if it makes no sense."""
    found: Up = _read(_UP, line)
    return found


def taken_bytes(line: Message) -> int:
    """Return how much output of workers a message carries, for a stream or for log files."""
    event = line.get("value", {}).get("event", {}) if line.get("kind") == Told.__name__ else line
    return len(event["lines"]) if event.get("kind") in ("output", "logged") else 0


def _read(kinds: dict[str, Any], line: Message) -> Any:
    kind = kinds.get(str(line.get("kind")))
    if kind is None:
        raise ValueError(f"there is no message {line.get('kind')!r}")
    return from_plain(kind, line.get("value"))
