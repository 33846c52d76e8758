"""Every complete save is answered once, in any order of parts, deaths, hangs and refused starts."""

from __future__ import annotations

import errno
import os
import subprocess
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.writing.writer_link import WriterLink

PARTS = 2


class FakeWriter:
    """A writer whose saves cost nothing; it works when it is told to."""

    def __init__(self, fd: int) -> None:
        self.channel = Channel.adopt(fd)
        self.pid = 0
        self.saves: dict[int, set[int]] = {}
        self.held: dict[int, int] = {}
        """The step of each complete save."""

    def serve(self) -> None:
        if self.channel.is_closed:
            return
        for message in self.channel.drain():
            if message["kind"] == "copied":
                self._copied(message)
            elif message["kind"] == "settle":
                step = self.held[max(self.held)] if self.held else None
                self.channel.post({"kind": "settled", "step": step})

    def _copied(self, message: Message) -> None:
        attempt = message["attempt"]
        parts = self.saves.setdefault(attempt, set())
        parts.add(message["part"])
        if len(parts) == PARTS:
            self.held[attempt] = message["step"]
            if "answered" not in message:
                names = "launch", "attempt", "step"
                answer = {name: message[name] for name in names}
                self.channel.post({"kind": "saved", **answer})

    def kill(self) -> None:
        self.channel.close()

    def poll(self) -> int | None:
        return -9 if self.channel.is_closed else None

    def wait(self, timeout: float) -> int:
        self.kill()
        return 0


class Agent:
    """An agent's side, with writers that the test makes work and die."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(subprocess, "Popen", self._start)
        self.writer: FakeWriter | None = None
        self.is_refused = False
        self.answers: list[Message] = []
        self.reactor = Reactor()
        self.link = WriterLink(self.reactor, self, clock=lambda: 0.0)
        self.link.use({"kind": "memory", "launch": 1, "layout": "L", "bytes": 1000}, ())

    def _start(self, command: object, *, pass_fds: list[int], **options: Any) -> FakeWriter:
        if self.is_refused:
            raise OSError(errno.EAGAIN, "no more processes")
        self.writer = FakeWriter(os.dup(pass_fds[0]))
        return self.writer

    def on_written(self, answer: Message) -> None:
        self.answers.append(answer)

    def on_writer_notice(self, notice: Message) -> None: ...

    def copied(self, attempt: int, part: int) -> None:
        message = {"kind": "copied", "launch": 1, "layout": "L", "generation": 1}
        numbers = {"attempt": attempt, "step": 10 * attempt, "part": part, "parts": PARTS}
        self.link.copied({**message, **numbers, "buffer": attempt % 2})

    def happen(self, event: str) -> None:
        match event:
            case "serve" if self.writer is not None:
                self.writer.serve()
            case "die" if self.writer is not None:
                self.writer.kill()
            case "hang":
                self.link.look(1e6)
            case "refuse" | "allow":
                self.is_refused = event == "refuse"
        self.hear()

    def hear(self) -> None:
        for _ in range(3):
            self.reactor.run_once(0.0)

    def settle(self) -> int | None:
        found: list[int | None] = []
        self.link.settle(lambda answer: found.append(answer["step"]))
        self.happen("serve")
        (step,) = found
        return step

    def close(self) -> None:
        self.link.close()
        self.reactor.close()


EVENTS = st.lists(st.sampled_from(["serve", "die", "hang", "refuse", "allow"]), max_size=3)
SAVES = st.lists(
    st.tuples(st.permutations(range(PARTS)), st.integers(1, PARTS), EVENTS, EVENTS),
    min_size=1,
    max_size=6,
)


@given(SAVES)
def test_complete_save_is_answered_once_and_the_newest_is_settled(
    saves: list[tuple[list[int], int, list[str], list[str]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        agent = Agent(patch)
        complete = []
        for attempt, (order, count, between, after) in enumerate(saves, 1):
            for place, part in enumerate(order[:count]):
                for event in between if place else ():
                    agent.happen(event)
                agent.copied(attempt, part)
            if count == PARTS:
                complete.append(attempt)
            for event in after:
                agent.happen(event)
        agent.happen("allow")
        agent.happen("serve")

        answered = Counter(answer["attempt"] for answer in agent.answers)
        settled = agent.settle()
        before_settle = len(answered)

        assert answered == Counter(complete)
        assert len(Counter(answer["attempt"] for answer in agent.answers)) == before_settle
        if complete and complete[-1] >= len(saves) - 1:  # no later one has taken its memory
            assert settled == 10 * complete[-1]
        agent.close()
