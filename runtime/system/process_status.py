"""What /proc says of another process: its state, age and core, a signal, what it has read."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

_STARTED, _LAST_CORE = 19, 36
"""Places in proc_pid_stat(5), counted from the field after the name."""


@dataclass(frozen=True, slots=True)
class SignalState:
    """What the kernel knows of a process, and of one signal in it."""

    state: str = ""
    """The letter of proc_pid_stat(5); "" if the process is gone."""
    is_caught: bool = False
    """Whether the process has a handler for the signal."""
    is_pending: bool = False
    """Whether it was sent to the process, and no thread has taken it yet."""
    blocked_in: frozenset[str] = frozenset()
    """The threads that have it blocked: for ever, or because they are in its handler."""

    @property
    def is_gone(self) -> bool:
        """Whether no memory of the process is left."""
        return self.state in ("", "Z", "X")

    @property
    def runs_no_code(self) -> bool:
        """Whether the process is stopped, or hangs in the kernel."""
        return self.state in ("T", "t", "D")


def signal_state(pid: int, number: int) -> SignalState:
    """Return the state of process ``pid`` and of signal ``number`` in it (proc_pid_status(5))."""
    bit = 1 << (number - 1)
    try:
        whole = _fields(f"/proc/{pid}/status")
        # In this order: a signal that is not pending any more is in its handler, or handled.
        blocked_in = frozenset(
            thread
            for thread in os.listdir(f"/proc/{pid}/task")
            if int(_fields(f"/proc/{pid}/task/{thread}/status")["SigBlk"], 16) & bit
        )
    except (OSError, KeyError):
        return SignalState()
    return SignalState(
        whole["State"][:1],
        is_caught=bool(int(whole["SigCgt"], 16) & bit),
        is_pending=bool(int(whole["ShdPnd"], 16) & bit),
        blocked_in=blocked_in,
    )


def last_core(pid: int) -> int | None:
    """Return the core on which the main thread of ``pid`` ran last; also of a zombie."""
    fields = _after_name(pid)
    return int(fields[_LAST_CORE]) if len(fields) > _LAST_CORE else None


def age_s(pid: int) -> float:
    """Return the seconds since the process began, 0 if it is gone."""
    fields = _after_name(pid)
    if len(fields) <= _STARTED:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_STARTED]) / os.sysconf(
        "SC_CLK_TCK"
    )


def state_of(pid: int) -> str:
    """Return the letter of the process's state in proc_pid_stat(5), "" if it is gone."""
    return next(iter(_after_name(pid)), "")


def is_alive(pid: int) -> bool:
    """Return whether ``pid`` runs; a zombie does not."""
    return state_of(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    """Return whether ``pid`` is stopped by a signal or a tracer, and so runs no code."""
    return state_of(pid) in ("T", "t")


def hangs_in_kernel(pid: int) -> bool:
    """Return whether ``pid`` is in a call that no signal interrupts."""
    return state_of(pid) == "D"


def characters_read(pid: int) -> int:
    """Return the bytes that the process has got from ``read`` and its like (proc_pid_io(5))."""
    try:
        return int(_fields(f"/proc/{pid}/io")["rchar"])
    except (OSError, KeyError):
        return 0


def _after_name(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) after the name, none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2].decode().split()
    except OSError:
        return []


def _fields(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8", errors="replace") as status:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in status)}


def ancestors_names() -> tuple[str, ...]:
    """Return the names of the processes that this one descends from, as far as they are seen."""
    names, pid = [], os.getppid()
    while pid:
        try:
            fields = _fields(f"/proc/{pid}/status")
            names.append(fields["Name"])
            pid = int(fields["PPid"])
        except (OSError, KeyError, ValueError):
            break
    return tuple(names)
