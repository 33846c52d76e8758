"""The workers of a launch as the agent has them: the part that decides, and the part of this host.

`LaunchPart` and `HostPart` speak by messages alone (`host_messages`).  Here a queue in memory
carries them, which hands them over one at a time, in order.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TypeAlias

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import Down, HostLink, News, OtherHost, Queue, Up
from holdfast.runtime.host.host_part import HostPart
from holdfast.runtime.host.launch_part import LaunchPart
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.host.pool_process import PoolStart
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import Bound
from holdfast.runtime.system.worker_status import WorkerStatus

_OTHERS_END_WITHIN_S = 5.0
"""The agents of all other hosts end at once, and side by side."""
_OnMessage: TypeAlias = Callable[[HostLink, Up], None]
_OnLost: TypeAlias = Callable[[HostLink, str], None]


class LocalHost:
    """The link between both parts in one process; they are set before it is used."""

    name = ""
    unheard_s = leased_s = 0.0
    part: HostPart
    launch: LaunchPart

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def post(self, message: Down, fds: Sequence[int] = ()) -> None:
        """Tell the host part something."""
        self._queue.put(lambda: self.part.take(message, fds))

    def tell(self, message: Up) -> None:
        """Tell the launch part something."""
        self._queue.put(lambda: self.launch.hear(self, message))

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        """Return the status of a worker, which both parts have."""
        return self.part.status_of(generation, worker)


class WorkerHost:
    """The ``launch`` part of an agent, its own host's ``part``, and the other hosts."""

    def __init__(
        self,
        reactor: Reactor,
        output: OutputForwarder,
        tell: Callable[[News], None],
        *,
        heartbeat_timeout_s: float,
        pool: PoolStart,
        on_files: Callable[[Channel], None] | None = None,
    ) -> None:
        """Start both parts; ``on_files`` gets each writer's channel for the run directory."""
        self._queue = Queue()
        self._others: list[OtherHost] = []
        self.own_name = ""
        """The name of this host in a job of several."""
        link = LocalHost(self._queue)
        self.launch = link.launch = LaunchPart(
            reactor, tell, [link], heartbeat_timeout_s=heartbeat_timeout_s
        )
        self.part = link.part = HostPart(
            reactor,
            output,
            link.tell,
            heartbeat_timeout_s=heartbeat_timeout_s,
            pool=pool,
            on_files=on_files,
        )

    def begin(self, launch: WorkerConfig) -> None:
        """Make the workers of ``launch``, which wait for their guards.

        The remaining workers of an earlier launch are killed.

        Raises:
            OSError: the system has nothing to spare for a worker.
        """
        links = {host.name: host for host in self._others if not host.is_lost}
        places = launch.host_of
        placed = {w: links[name] for w, name in places.items() if name in links}
        gone = sorted(set(places.values()) - set(links) - {self.own_name, ""})
        if gone:
            raise OSError(errno.EHOSTDOWN, f"{', '.join(gone)} cannot be reached")
        self.launch.begin(launch, placed)

    def add_host(
        self, start: Callable[[_OnMessage, _OnLost], OtherHost], *, is_tried: bool = False
    ) -> None:
        """Start another host, for the next launch; ``start`` takes what hears of it.

        One that ``is_tried`` again concerns no launch before it is ``admit``ted.

        Raises:
            OSError: it cannot be started.
        """
        host = start(self._hear, self._lose)
        self._others.append(host)
        if not is_tried:
            self.launch.add_host(host)

    def admit(self, name: str, then: Callable[[str], None]) -> None:
        """Let a host that was tried again, and has answered, take workers of the next launch.

        ``then`` hears "", or why it may not.
        """
        for host in self._others:
            if host.name == name and not host.is_lost:
                self.launch.examine(host, then)

    def _hear(self, host: HostLink, message: Up) -> None:
        self._queue.put(lambda: self.launch.hear(host, message))

    def _lose(self, host: HostLink, why: str) -> None:
        self._queue.put(lambda: self.launch.lose_host(host, why))

    def poll(self, now: float, mpiexec: int | None = None) -> None:
        """Look at the workers, at writer and pool, and at orders that are under way."""
        for host in self._others:
            host.poll(now)
        self._others = [host for host in self._others if not host.has_ended]
        self.part.poll(now, (mpiexec, *(host.pid for host in self._others)))
        self.launch.poll(now)

    def push(self) -> None:
        """Let other hosts know what has changed in the agent's words of the statuses."""
        for host in self._others:
            host.push()

    @property
    def has_other_hosts(self) -> bool:
        """Whether another host is connected, which must be pinged."""
        return any(not host.is_lost for host in self._others)

    def close(self) -> None:
        """Kill all workers, wait for them if they end, and end pool and writer."""
        self.launch.kill_all("the agent ends", is_urgent=True)
        for host in self._others:
            host.end()
        bound = Bound(_OTHERS_END_WITHIN_S)
        for host in self._others:
            host.close(bound.left_s())
        self.part.close()
