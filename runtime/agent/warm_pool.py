"""The agent's handle on its pool: asks it for workers and replaces it when it dies.

Invariant: every requested worker is either pending here or was reported through
``on_forked`` exactly once.  Requests that a dead pool had not answered go to its
successor.  If a pool dies while it imports a module, later pools leave that module out.
So a bad module costs time, never the job.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Protocol

from holdfast.runtime.system.channel import Message, pair
from holdfast.runtime.system.helper_process import module_command
from holdfast.runtime.system.processes import describe_status
from holdfast.runtime.system.reactor import Reactor

_EARLY_DEATHS_ALLOWED = 5
"""A pool that dies more often before it is warm is given up; the number is our choice."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool imports, and the function that its workers run (``module:function``)."""

    preload: tuple[str, ...]
    entry: str


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A worker to be forked; ``fds`` are its control, heartbeat, stdout and stderr descriptors."""

    worker: int
    generation: int
    config: str
    fds: tuple[int, int, int, int]

    @property
    def key(self) -> tuple[int, int]:
        """The name of the request: generation and worker id."""
        return (self.generation, self.worker)

    def message(self) -> Message:
        """Return the request as the pool reads it."""
        return {
            "kind": "fork",
            "worker": self.worker,
            "generation": self.generation,
            "config": self.config,
        }


class PoolOwner(Protocol):
    """The agent's part that wants workers."""

    def on_forked(self, generation: int, worker: int, pid: int) -> None:
        """Take over the process ``pid``, a child of this process that begins now."""

    def on_fork_failed(self, generation: int, worker: int, message: str) -> None:
        """Give the worker up: there is no process for it."""

    def on_pool_event(self, event: Message) -> None:
        """Tell the supervisor: ``warm``, ``preload_failed``, ``pool_restarted``, ``pool_lost``."""

    def on_pool_output(self, stdout_fd: int, stderr_fd: int) -> None:
        """Forward the pool's own output, and close the descriptors at its end."""


class WarmPool:
    """A pool process and the requests that it has not answered yet."""

    def __init__(self, reactor: Reactor, settings: PoolSettings, owner: PoolOwner) -> None:
        self._reactor = reactor
        self._entry = settings.entry
        self._preload = settings.preload
        self._owner = owner
        self._pending: dict[tuple[int, int], ForkRequest] = {}
        self._importing: str | None = None
        self._early_deaths = 0
        self.is_warm = False
        self._start()

    @property
    def pid(self) -> int:
        """The process id of the pool."""
        return self._process.pid

    def request(self, request: ForkRequest) -> None:
        """Ask for a worker; its descriptors must stay open until it is reported."""
        self._pending[request.key] = request
        self._channel.post(request.message(), request.fds)

    def close(self) -> None:
        """End the pool and wait for it; pending requests are dropped."""
        self._stop_watching()
        self._process.kill()
        self._process.wait()
        self._pending.clear()

    def _start(self) -> None:
        self._channel, theirs = pair()
        command = [*module_command("holdfast.runtime.agent.pool")]
        command += ["--agent", str(os.getpid()), "--control-fd", str(theirs.fileno())]
        command += ["--entry", self._entry, "--preload", ",".join(self._preload)]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=(stdout := os.pipe())[1],
            stderr=(stderr := os.pipe())[1],
        )
        for fd in (stdout[1], stderr[1]):
            os.close(fd)
        theirs.close()
        self._owner.on_pool_output(stdout[0], stderr[0])
        self._end = os.pidfd_open(self._process.pid)
        # the pool's last messages are handled before its death; the channel's end adds nothing
        self._reactor.watch_channel(self._channel, self._on_message, lambda: None)
        self._reactor.watch(self._end, self._on_death, order=2)
        for request in self._pending.values():
            self._channel.post(request.message(), request.fds)

    def _on_message(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "importing":
            self._importing = str(message["module"])
        elif kind == "preload_failed":
            self._leave_out(str(message["module"]), str(message["message"]))
        elif kind == "warm":
            self.is_warm = True
            self._importing = None
            self._early_deaths = 0
            self._owner.on_pool_event({"kind": "warm", "pid": self._process.pid})
        elif kind == "forked":
            request = self._pending.pop((message["generation"], message["worker"]))
            self._owner.on_forked(request.generation, request.worker, int(message["pid"]))
        elif kind == "fork_failed":
            request = self._pending.pop((message["generation"], message["worker"]))
            reason = str(message["message"])
            self._owner.on_fork_failed(request.generation, request.worker, reason)

    def _on_death(self) -> None:
        for message in self._channel.drain():
            self._on_message(message)
        self._stop_watching()
        how = describe_status(self._process.wait())
        if self._importing is not None:
            self._leave_out(self._importing, f"the pool ended with {how} while importing it")
        self._early_deaths += not self.is_warm
        self.is_warm = False
        if self._early_deaths > _EARLY_DEATHS_ALLOWED:
            lost = f"the pool of warm processes ended {self._early_deaths} times, last with {how}"
            self._owner.on_pool_event({"kind": "pool_lost", "message": lost})
            return
        self._owner.on_pool_event({"kind": "pool_restarted", "cause": how})
        self._start()

    def _leave_out(self, module: str, message: str) -> None:
        self._importing = None
        if module in self._preload:
            self._preload = tuple(name for name in self._preload if name != module)
            failed = {"kind": "preload_failed", "module": module, "message": message}
            self._owner.on_pool_event(failed)

    def _stop_watching(self) -> None:
        if self._channel.fileno() < 0:
            return
        self._reactor.forget(self._channel)
        self._channel.close()
        self._reactor.forget(self._end)
        os.close(self._end)
