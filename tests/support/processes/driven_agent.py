"""An agent that a test decides for: the head's process, with this stand-in for the head.

The test speaks over the agent's socket.  What it says are orders, and it hears each event.
"""

from __future__ import annotations

import json
import sys

from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.head import __main__ as entry
from holdfast.runtime.head import head
from holdfast.runtime.host.agent import Agent, AgentSettings, Visitor
from holdfast.runtime.host.host_messages import News, Order
from holdfast.runtime.run.events import Notice, PoolWarmed
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, to_message

_ORDERS: MessageKinds[Order] = MessageKinds(Order)


class Driven:
    """Does what the test orders until that ends."""

    def __init__(self, settings: AgentSettings) -> None:
        self._agent = Agent(settings, self._introduce, Channel.close)
        self._test: Channel | None = None
        self._is_over = False
        self._started: set[tuple[int, int]] = set()

    def run(self) -> ExitCode:
        self._agent.pass_signals(lambda numbers: self._post({"kind": "signalled"}))
        while not self._is_over:
            self._agent.turn()
            self._tell_started()
            while self._test is not None and self._agent.events:
                self._pass_on(self._agent.events.popleft())
        return ExitCode.DONE

    def _tell_started(self) -> None:
        for hosted in self._agent.launch.workers:
            key = hosted.generation, hosted.worker
            if hosted.pid and hosted.guard and self._test is not None and key not in self._started:
                self._started.add(key)
                pid = hosted.pid
                self._post({"kind": "worker_started", "worker": hosted.worker, "pid": pid})

    def _pass_on(self, event: News) -> None:
        """Tell the test an event; what a tiny worker notices is its report."""
        match event:
            case Notice(text) if text.startswith("{"):
                self._post(json.loads(text))
            case PoolWarmed():
                self._post({**to_message(event), "pid": self._agent.host.pool.pid})
            case _:
                self._post(to_message(event))

    def _post(self, message: Message) -> None:
        if self._test is not None:
            self._test.post(message)

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
            self._agent.obey(_ORDERS.decode(message))
        except (JobError, ValueError) as error:
            self._post({"kind": "refused", "message": str(error)})
        else:
            self._post({"kind": "obeyed", "order": message["kind"]})

    def _end(self) -> None:
        self._is_over = True


if __name__ == "__main__":
    head.Head = Driven  # type: ignore[assignment, misc]
    sys.exit(entry.main())
