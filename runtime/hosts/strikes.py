"""Carries out a strike on this host, in its agent: what ``holdfast chaos`` has asked for.

Signals come from the agent itself, and look to everybody as if the world had sent them.  The agent
comes last, because it does nothing more then.  The watchdog is left alone: a host that stands still
for good must leave nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from holdfast.runtime.host.host_messages import BeStruck
from holdfast.runtime.host.host_part import HostPart

_WAKE = 'sleep "$0"; kill -s CONT "$@"'
"""A stopped agent cannot wake anybody, so a shell does."""


def carry_out(order: BeStruck, part: HostPart) -> None:
    """Strike; may not return."""
    pids = _victims(order, part)
    if order.for_s and pids:
        wake = ["/bin/sh", "-c", _WAKE, f"{order.for_s:g}", *map(str, pids)]
        null = subprocess.DEVNULL
        subprocess.Popen(wake, stdin=null, stdout=null, stderr=null, start_new_session=True)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, order.signal)


def _victims(order: BeStruck, part: HostPart) -> list[int]:
    """Return the processes that are meant, this one last."""
    workers = {(worker.generation, worker.worker): worker.pid for worker in part.workers}
    found: dict[str, list[int | None]] = {
        "worker": [workers.get((order.generation, order.worker))],
        "pool": [part.pool.pid],
        "writer": [part.writer.pid],
        "agent": [os.getpid()],
        "host": [*workers.values(), part.pool.pid, part.writer.pid, os.getpid()],
    }
    return [pid for pid in found[order.target] if pid is not None]
