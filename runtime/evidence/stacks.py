"""The Python stacks of a process, read from what faulthandler or py-spy writes.

Both list the threads with their frames, the innermost first.  Here they become one form, which
is bounded and without what is the same in every worker:

* the main thread comes first; calls that lead to the user's script are left out;
* other threads that run no code of the user's, such as idle ones of a pool, have one line;
* long stacks lose their outer calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
_READING = f"{_HOLDFAST}/runtime/pipelines/"
_AROUND_USERS = (_READING, f"{_HOLDFAST}/runtime/callbacks/", f"{_HOLDFAST}/runtime/fit/")
"""Rooms whose code waits for the script's own: a pipeline, or a call of a callback."""
_FROM_A_PIPELINE = (_READING, "/tensorflow/python/ops/script_ops.py")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")


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


def shortened(trace: str) -> str:
    """Return a traceback of ``MOST_CHARACTERS`` at most: its outer calls, and its end."""
    if len(trace) <= MOST_CHARACTERS:
        return trace
    half = MOST_CHARACTERS // 2 - len(_CUT)
    return f"{trace[:half]}{_CUT}{trace[-half:]}"
