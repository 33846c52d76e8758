"""Names that a script makes from clock and pid: the run's, on all workers and in all launches.

Many scripts name a folder by the time, and some by the pid.  Each worker would have a folder of
its own, and each launch another one, without the files of the launch before.  So the first
process of a run that reads a clock for a name writes the reading into the run's record, and
all others get it (`script_record`).  Clocks of libraries, differences of times and waits are real.
While a training is under way all readings are real: hooks have their own agreement.

The text of the script's own line tells what it reads for:

* what becomes a part of a text or of a path is a name, unless it is only shown;
* what is added, subtracted or compared as a number measures;
* a number that is an argument, as of ``seed``, is a name if it measures nowhere else;
* the pid is a name in texts and seeds only: other arguments may act on the process.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import datetime as datetimes
import functools
import gc
import itertools
import linecache
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum, auto
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from holdfast.runtime.evidence.stacks import Frame
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_draws import exchange

_ON_BEHALF = frozenset(
    {"os", "pathlib", "pathlib._local", "shutil", "tempfile", "contextlib", "weakref"}
)
"""Modules of Python that change files for their callers."""

_plain_time, _plain_localtime, _plain_getpid = time.time, time.localtime, os.getpid
_TEXTS = frozenset({"str", "repr", "format", "join", "strftime", "isoformat", "ctime", "asctime"})
_FIELDS = frozenset({"year", "month", "day", "hour", "minute", "second", "microsecond"})
_NUMBERS = frozenset({"int", "round", "float", "abs", "localtime", "gmtime", "fromtimestamp"})
_SHOWING = frozenset({"print", "log", "debug", "info", "warning", "error", "notify"})
_ACTING = frozenset(
    {"append", "sleep", "utime", "kill", "killpg", "Process", "system", "run", "call", "Popen"}
    | {"check_call", "check_output"}
)
_SEEDING = re.compile("seed|rng|random|generator|key", re.IGNORECASE)
_PROCESS_TEXTS = ("/proc", "kill", "-p ")

_DEEPEST = 4
"""Variables that hold others are followed so far."""

_FOUND: dict[tuple[int, int, str], tuple[CodeType, bool]] = {}
"""Of each call, with its code, whose number is no other one's as long as it is held."""

_MOST_READINGS = 100
"""A line that has read the clock so often makes no names."""

_trainings = 0


def share_clock(clock: ScriptClock) -> None:
    """Let the script of this process read clock and pid through ``clock``."""
    for name in ("time", "time_ns"):
        exchange(time, name, _reading(clock, getattr(time, name)))
    for name in ("localtime", "gmtime", "ctime", "asctime", "strftime"):
        exchange(time, name, _converting(clock, getattr(time, name), int(name == "strftime")))
    _exchange_methods(clock)
    exchange(os, "getpid", lambda: clock.read_pid(_plain_getpid()))


def _reading(clock: ScriptClock, plain: Callable[[], Any]) -> Callable[[], Any]:
    def read() -> Any:
        real = plain()
        found = clock.read(plain.__name__, real)
        return real if found is None else found

    return read


def _converting(clock: ScriptClock, plain: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a function that converts a time, which it reads itself without one at ``place``."""
    converts_seconds = plain.__name__ in ("localtime", "gmtime", "ctime")

    def convert(*arguments: Any) -> Any:
        if len(arguments) != place or any(found is None for found in arguments):
            return plain(*arguments)
        found = clock.read(plain.__name__, _plain_time())
        if found is None:
            return plain(*arguments)
        return plain(*arguments, found if converts_seconds else _plain_localtime(found))

    return convert


def _exchange_methods(clock: ScriptClock) -> None:
    """Exchange the class methods of ``datetime`` that read the clock.

    The class is written in C and cannot be changed by assignment.  Another class in its place would
    not be that of the dates that libraries know and of those that are pickled.  So its own
    dictionary is changed, and the interpreter is told.
    """
    kind = datetimes.datetime
    methods = gc.get_referents(kind.__dict__)[0]
    plain = {name: methods[name] for name in ("now", "utcnow")}

    def now(cls: Any, tz: datetimes.tzinfo | None = None) -> Any:
        found = clock.read("now", _plain_time())
        return (
            plain["now"].__get__(None, cls)(tz) if found is None else cls.fromtimestamp(found, tz)
        )

    def utcnow(cls: Any) -> Any:
        found = clock.read("utcnow", _plain_time())
        if found is None:
            return plain["utcnow"].__get__(None, cls)()
        return cls.fromtimestamp(found, datetimes.timezone.utc).replace(tzinfo=None)

    methods |= {"now": classmethod(now), "utcnow": classmethod(utcnow)}
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


class ScriptClock:
    """Clock and pid of one process that runs a script.

    Args:
        record: that of the run.
        script: knows the lines of the script.
    """

    def __init__(self, record: ScriptRecord, script: CallingScript) -> None:
        self._record = record
        self._script = script
        self._readings: Counter[str] = Counter()

    def read(self, function: str, real: float) -> float | None:
        """Return the run's reading of the clock, None if the caller's caller gets the real one."""
        frame = sys._getframe(2)
        if not self._script.owns(frame) or not self._script.is_here():
            return None
        if not is_for_a_name(frame.f_code, frame.f_lineno, frame.f_lasti, function):
            return None
        place = f"{function} in {self._script.line_behind(frame)}"
        self._readings[place] += 1
        number = self._readings[place]
        return None if number > _MOST_READINGS else self._record.first(f"{place} {number}", real)

    def read_pid(self, real: int) -> int:
        """Return the run's pid for a name, else the real one."""
        frame = sys._getframe(2)
        if not self._script.owns(frame) or not self._script.is_own_process():
            return real
        if not is_for_a_name(frame.f_code, frame.f_lineno, frame.f_lasti, "getpid"):
            return real
        found: int = self._record.first("pid", real)
        return found


class CallingScript:
    """Knows the script of this process by its frames.

    A process that the script has forked is none: it goes its own way.
    """

    def __init__(self, script: Path) -> None:
        self._script = str(script)
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._owns = functools.lru_cache(maxsize=4096)(self._find_out)

    def owns(self, frame: FrameType) -> bool:
        """Return whether a frame runs a line of the script, or of a module beside it."""
        return self._owns(frame.f_code.co_filename)

    def line_behind(self, frame: FrameType | None) -> str | None:
        """Return the script's line that calls, itself or through Python's modules for files.

        None if a library calls.  The line is given in its words, because it may move in its file.
        """
        while frame is not None and frame.f_globals.get("__name__") in _ON_BEHALF:
            frame = frame.f_back
        if frame is None or not self.owns(frame):
            return None
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        text = linecache.getline(file, frame.f_lineno).strip()
        return f"{Path(file).name} {function}: {text}"

    def is_here(self) -> bool:
        """Return whether this is the main thread of the script, outside of trainings."""
        return not _trainings and threading.get_ident() == self._thread and self.is_own_process()

    def is_own_process(self) -> bool:
        """Return whether this process is no copy of the script's."""
        return _plain_getpid() == self._process

    def _find_out(self, file: str) -> bool:
        return file == self._script or Frame(file, "", "").is_users


def is_in_training() -> bool:
    """Return whether a training of this process is under way."""
    return _trainings > 0


@contextlib.contextmanager
def during_training() -> Iterator[None]:
    """Let all calls be a training's meanwhile: its hooks have their own agreement."""
    global _trainings  # noqa: PLW0603  (one process runs one script)
    _trainings += 1
    try:
        yield
    finally:
        _trainings -= 1


def is_for_a_name(code: CodeType, line: int, instruction: int, function: str) -> bool:
    """Return whether the call of ``function`` that a frame stands at is made for a name.

    A script without its text reads for no name.
    """
    place = id(code), instruction, function
    if place not in _FOUND:
        _FOUND[place] = code, _is_for_a_name(code, line, instruction, function)
    return _FOUND[place][1]


def _is_for_a_name(code: CodeType, line: int, instruction: int, function: str) -> bool:
    source = _source(code.co_filename)
    if source is None:
        return False
    end = _end_of_call(code, instruction)
    if end is None:
        on_line = source.calls_by_line.get(line, ())
        found = [call for call in on_line if _last_name(call.func) in (function, "today")]
    else:
        found = source.calls_by_end.get(end, [])
    names = {_Use.NAME} if function == "getpid" else {_Use.NAME, _Use.ARGUMENT}
    return any(source.use_of(call) in names for call in found)


def _end_of_call(code: CodeType, instruction: int) -> tuple[int, int] | None:
    """Return line and column of the end of a call, None on Python 3.10, which knows lines only."""
    if not hasattr(code, "co_positions"):
        return None
    place = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    _, line, _, column = place
    return None if line is None or column is None else (line, column)


@functools.lru_cache(maxsize=64)
def _source(file: str) -> _Source | None:
    text = "".join(linecache.getlines(file))
    try:
        return _Source(ast.parse(text)) if text else None
    except SyntaxError:
        return None


class _Source:
    """The text of one file, and how its values are used."""

    def __init__(self, tree: ast.Module) -> None:
        self._parents: dict[ast.AST, ast.AST] = {}
        self.calls_by_line: dict[int, list[ast.Call]] = {}
        self.calls_by_end: dict[tuple[int, int], list[ast.Call]] = {}
        self._loads: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            self._parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
            match node:
                case ast.Call(end_lineno=int(line), end_col_offset=int(column)):
                    self.calls_by_line.setdefault(node.lineno, []).append(node)
                    self.calls_by_end.setdefault((line, column), []).append(node)
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    self._loads.setdefault(name, []).append(node)

    def use_of(self, node: ast.expr, depth: int = 0) -> _Use:
        """Return what a value is used for, from the innermost operation outwards."""
        child: ast.AST = node
        use = _Use.NOTHING
        is_text = isinstance(node, ast.Call) and _last_name(node.func) in _TEXTS
        for parent in self._outwards(node):
            match parent:
                case ast.JoinedStr() | ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                    is_text = True
                    if any(mark in ast.unparse(parent) for mark in _PROCESS_TEXTS):
                        use = _Use.ACT
                case ast.Attribute(attr=attr):
                    is_text = is_text or attr in _TEXTS | _FIELDS or attr.startswith("tm_")
                case ast.Compare() | ast.BinOp(op=ast.Add() | ast.Sub()) | ast.AugAssign():
                    use = _Use.NOTHING if is_text else _Use.MEASURE
                case ast.Call(func=func) if child is not func:
                    name = _last_name(func)
                    is_text = is_text or name in _TEXTS or _SEEDING.search(name) is not None
                    use = _use_of_argument(name, is_text=is_text, is_direct=depth == 0)
                    if name in _SHOWING:
                        return _Use.NOTHING
                case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() if not is_text:
                    use = self._use_of_all(self._loads_of(parent), depth)
                case ast.Return() if not is_text:
                    use = self._use_of_all(self._calls_of_function(parent), depth)
            if use is not _Use.NOTHING:
                return use
            child = parent
        return _Use.NAME if is_text else _Use.NOTHING

    def _outwards(self, node: ast.AST) -> Iterator[ast.AST]:
        while not isinstance(node, ast.stmt) and node in self._parents:
            node = self._parents[node]
            yield node

    def _loads_of(self, assignment: ast.AST) -> Iterator[ast.expr]:
        """Return all places that read the variables or attributes of an assignment."""
        for target in ast.walk(assignment):
            if isinstance(getattr(target, "ctx", None), ast.Store):
                yield from self._loads.get(_last_name(target), ())

    def _calls_of_function(self, node: ast.AST) -> Iterator[ast.expr]:
        """Return all calls of the function that a statement stands in."""
        while node in self._parents and not isinstance(node, ast.FunctionDef):
            node = self._parents[node]
        for load in self._loads.get(getattr(node, "name", ""), ()):
            call = self._parents.get(load)
            if isinstance(call, ast.Call) and call.func is load:
                yield call

    def _use_of_all(self, values: Iterable[ast.expr], depth: int) -> _Use:
        if depth == _DEEPEST:
            return _Use.NOTHING
        return max((self.use_of(value, depth + 1) for value in values), default=_Use.NOTHING)


class _Use(IntEnum):
    """What a value is used for; of several uses the largest counts."""

    NOTHING = auto()
    ARGUMENT = auto()
    MEASURE = auto()
    NAME = auto()
    ACT = auto()


def _use_of_argument(function: str, *, is_text: bool, is_direct: bool) -> _Use:
    if (
        function in _ACTING
        and (is_direct or not is_text)
        and not (is_text and function == "append")
    ):
        return _Use.ACT
    return _Use.NOTHING if is_text or function in _NUMBERS else _Use.ARGUMENT


def _last_name(node: ast.AST) -> str:
    """Return ``now`` for ``datetime.datetime.now``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
