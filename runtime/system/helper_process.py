"""The command lines of Python processes that holdfast starts.

``python -m`` and ``python -c`` look for modules in the working directory first.  The user
may have a ``queue.py`` there.  If others can write to it, they may leave a ``psutil.py``
there.  So holdfast's processes forget that directory before they import anything.
``PYTHONPATH`` counts: the user's script may need it.  (Python 3.11 has ``-P``.)
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from holdfast.runtime.system.witnessed_time import Bound

_FORGET_WORKING_DIRECTORY = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a module as ``python -m`` does."""
    return program_command(_RUN_MODULE, module, *arguments)


def program_command(program: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a program's text as ``python -c`` does."""
    return (sys.executable, "-c", _FORGET_WORKING_DIRECTORY + program, *arguments)


def answer_of(
    command: Sequence[str], within_s: float, environment: Mapping[str, str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program that reads ``text`` to its end, and return what it has said.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has not ended in time; it was killed.
    """
    unread: str | None = text
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE if text else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:

        def communicate(seconds: float) -> tuple[str, str] | None:
            nonlocal unread
            given, unread = unread, None
            try:
                return process.communicate(given or None, timeout=seconds)
            except subprocess.TimeoutExpired:
                return None

        try:
            said = Bound(within_s).wait(communicate)
            if said is None:
                raise subprocess.TimeoutExpired(command, within_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *said)
