"""Processes that bear a mark in their environment, wherever they are in the tree.

A child inherits the environment of its parent.  So a mark that is given to one process
finds all its descendants, those that were adopted by others included.  No process of
anybody else bears it.  Needs Linux's ``/proc``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from holdfast.runtime.system.witnessed_time import Bound

_EXEC_WITHIN_S = 1.0
"""A program is loaded within milliseconds, unless the disk that it is on hangs."""
_LOOK_S = 0.001


def marked_processes(mark: str) -> dict[int, str]:
    """Return the name of every living process with ``mark`` (``NAME=value``), by process id.

    A zombie has no mark.
    """
    found = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and bears_mark(int(directory.name), mark):
            with contextlib.suppress(OSError):
                found[int(directory.name)] = (directory / "comm").read_text().strip()
    return found


def bears_mark(pid: int, mark: str) -> bool:
    """Return whether a process was started with ``mark``."""
    return mark.encode() in variables_of(pid)


def variables_of(pid: int) -> list[bytes]:
    """Return the variables of a process, none if it has ended or is another user's.

    In the midst of an ``exec`` it shows none for a moment, which is waited for.
    """
    bound = Bound(_EXEC_WITHIN_S)
    while not (found := _read(pid, "environ")) and _is_within_exec(pid):
        if bound.has_passed:
            break
        time.sleep(_LOOK_S)
    return (found or _read(pid, "environ")).split(b"\0")


def _is_within_exec(pid: int) -> bool:
    """Whether a process has a new program, but no arguments of that yet (``fs/exec.c``).

    A zombie and a thread of the kernel have no program.
    """
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return not _read(pid, "cmdline")


def command_line(pid: int) -> str:
    """Return the arguments of a process, each ended by a NUL; empty if it has ended."""
    return _read(pid, "cmdline").decode(errors="replace")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def signal_marked(pid: int, mark: str, *numbers: signal.Signals) -> bool:
    """Send signals to ``pid`` if it still is the process that bears ``mark``; return whether."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if bears_mark(pid, mark):
                for number in numbers:
                    signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False
