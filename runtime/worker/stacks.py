"""What a worker is doing: its stacks, which it writes for its agent, and its tracebacks.

*The signal* at which a worker writes its stacks into its page has a handler in C
(``faulthandler``): 2 to 4 ms, also in the middle of a C call that keeps the interpreter's lock
(decision 0018).  It interrupts no system call that can be restarted (``SA_RESTART``).  The kernel
tells whether a process has the handler, and whether it is done: a thread in the handler has
the signal blocked.  So no message and no reply is needed, and a process without the handler is
never sent a signal that would end it.  One that is stopped, or hangs in the kernel, is not asked.

*Stacks* list the threads with their frames, the innermost first.  The form is bounded and without
what is the same in every worker:

* the main thread comes first; calls that lead to the user's script are left out;
* other threads that run no code of the user's, such as idle ones of a pool, have one line;
* long stacks lose their outer calls.

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
import signal
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from holdfast.runtime.run.program import is_holdfasts, is_users
from holdfast.runtime.run.progress import count
from holdfast.runtime.system.processes import signal_state
from holdfast.runtime.system.worker_status import STACKS_AT, WorkerStatus

MOST_CHARACTERS = 16 << 10
"""As much is kept of one worker, in the journal and on its way there."""
_MOST_FRAMES = 60
_CUT = "\n  ... more\n"

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_HOLDFAST = str(Path(__file__).parents[2])
_READING = f"{_HOLDFAST}/runtime/data/"
_AROUND_USERS = (_READING, f"{_HOLDFAST}/runtime/keras/", f"{_HOLDFAST}/runtime/script/")
"""Packages whose code waits for the script's own: a pipeline, or a call of a callback."""
_FROM_A_PIPELINE = (_READING, "/tensorflow/python/ops/script_ops.py")

STACK_SIGNAL = signal.SIGRTMIN + 13
"""A real-time signal in the middle of the range, which no library that we know of takes."""

_CALL = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$')
_OF_A_CALL = ("    ", "  [Previous line repeated")
"""How the lines begin that follow a call: its source, its marks, and its repetitions."""

MOST_S = 2.0
"""A fence is later by as much at most, because of its evidence.  A process that runs and has cores
answers within milliseconds."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: its function, and the place that it has come to."""

    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"

    @property
    def short(self) -> str:
        """The call without the folder of its file."""
        return f"{self.name} ({Path(self.file).name}:{self.line})"

    @property
    def is_holdfasts(self) -> bool:
        """Whether the code is that of this package."""
        return is_holdfasts(self.file)

    @property
    def is_users(self) -> bool:
        """Whether the code is neither a library's nor holdfast's."""
        return is_users(self.file)


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
    def of(text: str) -> Stacks:
        """Return the stacks that ``faulthandler`` has written; a torn end is left out.

        It writes the newest thread first, so the main thread is the last one.
        """
        blocks: list[list[Frame]] = []
        for line in text.splitlines():
            if _THREAD.match(line):
                blocks.append([])
            elif (found := _FRAME.match(line)) and blocks:
                blocks[-1].append(Frame(found["file"], found["line"], found["name"]))
        main = [Thread("main thread", tuple(block)) for block in blocks[-1:]]
        others = [Thread(f"thread {n}", tuple(b)) for n, b in enumerate(blocks[-2::-1], start=2)]
        return Stacks(tuple(main + others))

    @property
    def where(self) -> str:
        """The place where the main thread is, in short; "" if unknown.

        Where it waits for the script's own code, it is that code's, perhaps in another thread.
        """
        main = self.threads[0] if self.threads else Thread("main thread", ())
        place = main.place
        if place is not None and place.file.startswith(_AROUND_USERS):
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


def listen(page: WorkerStatus) -> None:
    """Write all stacks into ``page`` at each ``STACK_SIGNAL`` from now on (worker only)."""
    faulthandler.register(STACK_SIGNAL, file=page.fd, all_threads=True, chain=False)


class Inquiry:
    """The search for the stacks of one process, from its begin to its result."""

    def __init__(self, pid: int, page: WorkerStatus, now: float) -> None:
        self._pid = pid
        self._page = page
        self._began = now
        self.stacks = Stacks()
        state = signal_state(pid, STACK_SIGNAL)
        self._blocked_before = state.blocked_in
        # Without a handler it has run no code of the user's.
        self.is_over = state.runs_no_code or state.is_gone or not state.is_caught
        if not self.is_over:
            # Its descriptor is ours too, and so is the offset.
            os.lseek(page.fd, STACKS_AT, os.SEEK_SET)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACK_SIGNAL)

    def poll(self, now: float) -> None:
        """Go on, as far as that takes no waiting."""
        if self.is_over:
            return
        state = signal_state(self._pid, STACK_SIGNAL)
        is_answered = not state.is_pending and state.blocked_in <= self._blocked_before
        if is_answered or state.is_gone:
            length = os.lseek(self._page.fd, 0, os.SEEK_CUR) - STACKS_AT
            answer = os.pread(self._page.fd, max(0, length), STACKS_AT)
            self.stacks, self.is_over = Stacks.of(answer.decode(errors="replace")), True
        elif now - self._began >= MOST_S:
            self.is_over = True


def users_trace(trace: str) -> str:
    """Return the traceback ``trace`` with one line in the place of each run of holdfast's calls."""
    marked, is_own = list[tuple[bool, str]](), False
    for line in trace.splitlines(keepends=True):
        call = _CALL.match(line)
        if call is not None:
            is_own = is_holdfasts(call["file"])
        elif not line.startswith(_OF_A_CALL):
            is_own = False
        marked.append((is_own, line))
    text = ""
    for is_own, run in groupby(marked, itemgetter(0)):
        lines = [line for _, line in run]
        calls = count(len(list(filter(_CALL.match, lines))), "call")
        text += f"  [{calls} of holdfast: -v shows more]\n" if is_own else "".join(lines)
    return text


def shortened(trace: str) -> str:
    """Return a text of ``MOST_CHARACTERS`` at most, such as a traceback: its begin and its end."""
    if len(trace) <= MOST_CHARACTERS:
        return trace
    half = MOST_CHARACTERS // 2 - len(_CUT)
    return f"{trace[:half]}{_CUT}{trace[-half:]}"
