"""Workers of a real MPI job: they reduce in a loop until one dies, then repair and leave.

``argv`` says who dies, where and how: ``"2:training:exit_1"``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tiny_worker import Tiny

from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.worker_status import Phase, Pulse, WorkerLeaving, pulse_interval_s

FATAL_STEP = 5


def main(config: WorkerConfig, control_fd: int, heartbeat_fd: int) -> NoReturn:
    tiny = Tiny(config, control_fd, heartbeat_fd)
    page = tiny.page
    Pulse(page, pulse_interval_s(config.options.heartbeat_timeout_s)).start()
    site, fatal = _fault_of(config)
    if site == "starting":
        DEATHS[fatal](None)
    page.phase = Phase.JOINING
    if site == "joining":
        signal.setitimer(signal.ITIMER_REAL, 0.02)  # SIGALRM ends the process by default
    world = _join()
    tiny.report("joined")
    page.phase = Phase.TRAINING
    survivors, noticed_at = world, 0.0
    for step in range(1, 1 + (3 if len(config.options.argv) == 0 else 1_000_000)):
        page.commit(step)
        if site == "training" and step == FATAL_STEP:
            tiny.report("dying", at=time.monotonic())
            DEATHS[fatal](world)
        if not _reduce(world):
            noticed_at = time.monotonic()
            survivors = _repair(world)
            break
    tiny.report("world", size=survivors.size, noticed=noticed_at)
    _leave(survivors, tiny)


def _fault_of(config: WorkerConfig) -> tuple[str, str]:
    for fault in config.options.argv:
        worker, site, fatal = fault.split(":")
        if int(worker) == config.worker:
            return site, fatal
    return "", ""


def _join() -> Any:
    import mpi4py

    assert "mpi4py.MPI" not in sys.modules
    assert mpi4py.rc.initialize is False
    from mpi4py import MPI

    MPI.Init_thread(MPI.THREAD_SERIALIZED)
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    return MPI.COMM_WORLD


def _reduce(world: Any) -> bool:
    import numpy as np
    from mpi4py import MPI

    total = np.zeros(8, np.float32)
    try:
        world.Allreduce(np.ones(8, np.float32), total)
    except MPI.Exception:
        return False
    assert total[0] == world.size
    return True


def _repair(world: Any) -> Any:
    world.Revoke()
    return world.Shrink()


def _leave(world: Any, tiny: Tiny) -> NoReturn:
    world.Agree(1)
    tiny.page.phase = Phase.LEAVING
    tiny.tell(WorkerLeaving(tiny.config.worker))
    os._exit(0)


def _raise(_: Any) -> None:
    raise ValueError("the loss is not finite")


DEATHS: dict[str, Callable[[Any], object]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "exit_1": lambda _: os._exit(1),
    "exit_0": lambda _: os._exit(0),
    "sys_exit": lambda _: sys.exit(1),
    "raise": _raise,
    "segfault": lambda _: ctypes.string_at(0),
    "mpi_abort": lambda world: world.Abort(3),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "hold_gil": lambda _: ctypes.PyDLL(None).pause(),
    "alarm": lambda _: None,
}
