"""What one worker is doing, found out before it is killed.

Theory.  Two ways lead to the stacks of a Python process (decision 0018 has the measurements):

* the process writes them itself, at a signal: 2 to 4 ms, also inside a C call that keeps the
  interpreter's lock, and with nothing installed.  But it must be able to run;
* ``py-spy`` reads its memory: 30 to 50 ms, also of a process that is stopped or hangs in
  the kernel.  But it must be installed, and allowed to.

So a process that runs is asked.  Any other one, and one that does not answer soon, is read, if
py-spy is there.

Invariant: an inquiry never waits, and is over after two seconds at most.  The agent looks at it
from its loop; a fence waits no longer.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.runtime.evidence.stack_signal import answer_in, ask, state_of
from holdfast.runtime.evidence.stacks import Stacks
from holdfast.runtime.system.heartbeat import HeartbeatPage

MOST_S = 2.0
"""A fence is later by as much at most, because of its evidence.  On an overloaded machine 50 ms
of py-spy take a second."""
_ASKED_FOR_S = 0.5
"""A process that runs and has cores answers within milliseconds."""
_SPY_WRITES_MOST = 1 << 18


class Inquiry:
    """The search for the stacks of one process, from its begin to its result."""

    def __init__(self, pid: int, page: HeartbeatPage, now: float) -> None:
        self._pid = pid
        self._page = page
        self._began = now
        self._spy: _Spy | None = None
        self._is_asked = False
        self.stacks = Stacks()
        self.is_over = False
        state = state_of(pid)
        self._blocked_before = state.blocked_in
        if state.runs_no_code:
            self._start_spy()
        elif state.is_caught and not state.is_gone:
            self._is_asked = True
            ask(pid, page)
        else:
            self.is_over = True  # it does not listen yet: it has run no code of the user's

    def look(self, now: float) -> None:
        """Go on, as far as that takes no waiting."""
        if not self.is_over and self._is_asked:
            self._look_for_answer(now)
        if not self.is_over and self._spy is not None and self._spy.has_ended:
            self._end(Stacks.of_py_spy(self._spy.printed))
        if not self.is_over and now - self._began >= MOST_S:
            self._end(Stacks())

    def close(self) -> None:
        """End a py-spy that still runs."""
        if self._spy is not None:
            self._spy.close()
            self._spy = None

    def _look_for_answer(self, now: float) -> None:
        state = state_of(self._pid)
        is_answered = not state.is_pending and state.blocked_in <= self._blocked_before
        if is_answered or state.is_gone:
            self._end(Stacks.of_faulthandler(answer_in(self._page)))
        elif self._spy is None and (state.runs_no_code or now - self._began >= _ASKED_FOR_S):
            self._start_spy()

    def _start_spy(self) -> None:
        program = _py_spy()
        self._spy = None if program is None else _Spy.start(program, self._pid)
        if self._spy is None and not self._is_asked:
            self._end(Stacks())

    def _end(self, stacks: Stacks) -> None:
        self.close()
        self.stacks = stacks
        self.is_over = True


class _Spy:
    """A ``py-spy`` at work; it prints into memory, so that nothing reads a pipe for it."""

    def __init__(self, process: subprocess.Popen[bytes], memory: int) -> None:
        self._process = process
        self._memory = memory

    @staticmethod
    def start(program: str, pid: int) -> _Spy | None:
        """Let ``program`` read the process ``pid`` without stopping it."""
        memory = os.memfd_create("holdfast-py-spy", os.MFD_CLOEXEC)
        argv = _spy_argv(program, pid)
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=memory, stderr=subprocess.DEVNULL
            )
        except OSError:
            os.close(memory)
            return None
        return _Spy(process, memory)

    @property
    def has_ended(self) -> bool:
        """Whether it has printed all that it will."""
        return self._process.poll() is not None

    @property
    def printed(self) -> str:
        """What it has printed."""
        return os.pread(self._memory, _SPY_WRITES_MOST, 0).decode(errors="replace")

    def close(self) -> None:
        """Kill it, if it still runs, and wait for nothing: the agent reaps all its children."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.returncode = -signal.SIGKILL
        os.close(self._memory)


def _spy_argv(program: str, pid: int) -> list[str]:
    return [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]


def _py_spy() -> str | None:
    """Return the path of py-spy, which stands beside our Python or in ``PATH``; None without."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
