"""An agent that a test decides for: the head's process, with this stand-in for the head.

The test speaks over the agent's socket.  What it says are orders, and it hears each event.
"""

from __future__ import annotations

import sys

from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.head import __main__ as entry
from holdfast.runtime.head import head
from holdfast.runtime.host.agent import Agent, AgentSettings, Visitor
from holdfast.runtime.system.channel import Channel, Message


class Driven:
    """Does what the test orders until that ends."""

    def __init__(self, settings: AgentSettings) -> None:
        self._agent = Agent(settings, self._introduce, Channel.close)
        self._test: Channel | None = None
        self._is_over = False

    def run(self) -> ExitCode:
        self._agent.pass_signals(lambda numbers: self._agent.tell({"kind": "signalled"}))
        while not self._is_over:
            self._agent.turn()
            while self._test is not None and self._agent.events:
                self._test.post(self._agent.events.popleft())
        return ExitCode.DONE

    def close(self) -> None:
        self._agent.close()

    def _introduce(self, visitor: Visitor, message: Message) -> None:
        if message.get("kind") == "test":
            self._test = visitor.channel
            visitor.on_message, visitor.on_end = self._obey, self._end
        else:
            self._agent.reactor.forget(visitor.channel)
            visitor.channel.close()

    def _obey(self, message: Message) -> None:
        if message["kind"] == "shutdown":
            self._end()
            return
        try:
            self._agent.obey(message)
        except (JobError, ValueError) as error:
            self._agent.tell({"kind": "refused", "message": str(error)})
        else:
            self._agent.tell({"kind": "obeyed", "order": message["kind"]})

    def _end(self) -> None:
        self._is_over = True


if __name__ == "__main__":
    head.Head = Driven  # type: ignore[assignment, misc]
    sys.exit(entry.main())
