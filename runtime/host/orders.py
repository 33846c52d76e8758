"""What the head may order: a launch, its end, a save or a stop of its workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.recovery.launch import KILLED_WITH_ITS_LAUNCH
from holdfast.runtime.host.hosted_worker import HostedLaunch
from holdfast.runtime.host.limits import HostWatch
from holdfast.runtime.host.mpi_host import MpiHost, MpiOrder
from holdfast.runtime.host.worker_host import WorkerHost
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.worker_status import RequestFlag


class Orders:
    """Carries out the orders of the head."""

    def __init__(
        self,
        host: WorkerHost,
        mpi: MpiHost,
        tell: Callable[[Message], None],
        watch: HostWatch,
        socket: Path,
    ) -> None:
        self._host = host
        self._mpi = mpi
        self._tell = tell
        self._launch: HostedLaunch | None = None
        self._watch = watch
        self._socket = socket

    def obey(self, message: Message) -> None:
        """Carry out one order.

        Raises:
            JobError, KeyError, TypeError, ValueError: it makes no sense; nothing was done.
        """
        kind = message["kind"]
        if kind == "launch":
            self._begin(message)
        elif kind == "kill":
            is_urgent = bool(message.get("is_urgent"))
            self._host.kill_all(KILLED_WITH_ITS_LAUNCH, is_urgent=is_urgent)
            self._mpi.kill()
        elif kind == "abandon":
            self._abandon(message["reason"])
        elif kind == "request":
            self._ask(message["what"])
        else:
            raise ValueError(f"there is no order {kind!r}")

    def _begin(self, message: Message) -> None:
        launch = HostedLaunch.of(message)
        order = MpiOrder.of(message["mpi"]) if "mpi" in message else None
        self._launch = launch
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
        self._tell(ended)

    def _ask(self, what: str) -> None:
        if what == "renew":
            self._renew()
        elif what == "save":
            self._host.ask_all(RequestFlag.SAVE)
        elif what == "stop":
            self._host.stop_all()
        else:
            raise ValueError(f"a worker can be asked to save or to stop, not {what!r}")

    def _renew(self) -> None:
        """Ask all to stop, to make room for another launch; an order to stop would end the job."""
        if self._launch is not None:
            self._tell({"kind": "renewing", "worker": self._launch.workers[0]})
            self._host.ask_all(RequestFlag.STOP)

    def _abandon(self, reason: str) -> None:
        """Give a launch up whose processes do not even end when they are killed."""
        self._host.abandon(reason)
        self._mpi.abandon()
        if self._launch is not None:
            self._give_up(self._launch, "")
