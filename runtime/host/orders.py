"""What a supervisor may order: a launch, its end, a save or a stop of its workers, a lease."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from holdfast.recovery.launch import KILLED_WITH_ITS_LAUNCH
from holdfast.runtime.errors import JobError
from holdfast.runtime.host.hosted_worker import HostedLaunch
from holdfast.runtime.host.limits import HostWatch
from holdfast.runtime.host.mpi_host import MpiHost, MpiOrder
from holdfast.runtime.host.supervisor_link import SupervisorLink
from holdfast.runtime.host.worker_host import WorkerHost
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.system.channel import FDS, Message
from holdfast.runtime.system.worker_status import RequestFlag


class Orders:
    """Carries out the supervisor's messages, and refuses those that make no sense.

    It keeps the lease of the run directory, which the next supervisor gets.
    """

    def __init__(
        self,
        host: WorkerHost,
        mpi: MpiHost,
        supervisor: SupervisorLink,
        watch: HostWatch,
        socket: Path,
    ) -> None:
        self.lease: Lease | None = None
        self._host = host
        self._mpi = mpi
        self._supervisor = supervisor
        self._watch = watch
        self._socket = socket

    def obey(self, message: Message) -> None:
        """Carry out one order."""
        kind = message.get("kind")
        if kind == "ping":
            self._host.share_terminal(with_live_line=bool(message.get("draws")))
            self._supervisor.tell({"kind": "pong", **self._host.progress})
        elif kind == "lease":
            self._take_lease(message.get(FDS, ()))
        elif kind == "launch":
            self._begin(message)
        elif kind == "kill":
            is_urgent = bool(message.get("is_urgent"))
            self._host.kill_all(KILLED_WITH_ITS_LAUNCH, is_urgent=is_urgent)
            self._mpi.kill()
        elif kind == "request":
            self._ask(str(message.get("what")))
        else:
            self._refuse(f"there is no order {kind!r}")

    def _take_lease(self, fds: Sequence[int]) -> None:
        """Hold the lease of a run directory that was made again, in place of the old one."""
        for fd in fds:
            if self.lease is not None:
                self.lease.release()
            self.hold_lease(fd)

    def hold_lease(self, fd: int) -> None:
        """Hold the lease with this descriptor, and renew it where it must be."""
        self.lease = Lease(fd)
        with contextlib.suppress(OSError):  # nothing to spare: a supervisor renews it, too
            self.lease.keep()

    def _begin(self, message: Message) -> None:
        try:
            launch = HostedLaunch.of(message)
            order = MpiOrder.of(message["mpi"]) if "mpi" in message else None
        except (JobError, KeyError, TypeError, ValueError) as error:
            self._refuse(f"a launch message is incomplete: {type(error).__name__}: {error}")
            return
        self._supervisor.log.begin(message)
        self._watch.begin(len(launch.workers))
        try:
            self._host.begin(launch)
        except OSError as error:
            self._host.kill_all("its launch cannot begin")
            self._give_up(launch, f"{len(launch.workers)} workers cannot be made: {error}")
            return
        if order is not None:
            self._start_mpi(launch, order)

    def _start_mpi(self, launch: HostedLaunch, order: MpiOrder) -> None:
        ranks = len(launch.workers)
        try:
            self._mpi.begin(launch.generation, order, ranks, self._socket)
        except OSError as error:
            self._give_up(launch, f"{order.mpiexec} cannot be started: {error}")

    def _give_up(self, launch: HostedLaunch, words: str) -> None:
        ended = {"kind": "launch_ended", "generation": launch.generation, "words": words}
        self._supervisor.tell(ended)

    def _ask(self, what: str) -> None:
        if what == "renew":
            self._renew()
        elif what == "save":
            self._host.ask_all(RequestFlag.SAVE)
        elif what == "stop":
            self._host.stop_all()
        else:
            self._refuse(f"a worker can be asked to save or to stop, not {what!r}")

    def _renew(self) -> None:
        """Ask all to stop, and remember why: a supervisor that takes over launches again."""
        launch = self._supervisor.log.launch
        if launch is not None:
            self._supervisor.tell({"kind": "renewing", "worker": launch["config"]["workers"][0]})
            self._host.ask_all(RequestFlag.STOP)

    def _refuse(self, why: str) -> None:
        self._supervisor.tell({"kind": "refused", "message": why})
