"""Keeps the daemons of a Slurm cluster: ``slurm_keeper.py DIRECTORY``; ends with its stdin.

It is the parent of the daemons and adopts what these leave, so nothing of the cluster
outlives it, and it outlives nobody who wants it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LOOK_S = 0.5
_ENDS_WITHIN_LOOKS = 20


def main() -> None:
    """Start the daemons, reap orphans, and end all with stdin."""
    at = sys.argv[1]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    munge = [
        *("munged", "--foreground", "--force", f"--socket={at}/munge.socket"),
        *(f"--key-file={at}/munge.key", f"--pid-file={at}/munged.pid"),
        f"--seed-file={at}/munged.seed",
    ]
    daemons = [
        subprocess.Popen(line, stdin=subprocess.DEVNULL, start_new_session=True)
        for line in (munge, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c", "-N", "n1"])
    ]
    while not select.select([0], [], [], _LOOK_S)[0]:
        _reap()
    for daemon in reversed(daemons):
        _end(daemon.pid)
    while _children():
        for pid in _children():
            _send(pid, signal.SIGKILL)
        _reap()
        select.select([], [], [], _LOOK_S)


def _end(pid: int) -> None:
    _send(pid, signal.SIGTERM)
    for _ in range(_ENDS_WITHIN_LOOKS):
        _reap()
        if pid not in _children():
            return
        select.select([], [], [], _LOOK_S)
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return [int(pid) for pid in children.read().split()]


if __name__ == "__main__":
    main()
