"""Names by date that a script makes: the run's, on all workers and in all launches.

Many scripts name a folder by the date.  Each worker would have a folder of its own, and each launch
another one, without the files of the launch before.  So the first process of a run that comes to
such a line writes the text into the run's record, and all others get it (`script_record`).

A name is what ``time.strftime`` makes of the present time for a line of the script, outside of
trainings.  Python's dates call it, too: for ``datetime.now().strftime(...)`` and in texts such as
``f"{datetime.now():%Y%m%d}"``.  A format with a colon is taken for a time that is shown.  All else
that reads the clock gets the clock, so measures are right.
"""

from __future__ import annotations

import calendar
import contextlib
import functools
import linecache
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_draws import exchange
from holdfast.runtime.worker.stacks import Frame

_ON_BEHALF = frozenset(
    {"os", "pathlib", "pathlib._local", "shutil", "tempfile", "contextlib", "weakref"}
)
"""Modules of Python that change files for their callers."""

_DIGITS = re.compile(r"\d+")
_DAY_S = 86_400
_SLACK_S = 2
"""Dates are cut to seconds."""

_MOST_NAMES = 100
"""A line that makes so many makes no names."""

_trainings = 0


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
        is_scripts = self._script.owns(frame.f_code) and self._script.is_here()
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

    def owns(self, code: CodeType) -> bool:
        """Return whether code is the script's, or that of a module beside it."""
        return self._owns(code.co_filename)

    def place(self, code: CodeType) -> str:
        """Return the function that some code is, and its file."""
        return f"{Path(code.co_filename).name} {code.co_name}"

    def line_behind(self, frame: FrameType | None) -> str | None:
        """Return the script's line that calls, itself or through Python's modules for files.

        None if a library calls.  The line is given in its words, because it may move in its file.
        """
        while frame is not None and frame.f_globals.get("__name__") in _ON_BEHALF:
            frame = frame.f_back
        if frame is None or not self.owns(frame.f_code):
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"{self.place(frame.f_code)}: {text}"

    def is_here(self) -> bool:
        """Return whether this is the main thread of the script, outside of trainings."""
        is_main = threading.get_ident() == self._thread and os.getpid() == self._process
        return is_main and not _trainings

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
