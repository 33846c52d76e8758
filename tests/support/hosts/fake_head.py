"""The head of a job, as its socket shows it: it owns the run, and answers as a test says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Channel, Listener, Message, to_message
from holdfast.runtime.system.reactor import Reactor

Replies: TypeAlias = Iterable[object]
"""What a head says to a message; None is its death, as this connection sees it."""


class FakeHead:
    """Listens in a thread, at a socket in the run directory."""

    def __init__(self, directory: RunDirectory, reply: Callable[[Message], Replies]) -> None:
        self.heard: list[Message] = []
        self._reply = reply
        self._lease = directory.acquire_lease()
        self._listener = Listener(directory.path / "agent.sock")
        self._lease.name_head(os.getpid(), self._listener.path)
        self._channels: list[Channel] = []
        self._reactor = Reactor()
        self._reactor.watch(self._listener, self._accept)
        self._stop_read, self._stop_write = os.pipe()
        self._is_over = False
        self._reactor.watch(self._stop_read, self._stop)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Die, and let the run go."""
        os.write(self._stop_write, b"s")
        self._thread.join()
        for channel in self._channels:
            channel.close()
        self._reactor.close()
        self._listener.close()
        self._lease.release()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _serve(self) -> None:
        while not self._is_over:
            self._reactor.run_once(None)

    def _stop(self) -> None:
        self._is_over = True

    def _accept(self) -> None:
        channel = self._listener.accept()
        if channel is not None:
            self._channels.append(channel)
            self._reactor.watch_channel(
                channel, lambda message: self._hear(channel, message), channel.close
            )

    def _hear(self, channel: Channel, message: Message) -> None:
        self.heard.append(message)
        for answer in self._reply(message):
            if answer is None:
                self._reactor.forget(channel)
                channel.close()
                return
            channel.post(answer if isinstance(answer, dict) else to_message(answer))


@contextmanager
def head_of(directory: RunDirectory, reply: Callable[[Message], Replies]) -> Iterator[FakeHead]:
    """Let a head own the run, and answer each message by what ``reply`` returns."""
    head = FakeHead(directory, reply)
    try:
        yield head
    finally:
        head.close()
