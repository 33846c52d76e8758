"""Which calls are the script's own, and the values of them that a run keeps.

Every worker runs the whole script, and so does each launch.  What the first process of a run reads
at a line of the script is written into the run's record, and all others get it (`ScriptRecord`):

* *names by date*: what ``time.strftime`` makes of the present time for a line of the script,
  outside of trainings.  Python's dates call it, too: for ``datetime.now().strftime(...)`` and in
  texts such as ``f"{datetime.now():%Y%m%d}"``.  A format with a colon is taken for a time that is
  shown.  All else that reads the clock gets the clock, so measures are right;
* whatever the script gives to ``holdfast.shared``.
"""

from __future__ import annotations

import calendar
import contextlib
import functools
import json
import linecache
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.program import is_users
from holdfast.runtime.run.script_record import ScriptRecord

_ON_BEHALF = frozenset({
    *("bz2", "contextlib", "gzip", "logging", "lzma", "os", "pathlib", "shutil", "tempfile"),
    *("weakref", "zipfile"),
    *("PIL", "imageio", "joblib", "matplotlib", "numpy", "pandas", "scipy"),
})  # fmt: skip
"""Packages that change files for their callers, where these say so."""
_OURS = __name__.rpartition(".")[0]

_DIGITS = re.compile(r"\d+")
_DAY_S = 86_400
_SLACK_S = 2
"""Dates are cut to seconds."""

_MOST_NAMES = 100
"""A line that makes so many makes no names."""

_Value = TypeVar("_Value")
_trainings = 0


def exchange(module: Any, name: str, function: Callable[..., Any]) -> None:
    """Let calls of a module's function call ``function``, without another frame in between."""
    made = functools.update_wrapper(_Exchanged(function), getattr(module, name))
    made.__module__ = module.__name__  # posix.getpid stays as it was
    setattr(module, name, made)


class _Exchanged(functools.partial[Any]):
    """A call in the place of a function; pickled by the function's name, as that one was."""

    def __reduce__(self) -> Any:
        return self.__name__  # type: ignore[attr-defined]

    def __get__(self, instance: object, owner: type | None = None) -> _Exchanged:
        return self


def share_names(record: ScriptRecord, script: CallingScript) -> None:
    """Let the script of this process name by the first date that the run has read."""
    names = NamesByDate(record, script)
    exchange(time, "strftime", functools.partial(names.strftime, time.strftime))


class NamesByDate:
    """The names of one process that runs a script."""

    def __init__(self, record: ScriptRecord, script: CallingScript) -> None:
        self._record = record
        self._script = script
        self._began = time.time()
        self._counts: Counter[str] = Counter()

    def strftime(self, plain: Any, form: str, *moment: Any) -> str:
        """Stand for ``time.strftime``."""
        text: str = plain(form, *moment)
        frame = sys._getframe(1)
        is_scripts = self._script.is_here() and self._script.owns(frame.f_code)
        if not is_scripts or ":" in form or not self._is_present(*moment):
            return text
        # Dates have put microseconds into the format.
        key = f"name {_DIGITS.sub('', form)} in {self._script.place(frame.f_code)}"
        self._counts[key] += 1
        number = self._counts[key]
        return text if number > _MOST_NAMES else str(self._record.first(f"{key} {number}", text))

    def _is_present(self, moment: Any = None) -> bool:
        """Return whether a moment, here or at Greenwich, was read in this process; a day counts."""
        if moment is None:
            return True
        since = self._began - (_SLACK_S if any(moment[3:6]) else _DAY_S)
        with contextlib.suppress(OverflowError):
            read = calendar.timegm(moment), time.mktime(moment)
            return any(since <= found <= time.time() + _SLACK_S for found in read)
        return False


class CallingScript:
    """Knows the script of this process by its frames.

    A process that the script has forked is none: it goes its own way.
    """

    def __init__(self, script: Path) -> None:
        self._script = str(script)
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._owns = functools.lru_cache(maxsize=4096)(self._find_out)
        self.training = 0
        """The number of the last training that the script has come to."""

    @property
    def moment(self) -> float:
        """How far the script is: a whole number is behind a training, one between is in it."""
        return self.training - 0.5 * is_in_training()

    @property
    def is_forked(self) -> bool:
        """Whether the script has forked this process."""
        return os.getpid() != self._process

    def owns(self, code: CodeType) -> bool:
        """Return whether code is the script's, or that of a module beside it."""
        return self._owns(code.co_filename)

    def place(self, code: CodeType) -> str:
        """Return the function that some code is, and its file."""
        return f"{Path(code.co_filename).name} {code.co_name}"

    def line_behind(self, frame: FrameType | None) -> str | None:
        """Return the script's line that calls, itself or through a package that writes files.

        None if another library calls, and in a training or another thread.  The line is given in
        its words, because it may move in its file.
        """
        if not self.is_here():
            return None
        while frame is not None and _is_on_behalf(frame.f_globals.get("__name__") or ""):
            frame = frame.f_back
        return None if frame is None or not self.owns(frame.f_code) else self.words_of(frame)

    def words_of(self, frame: FrameType) -> str:
        """Return the line that a frame of the script has come to, in its words."""
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"{self.place(frame.f_code)}: {text}"

    def is_here(self) -> bool:
        """Return whether this is the main thread of the script, outside of trainings."""
        return threading.get_ident() == self._thread and not self.is_forked and not _trainings

    def _find_out(self, file: str) -> bool:
        return file == self._script or is_users(file)


def _is_on_behalf(module: str) -> bool:
    is_mapped = module.endswith(".memmap")  # NumPy's, which is written after it is closed
    return (module.partition(".")[0] in _ON_BEHALF and not is_mapped) or module.startswith(_OURS)


_sharing: Callable[[FrameType, Any], Any] | None = None


def share_values(record: ScriptRecord, script: CallingScript) -> None:
    """Let `shared` return what stands in the run's record from now on."""
    global _sharing  # noqa: PLW0603  (one process runs one script)
    counts: Counter[str] = Counter()

    def first(frame: FrameType, value: Any) -> Any:
        line = script.line_behind(frame)
        if line is None:
            raise UsageError(
                "holdfast.shared(...) is for the script's own lines outside of fit(), in its main "
                "thread: call it before, and let callbacks use what it has returned"
            )
        counts[line] += 1
        return record.first(f"shared {counts[line]} of {line}", {"is": value})["is"]

    _sharing = first


def shared(value: _Value) -> _Value:
    """Return one value for all workers, which stays the same through all relaunches of the run.

    It is the ``value`` of the worker that comes to this line first: a number of a folder, a time,
    what a file holds.  It consists of None, booleans, numbers, texts, lists and dictionaries with
    texts as keys.  Without ``holdfast run`` it is the script's own.

    Raises:
        UsageError: the value is none of these, or a training is under way.
    """
    try:
        is_plain = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        is_plain = False
    if not is_plain:
        raise UsageError(
            f"holdfast.shared({type(value).__name__}) cannot be kept: give it None, booleans, "
            "finite numbers, texts, or lists and dictionaries of these, with texts as keys"
        )
    if _sharing is None:
        return value
    found: _Value = _sharing(sys._getframe(1), value)
    return found


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
