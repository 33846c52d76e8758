"""Names that a script makes from clock and pid: the run's, on all workers and in all launches.

Many scripts name a folder by the time, and some by the pid.  Each worker would have a folder of
its own, and each launch another one, without the files of the launch before.  So the first
process of a run that reads a clock for a name writes the reading into the run's record, and
all others get it (`script_record`).  Only what the script's own lines read for a name is
the run's (`name_uses`); clocks of libraries, differences of times and waits are real.

While a training is under way all readings are real: hooks have their own agreement.
"""

from __future__ import annotations

import ctypes
import datetime as datetimes
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.calling_script import CallingScript
from holdfast.runtime.worker.exchanged import exchange
from holdfast.runtime.worker.name_uses import is_for_a_name

_MOST_READINGS = 100
"""A line that has read the clock so often makes no names."""


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


def share_clock(clock: ScriptClock) -> None:
    """Let the script of this process read clock and pid through ``clock``."""
    for name in ("time", "time_ns"):
        exchange(time, name, _reading(clock, getattr(time, name)))
    for name in ("localtime", "gmtime", "ctime", "asctime", "strftime"):
        exchange(time, name, _converting(clock, getattr(time, name), int(name == "strftime")))
    _exchange_methods(clock)

    plain = os.getpid

    def getpid() -> int:
        return clock.read_pid(plain())

    exchange(os, "getpid", getpid)


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


_plain_time, _plain_localtime = time.time, time.localtime


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
