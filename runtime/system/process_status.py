"""What /proc says of another process: its state, a signal on its way, its core."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SignalState:
    """What the kernel knows of a process, and of one signal in it."""

    state: str = ""
    """The letter of proc_pid_stat(5); "" if the process is gone."""
    is_caught: bool = False
    """Whether the process has a handler for the signal."""
    is_done: bool = True
    """Whether none waits to be handled, and no thread is in the handler."""

    @property
    def is_gone(self) -> bool:
        """Whether no memory of the process is left."""
        return self.state in ("", "Z", "X")

    @property
    def runs_no_code(self) -> bool:
        """Whether the process is stopped, or hangs in the kernel."""
        return self.state in ("T", "t", "D")


def signal_state(pid: int, number: int) -> SignalState:
    """Return the state of process ``pid`` and of signal ``number`` in it (proc_pid_status(5)).

    A thread that is in the signal's handler has the signal blocked.
    """
    bit = 1 << (number - 1)
    try:
        whole = _fields(f"/proc/{pid}/status")
        is_done = not int(whole["ShdPnd"], 16) & bit
        if is_done:
            threads = os.listdir(f"/proc/{pid}/task")
            blocked = (_fields(f"/proc/{pid}/task/{thread}/status") for thread in threads)
            is_done = not any(int(fields["SigBlk"], 16) & bit for fields in blocked)
        return SignalState(whole["State"][:1], bool(int(whole["SigCgt"], 16) & bit), is_done)
    except (OSError, KeyError):
        return SignalState()


def last_core(pid: int) -> int | None:
    """Return the core on which the main thread of ``pid`` ran last; also of a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b") ")[2].split()[36])
    except (OSError, IndexError, ValueError):
        return None


def _fields(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8", errors="replace") as status:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in status)}
