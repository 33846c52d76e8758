"""The command lines of Python processes that holdfast starts.

``python -m`` and ``python -c`` look for modules in the working directory first.  The user
may have a ``queue.py`` there.  If others can write to it, they may leave a ``psutil.py``
there.  So holdfast's processes forget that directory before they import anything.
``PYTHONPATH`` counts: the user's script may need it.  (Python 3.11 has ``-P``.)
"""

from __future__ import annotations

import sys

_FORGET_WORKING_DIRECTORY = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a module as ``python -m`` does."""
    return program_command(_RUN_MODULE, module, *arguments)


def program_command(program: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a program's text as ``python -c`` does."""
    return (sys.executable, "-c", _FORGET_WORKING_DIRECTORY + program, *arguments)
