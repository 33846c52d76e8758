"""The end of a script is that of a Python process, although its worker ends by ``os._exit``.

Finalisers of MPI may hang, and our own threads may still be writing.  So a worker never ends as
Python does.  But a script leaves work for the end, and Python does it in this order:

1. calls that libraries have given to ``threading``: executors finish, joblib's processes end;
2. all threads that are no daemons are joined;
3. what was given to ``atexit``, the last first: processes of ``multiprocessing`` are joined;
4. files that nobody has closed are written out.

The pool has imported libraries for its workers, and what these have left for the end belongs to
each worker.  How long all that takes is the script's affair, so it has no bound.  But it is told
what the script waits for.  When the job has ended the script, there is a bound.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
import threading
import traceback
from _io import _BufferedIOBase, _TextIOBase
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from holdfast.runtime.evidence.stacks import Frame

TOLD_AFTER_S = 60
CUT_AFTER_S = 3
"""So much time has the end of a script that the job has ended: all others may be waiting."""
_LOOK_S = 1


class EndWatch:
    """Counts the seconds of a script's end, and tells once what it waits for.

    With a ``cut`` the end has a bound.  Then it is called, and ends the process.
    """

    def __init__(
        self, tell: Callable[[str], None], cut: Callable[[], NoReturn] | None = None
    ) -> None:
        self._tell = tell
        self._cut = cut
        self._is_over = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="holdfast-end", daemon=True)

    def __enter__(self) -> None:
        """Begin to count."""
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        """Count no more; if the end is being cut, wait for that."""
        self._is_over.set()
        with self._ending:
            pass

    def _run(self) -> None:
        seconds = 0  # of looks: no time counts in which this process stood still
        while not self._is_over.wait(_LOOK_S):
            seconds += _LOOK_S
            if self._cut is not None and seconds >= CUT_AFTER_S:
                with self._ending:
                    if not self._is_over.is_set():
                        self._cut()
            if seconds == TOLD_AFTER_S:
                self._tell(
                    f"the script has come to its end, but {what_is_awaited()}: the job waits for "
                    "it, as Python does; end it in the script, or stop the job (Ctrl-C)"
                )


def end_as_python() -> None:
    """Do what Python does at the end of a process; call it in the main thread, once."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # Python itself calls it
    except BaseException:  # of the user's code; Python prints it too, and goes on
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    _write_files_out()


def tell_hook(error: BaseException) -> None:
    """Call the hook for errors that nobody has caught, if the script has set one of its own."""
    if sys.excepthook is sys.__excepthook__:
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        traceback.print_exc()


def flush_output() -> None:
    """Write out what the script has printed, as far as its streams still take it."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # the script may have put anything there
            if stream is not None:
                stream.flush()


def what_is_awaited() -> str:
    """Say in words what keeps the script from its end, and where that is."""
    frames = sys._current_frames()
    main = threading.main_thread()
    own = {thread.ident: thread for thread in threading.enumerate()}
    threads = [own[ident] for ident in frames if ident in own]
    awaited = [thread for thread in threads if thread is not main and not thread.daemon]
    places = {thread.name: _place(frames[thread.ident or 0]) for thread in awaited}
    awaited.sort(key=lambda thread: not places[thread.name].is_users)
    if awaited:
        what = f"its thread {awaited[0].name!r} is still in {places[awaited[0].name].short}"
        what += f", and {len(awaited) - 1} more" if len(awaited) > 1 else ""
    elif processes := _processes():
        what = f"its process {processes[0]!r} still runs"
    else:
        what = f"a call of its end is still in {_place(frames[main.ident or 0]).short}"
    return what


def _place(frame: FrameType) -> Frame:
    """Return the innermost call of the user's, else the innermost one."""
    calls = [
        Frame(call.f_code.co_filename, str(call.f_lineno), call.f_code.co_name)
        for call in _outwards(frame)
    ]
    return next((call for call in calls if call.is_users), calls[0])


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _processes() -> list[str]:
    """Return the names of the processes that the script has begun and Python would join."""
    module = sys.modules.get("multiprocessing.process")
    children = list(getattr(module, "_children", ()))
    return sorted(child.name for child in children if not child.daemon)


def _write_files_out() -> None:
    """Write out the files that the script has left open, which Python would close.

    Some kinds, such as those of gzip, are only whole when they are closed.
    """
    ours = {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}
    kinds = (_TextIOBase, _BufferedIOBase)
    found = [stream for stream in gc.get_objects() if isinstance(stream, kinds)]
    for stream in sorted(found, key=lambda stream: not isinstance(stream, _TextIOBase)):
        with contextlib.suppress(Exception):  # closed, or nobody reads what it writes
            if stream in ours or not stream.writable():
                continue
            stream.flush()
            if type(stream).__module__ not in ("_io", "io", "tempfile"):
                stream.close()
