"""A directory whose disk may hang, while a job that has not begun asks it for the first time.

A call into a file system whose server is gone lasts for ever, and no exception ends it.  So
a thread waits beside the calls: it says that the directory does not answer, and later ends
the process.  Nothing is lost, because nothing was started.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import Bound

TELLS_AFTER_S = 10.0
GIVES_UP_AFTER_S = 300.0


@contextlib.contextmanager
def answering(
    path: Path, tell: Callable[[str], None], kind: str = "run directory"
) -> Iterator[None]:
    """Run the body, which asks the directory ``path``; end the process if it never answers.

    ``kind`` says in messages which directory that is.

    The body may hang in the kernel, so the end is ``os._exit``, with the exit code of a job
    that can be started again.
    """
    has_answered = threading.Event()

    def wait() -> None:
        if Bound(TELLS_AFTER_S).wait(has_answered.wait):
            return
        tell(
            f"the {kind} {path} has not answered for {TELLS_AFTER_S:.0f} s; waiting for its "
            f"disk, {GIVES_UP_AFTER_S:.0f} s at most"
        )
        if Bound(GIVES_UP_AFTER_S - TELLS_AFTER_S).wait(has_answered.wait):
            return
        tell(
            f"the {kind} {path} has not answered for {GIVES_UP_AFTER_S:.0f} s: its disk "
            "hangs; nothing was started, and nothing is known to be damaged; run again when it "
            "answers"
        )
        os._exit(ExitCode.STOPPED_EARLY)

    with blocked():  # signals are for the main thread
        threading.Thread(target=wait, name="holdfast-answering", daemon=True).start()
    try:
        yield
    finally:
        has_answered.set()
