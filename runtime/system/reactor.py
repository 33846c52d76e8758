"""One loop over all events of a process: messages, deaths, new connections.

Handlers run one at a time in the thread that calls ``run_once``; none of them
may wait.  A process's death is watched through its pidfd, which becomes
readable when it ends (pidfd_open(2)), so nothing here polls.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.runtime.system.channel import ChannelError, LineChannel, Message

if TYPE_CHECKING:
    from _typeshed import HasFileno


@dataclass(frozen=True, slots=True)
class _Watched:
    handler: Callable[[], None]
    order: int


class Reactor:
    """Calls a handler for each descriptor that is ready, the lowest ``order`` first.

    A handler may forget any descriptor, and one that was forgotten is not
    called any more, even if it was ready too.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._channels: dict[int, LineChannel] = {}
        self._waiting: dict[int, LineChannel] = {}
        """Those of which more is to be known than that they are readable: a few of thousands."""

    def watch(
        self, source: int | HasFileno, handler: Callable[[], None], *, order: int = 1
    ) -> None:
        """Call ``handler`` whenever ``source`` is readable."""
        self._selector.register(source, selectors.EVENT_READ, _Watched(handler, order))

    def watch_channel(
        self,
        channel: LineChannel,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        """Call ``on_message`` for each message of ``channel``, and ``on_end`` once at its end.

        A peer that breaks the protocol counts as ended too.  The channel is forgotten, not
        closed, before ``on_end`` is called.  It may hold messages already.
        """

        def handle() -> None:
            channel.flush()
            try:
                messages = channel.drain()
            except ChannelError:
                messages = []
                channel.is_closed = channel.is_broken = True
            for message in messages:
                on_message(message)
            if channel.is_closed and self._channels.get(fd) is channel:
                self.forget(channel)
                on_end()

        def wait() -> None:
            self._waiting[fd] = channel

        fd = channel.fileno()
        self._channels[fd] = channel
        self.watch(channel, handle)
        channel.on_waiting = wait
        wait()

    def forget(self, source: int | HasFileno) -> None:
        """Watch ``source``, which must still be open, no more; forgetting twice is harmless."""
        fd = source if isinstance(source, int) else source.fileno()
        self._unregister(fd)
        channel = self._channels.pop(fd, None)
        if channel is not None:
            channel.on_waiting = lambda: None
            self._waiting.pop(fd, None)
            self._unregister(channel.write_fd)

    def run_once(self, timeout_s: float | None) -> None:
        """Wait until a descriptor is ready, at most ``timeout_s``, and handle all ready ones."""
        self._ask_for_writes()
        told = [fd for fd, channel in [*self._waiting.items()] if channel.has_news]
        ready = {key.fd: key for key, _ in self._selector.select(0.0 if told else timeout_s)}
        ready |= {fd: self._selector.get_key(fd) for fd in told}
        for key in sorted(ready.values(), key=lambda key: key.data.order):
            if self._selector.get_map().get(key.fd) is key:
                key.data.handler()

    def close(self) -> None:
        """Forget everything."""
        self._selector.close()
        self._channels.clear()
        self._waiting.clear()

    def _ask_for_writes(self) -> None:
        for fd, channel in list(self._waiting.items()):
            if not channel.is_waiting:
                del self._waiting[fd]
            if channel.write_fd != fd:
                self._ask_for_write_fd(channel)
                continue
            key = self._selector.get_key(fd)
            events = selectors.EVENT_READ
            if channel.wants_write:
                events |= selectors.EVENT_WRITE
            if key.events != events:
                self._selector.modify(key.fileobj, events, key.data)

    def _ask_for_write_fd(self, channel: LineChannel) -> None:
        """Watch the descriptor that is written only as long as there is something to write."""
        is_watched = channel.write_fd in self._selector.get_map()
        if channel.wants_write and not is_watched:
            flush = _Watched(channel.flush, order=1)
            self._selector.register(channel.write_fd, selectors.EVENT_WRITE, flush)
        elif is_watched and not channel.wants_write:
            self._selector.unregister(channel.write_fd)

    def _unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
