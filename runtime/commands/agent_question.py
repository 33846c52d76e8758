"""The question how a job stands, asked of its agent; asking changes nothing.

The lease names the agent's socket.  An agent that is stopped, or whose host is too busy, does
not answer in time; then the journal has to do.
"""

from __future__ import annotations

import contextlib
import select

from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Channel, ChannelError, Message, connect
from holdfast.runtime.system.witnessed_time import Bound

ANSWERS_WITHIN_S = 2.0
"""People wait for the answer; an agent looks at its messages many times a second."""


class AgentQuestion:
    """Asks again and again over one connection, and over another one if the agent has changed."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._channel: Channel | None = None
        self._is_asked = False
        self.is_silent = False
        """Whether there is an agent that has not answered the last question."""

    def ask(self, within_s: float = ANSWERS_WITHIN_S) -> Message | None:
        """Return the agent's ``status``, None if there is no agent or no answer.

        A question without an answer stays open: an agent that is stopped collects no others.
        """
        self.is_silent = False
        for _ in range(2):  # the agent may have ended since the last question
            channel = self._channel or self._connected()
            if channel is None:
                return None
            if not self._is_asked:
                channel.post({"kind": "status"})
                self._is_asked = True
            answer = _answer(channel, within_s)
            if answer is not None:
                self._is_asked = False
                return answer
            if not channel.is_closed:
                self.is_silent = True
                return None
            self.close()
        return None

    def close(self) -> None:
        """Leave the agent alone."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._is_asked = False

    def _connected(self) -> Channel | None:
        socket = self._directory.agent_socket()
        if socket is not None:
            with contextlib.suppress(OSError):
                self._channel = connect(socket)
        return self._channel


def _answer(channel: Channel, within_s: float) -> Message | None:
    """Return the answer, None if none comes in time or the agent has gone."""
    bound = Bound(within_s)
    while not channel.is_closed:
        try:
            answers = [found for found in channel.drain() if found.get("kind") == "status"]
        except ChannelError:
            channel.close()
            return None
        if answers:
            return answers[-1]
        if not bound.wait(lambda left_s: select.select([channel], [], [], left_s)[0]):
            return None
    return None
