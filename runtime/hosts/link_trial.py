"""How fast two hosts of a job speak to each other: one listens, the other one measures.

The program does either on the host where a remote shell starts it.  It reads a `LinkQuestion` from
stdin.  One that shall listen tells its meeting in a line, and ends with its stdin.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from holdfast.runtime.hosts.remote_shell import RemoteShell, python_there
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.network import Meeting, MeetingPlace, Way
from holdfast.runtime.system.own_process import answer_of, has_ended

LINK_TRIAL = "holdfast.runtime.hosts.link_trial"

_PINGS = 50
_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 28
_LONG_ENOUGH_S = 0.1
"""What is sent takes twice as long each time, until it takes so long."""
_MEASURED_WITHIN_S = 60.0
_ENDS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class LinkQuestion:
    """What a host shall do: listen at its address, or measure the ways to meetings of others."""

    network: str
    address: str
    word: str
    meetings: tuple[Meeting, ...] = ()
    """None if it shall listen."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What was measured from one host to another."""

    latency_s: float = 0.0
    """There and back, by half of the messages at most."""
    bytes_per_s: float = 0.0
    fault: str = ""

    def __str__(self) -> str:
        """Say it in words."""
        if self.fault:
            return self.fault
        return f"{1e3 * self.latency_s:.2f} ms there and back, {self.bytes_per_s / 1e6:.0f} MB/s"


@dataclass(frozen=True, slots=True)
class LinkSpeeds:
    """The ways to all meetings of a question, in its order."""

    ways: tuple[LinkSpeed, ...]


def measure(meeting: Meeting, source: str, word: str) -> LinkSpeed:
    """Measure the way to a meeting, in about half a second."""
    try:
        with Way(meeting, source, word) as way:
            latency_s = statistics.median(_timed(way, 0) for _ in range(_PINGS))
            size, took_s, fastest = _FIRST_BYTES, 0.0, 0.0
            while took_s < _LONG_ENOUGH_S and size <= _MOST_BYTES:
                took_s = min(_timed(way, size), _timed(way, size))
                fastest = max(fastest, size / took_s)
                size *= 2
    except OSError as error:
        return LinkSpeed(fault=f"no connection: {error.strerror or error}")
    return LinkSpeed(latency_s, fastest)


def _timed(way: Way, size: int) -> float:
    began = time.perf_counter()
    way.send(size)
    return time.perf_counter() - began


def measure_pairs(
    pairs: Sequence[tuple[int, int]],
    names: Sequence[str],
    questions: Sequence[LinkQuestion],
    shell: RemoteShell,
) -> Iterator[tuple[int, int, LinkSpeed]]:
    """Yield the speed of each pair of hosts: the second one measures, one host after another.

    ``questions`` say where each host may listen.  The first host is this one.
    """
    with contextlib.ExitStack() as stack:
        listening = {
            number: _listening(stack, names[number], questions[number], shell, here=number == 0)
            for number in sorted({first for first, _ in pairs})
        }
        for second in sorted({second for _, second in pairs}):
            firsts = [first for first, other in pairs if other == second]
            ready = [(first, found) for first in firsts if (found := listening[first]) is not None]
            meetings = tuple(meeting for _, meeting in ready)
            question = LinkQuestion(
                questions[second].network,
                questions[second].address,
                questions[second].word,
                meetings,
            )
            ways = _measured(names[second], question, shell) if meetings else ()
            yield from ((first, second, way) for (first, _), way in zip(ready, ways, strict=True))
            for first in firsts:
                if listening[first] is None:
                    yield first, second, LinkSpeed(fault=f"{names[first]} cannot listen")


def _listening(
    stack: contextlib.ExitStack,
    name: str,
    question: LinkQuestion,
    shell: RemoteShell,
    *,
    here: bool,
) -> Meeting | None:
    """Let a host listen as long as the stack; None if it cannot."""
    if here:
        place = MeetingPlace([(IPv4Network(question.network), question.address)], question.word)
        return next(iter(stack.enter_context(place).meetings), None)
    process = subprocess.Popen(
        shell.command(name, python_there(LINK_TRIAL)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(_hang_up, process)
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.write(encode(question) + b"\n")
        process.stdin.flush()
    for line in process.stdout:  # a site may print something before
        with contextlib.suppress(ValueError):
            return decode(Meeting, line)
    return None


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """End a program that listens until its stdin ends."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert pipe is not None
            pipe.close()
    if not has_ended(process, _ENDS_WITHIN_S):
        process.kill()
        has_ended(process, _ENDS_WITHIN_S)


def _measured(name: str, question: LinkQuestion, shell: RemoteShell) -> tuple[LinkSpeed, ...]:
    command = shell.command(name, python_there(LINK_TRIAL))
    try:
        text = encode(question).decode() + "\n"
        answer = answer_of(command, _MEASURED_WITHIN_S, os.environ, text)
        return decode(LinkSpeeds, answer.stdout.rstrip().rpartition("\n")[2]).ways
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return (LinkSpeed(fault=f"{name} has not measured it"),) * len(question.meetings)


def main() -> None:
    """Do what the question on stdin asks for."""
    question = decode(LinkQuestion, sys.stdin.readline())
    if question.meetings:
        ways = tuple(
            measure(meeting, question.address, question.word) for meeting in question.meetings
        )
        print(encode(LinkSpeeds(ways)).decode(), flush=True)
        return
    place = MeetingPlace([(IPv4Network(question.network), question.address)], question.word)
    with place:
        for meeting in place.meetings:
            print(encode(meeting).decode(), flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
