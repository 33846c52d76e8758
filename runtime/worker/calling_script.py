"""Whether it is the script that calls a function of Python, and not a library, nor a training."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from holdfast.runtime.evidence.stacks import Frame

_ON_BEHALF = frozenset(
    {"os", "pathlib", "pathlib._local", "shutil", "tempfile", "contextlib", "weakref"}
)
"""Modules of Python that change files for their callers."""

_trainings = 0


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


_plain_getpid = os.getpid


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
