"""What a worker is doing and has said, found out before it is killed.

Theory.  Two ways lead to the stacks of a Python process (decision 0018 has the measurements):

* the process writes them itself, at a signal: 2 to 4 ms, also inside a C call that keeps the
  interpreter's lock, and with nothing installed.  But it must be able to run;
* ``py-spy`` reads its memory: 30 to 50 ms, also of a process that is stopped or hangs in
  the kernel.  But it must be installed, and allowed to.

So a process that runs is asked.  Any other one, and one that does not answer soon, is read, if
py-spy is there.

*Stacks.*  Both ways list the threads with their frames, the innermost first.  Here they become one
form, which is bounded and without what is the same in every worker:

* the main thread comes first; calls that lead to the user's script are left out;
* other threads that run no code of the user's, such as idle ones of a pool, have one line;
* long stacks lose their outer calls.

*The signal* at which a worker writes its stacks into its page has a handler in C
(``faulthandler``).  It needs no interpreter's lock, and runs in the middle of a C call that never
gives the lock back.  It interrupts no system call that can be restarted (``SA_RESTART``).  The
kernel tells whether a process has the handler, and whether it is done: a thread in the handler has
the signal blocked.  So no message and no reply is needed, and a process without the handler is
never sent a signal that would end it.

Invariant: an inquiry never waits, and is over after two seconds at most.  The agent looks at it
from its loop; a fence waits no longer.

*A traceback*, as the user of a script reads it, has calls of the script and of Keras, not of
holdfast.  The script calls ``fit``, and ``fit`` calls the script's callback.  What lies between is
ten calls of this package, which say nothing about the mistake.  One line says how many they are.
The journal keeps all of them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.system.own_process import allow_reading
from holdfast.runtime.system.processes import signal_state
from holdfast.runtime.system.worker_status import STACKS_AT, WorkerStatus

MOST_CHARACTERS = 16 << 10
"""As much is kept of one worker, in the journal and on its way there."""
_MOST_FRAMES = 60
_CUT = "\n  ... more\n"

_FAULTHANDLER_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FAULTHANDLER_FRAME = re.compile(
    r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$'
)
_SPY_THREAD = re.compile(r'^Thread (?P<tid>\S+) \([^)]*\)(?:: "(?P<name>.*)")?$')
_SPY_FRAME = re.compile(r"^ +(?P<name>\S.*) \((?P<file>[^()]*):(?P<line>\d+)\)$")
_HOLDFAST = str(Path(__file__).parents[2])
_READING = f"{_HOLDFAST}/runtime/data/"
_AROUND_USERS = (_READING, f"{_HOLDFAST}/runtime/callbacks/", f"{_HOLDFAST}/runtime/fit/")
"""Packages whose code waits for the script's own: a pipeline, or a call of a callback."""
_FROM_A_PIPELINE = (_READING, "/tensorflow/python/ops/script_ops.py")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")

STACK_SIGNAL = signal.SIGRTMIN + 13
"""A real-time signal in the middle of the range, which no library that we know of takes."""

_CALL = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$')
_OF_A_CALL = ("    ", "  [Previous line repeated")
"""How the lines begin that follow a call: its source, its marks, and its repetitions."""

MOST_S = 2.0
"""A fence is later by as much at most, because of its evidence.  On an overloaded machine 50 ms
of py-spy take a second."""
_ASKED_FOR_S = 0.5
"""A process that runs and has cores answers within milliseconds."""
_SPY_WRITES_MOST = 1 << 18

MOST_LINES = 40
_LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: its function, and the place that it has come to."""

    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"

    @property
    def is_around_users(self) -> bool:
        """Whether the code is ours, and only waits for what the script has given it."""
        return self.file.startswith(_AROUND_USERS)

    @property
    def short(self) -> str:
        """The call without the folder of its file."""
        return f"{self.name} ({Path(self.file).name}:{self.line})"

    @property
    def is_holdfasts(self) -> bool:
        """Whether the code is that of this package."""
        return self.file.startswith(f"{_HOLDFAST}/")

    @property
    def is_users(self) -> bool:
        """Whether the code is neither a library's nor holdfast's."""
        is_library = self.file.startswith("<") or any(mark in self.file for mark in _LIBRARIES)
        return not (is_library or self.is_holdfasts)


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread's frames, the innermost first."""

    name: str
    frames: tuple[Frame, ...]

    @property
    def runs_users_code(self) -> bool:
        """Whether any of its calls is the user's."""
        return any(frame.is_users for frame in self.frames)

    @property
    def place(self) -> Frame | None:
        """The innermost call that is no library's, else the innermost one; None without frames."""
        own = (frame for frame in self.frames if frame.is_users or frame.is_holdfasts)
        return next(own, self.frames[0] if self.frames else None)

    @property
    def users_place(self) -> Frame | None:
        """The innermost call of the user's, None without one."""
        return next((frame for frame in self.frames if frame.is_users), None)

    @property
    def serves_a_pipeline(self) -> bool:
        """Whether it runs the user's code for a pipeline that another thread reads."""
        by = any(mark in frame.file for frame in self.frames for mark in _FROM_A_PIPELINE)
        return by and self.runs_users_code

    @property
    def short(self) -> str:
        """The thread in one line."""
        return f"  {self.name}: {self.place or 'not in Python'}"

    def __str__(self) -> str:
        outermost = max((n for n, frame in enumerate(self.frames) if frame.is_users), default=None)
        frames = self.frames if outermost is None else self.frames[: outermost + 1]
        lines = [f"    {frame}" for frame in frames[:_MOST_FRAMES]]
        if len(frames) > _MOST_FRAMES:
            lines.append(f"    ... {len(frames) - _MOST_FRAMES} outer calls")
        return "\n".join([f"  {self.name}:", *lines])


@dataclass(frozen=True, slots=True)
class Stacks:
    """The threads of a process, the main thread first; none if they could not be read."""

    threads: tuple[Thread, ...] = ()

    @staticmethod
    def of_faulthandler(text: str) -> Stacks:
        """Return the stacks that ``faulthandler`` has written; a torn end is left out.

        It writes the newest thread first, so the main thread is the last one.
        """
        blocks: list[list[Frame]] = []
        for line in text.splitlines():
            if _FAULTHANDLER_THREAD.match(line):
                blocks.append([])
            elif (found := _FAULTHANDLER_FRAME.match(line)) and blocks:
                blocks[-1].append(Frame(found["file"], found["line"], found["name"]))
        main = [Thread("main thread", tuple(block)) for block in blocks[-1:]]
        others = [Thread(f"thread {n}", tuple(b)) for n, b in enumerate(blocks[-2::-1], start=2)]
        return Stacks(tuple(main + others))

    @staticmethod
    def of_py_spy(text: str) -> Stacks:
        """Return the stacks that ``py-spy dump`` has printed."""
        blocks: list[tuple[str, list[Frame]]] = []
        for line in text.splitlines():
            if found := _SPY_THREAD.match(line):
                blocks.append((found["name"] or f"thread {found['tid']}", []))
            elif (found := _SPY_FRAME.match(line)) and blocks:
                blocks[-1][1].append(Frame(found["file"], found["line"], found["name"]))
        named = [
            Thread("main thread" if name == "MainThread" else name, tuple(frames))
            for name, frames in blocks
        ]
        return Stacks(tuple(sorted(named, key=lambda thread: thread.name != "main thread")))

    @property
    def where(self) -> str:
        """The place where the main thread is, in short; "" if unknown.

        Where it waits for the script's own code, it is that code's, perhaps in another thread.
        """
        main = self.threads[0] if self.threads else Thread("main thread", ())
        place = main.place
        if place is not None and place.is_around_users:
            others = (one for one in self.threads[1:] if self.is_reading and one.serves_a_pipeline)
            place = next(others, main).users_place or place
        return "" if place is None else place.short

    @property
    def is_reading(self) -> bool:
        """Whether the main thread waits for a batch."""
        main = self.threads[0].frames if self.threads else ()
        return any(frame.file.startswith(_READING) for frame in main)

    def __str__(self) -> str:
        main = [str(thread) for thread in self.threads[:1]]
        others = [
            str(thread) if thread.runs_users_code else thread.short for thread in self.threads[1:]
        ]
        text = "\n".join([*main, *others])
        if len(text) <= MOST_CHARACTERS:
            return text
        end = "\n  ... more threads"
        return text[: MOST_CHARACTERS - len(end)] + end


def listen(page: WorkerStatus, agent: int) -> None:
    """Write all stacks into ``page`` at each ``STACK_SIGNAL`` from now on (worker only).

    ``agent`` and what it starts may read this process's memory, as py-spy does.
    """
    faulthandler.register(STACK_SIGNAL, file=page.fd, all_threads=True, chain=False)
    allow_reading(agent)


class Inquiry:
    """The search for the stacks of one process, from its begin to its result."""

    def __init__(self, pid: int, page: WorkerStatus, now: float) -> None:
        self._pid = pid
        self._page = page
        self._began = now
        self._spy: _Spy | None = None
        self._is_asked = False
        self.stacks = Stacks()
        self.is_over = False
        state = signal_state(pid, STACK_SIGNAL)
        self._blocked_before = state.blocked_in
        if state.runs_no_code:
            self._start_spy()
        elif state.is_caught and not state.is_gone:
            self._ask()
        else:
            self.is_over = True  # it does not listen yet: it has run no code of the user's

    def poll(self, now: float) -> None:
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

    def _ask(self) -> None:
        """Let the worker, which listens, write its stacks."""
        self._is_asked = True
        # Its descriptor is ours too, and so is the offset.
        os.lseek(self._page.fd, STACKS_AT, os.SEEK_SET)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, STACK_SIGNAL)

    def _answer(self) -> str:
        """Return what the worker has written since it was asked."""
        length = os.lseek(self._page.fd, 0, os.SEEK_CUR) - STACKS_AT
        return os.pread(self._page.fd, max(0, length), STACKS_AT).decode(errors="replace")

    def _look_for_answer(self, now: float) -> None:
        state = signal_state(self._pid, STACK_SIGNAL)
        is_answered = not state.is_pending and state.blocked_in <= self._blocked_before
        if is_answered or state.is_gone:
            self._end(Stacks.of_faulthandler(self._answer()))
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


def users_trace(trace: str) -> str:
    """Return the traceback ``trace`` with one line in the place of each run of holdfast's calls."""
    return "".join(_users_lines(trace))


def _users_lines(trace: str) -> Iterator[str]:
    hidden, is_own = 0, False
    for line in trace.splitlines(keepends=True):
        call = _CALL.match(line)
        if call is not None:
            is_own = Frame(call["file"], call["line"], call["name"]).is_holdfasts
            hidden += is_own
        elif is_own and not line.startswith(_OF_A_CALL):
            is_own = False
        if not is_own:
            if hidden:
                yield _hidden(hidden)
            hidden = 0
            yield line
    if hidden:
        yield _hidden(hidden)


def _hidden(calls: int) -> str:
    """Return the line that stands for so many calls."""
    what = "1 call" if calls == 1 else f"{calls} calls"
    return f"  [{what} of holdfast: -v shows more]\n"


def shortened(trace: str) -> str:
    """Return a traceback of ``MOST_CHARACTERS`` at most: its outer calls, and its end."""
    if len(trace) <= MOST_CHARACTERS:
        return trace
    half = MOST_CHARACTERS // 2 - len(_CUT)
    return f"{trace[:half]}{_CUT}{trace[-half:]}"


class LastLines:
    """Keeps the newest lines, each cut to its end: a progress bar writes one line for ever."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)

    def take(self, lines: bytes) -> None:
        """Keep the newest of whole ``lines``."""
        # Most output is short, but a chunk may hold thousands of lines.
        for line in lines.rsplit(b"\n", MOST_LINES + 1)[-MOST_LINES - 1 :]:
            if line.strip():
                self._lines.append(line.rstrip()[-_LONGEST_LINE:])

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, the newest last."""
        return tuple(line.decode(errors="replace") for line in self._lines)
