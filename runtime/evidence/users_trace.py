"""A traceback as the user of a script reads it: calls of the script and of Keras, not of holdfast.

The script calls ``fit``, and ``fit`` calls the script's callback.  What lies between is ten
calls of this package, which say nothing about the mistake.  One line says how many they are.
The journal keeps all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.runtime.evidence.stacks import Frame

_CALL = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$')
_OF_A_CALL = ("    ", "  [Previous line repeated")
"""How the lines begin that follow a call: its source, its marks, and its repetitions."""


def users_trace(trace: str) -> str:
    """Return the traceback ``trace`` with one line in the place of each run of holdfast's calls."""
    return "".join(_users_lines(trace))


def _users_lines(trace: str) -> Iterator[str]:
    hidden, is_own = 0, False
    for line in trace.splitlines(keepends=True):
        call = _CALL.match(line)
        if call is not None:
            is_own = Frame(call["file"], call["line"], call["name"]).is_holdfasts
            hidden += is_own
        elif is_own and not line.startswith(_OF_A_CALL):
            is_own = False
        if not is_own:
            if hidden:
                yield _hidden(hidden)
            hidden = 0
            yield line
    if hidden:
        yield _hidden(hidden)


def _hidden(calls: int) -> str:
    """Return the line that stands for so many calls."""
    what = "1 call" if calls == 1 else f"{calls} calls"
    return f"  [{what} of holdfast: -v shows more]\n"
