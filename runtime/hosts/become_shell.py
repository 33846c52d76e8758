"""The process that becomes a remote shell: ``python -I -S become_shell.py PARENT SHELL ...``.

The shell must die with its parent, the head: a shell that waits for a dead link would stay for
minutes.  Each process has to ask the kernel for that itself (prctl(2)), and the wish outlives
execve(2).
"""

from __future__ import annotations

import ctypes
import os
import sys
from _signal import SIGKILL  # type: ignore[import-not-found]  # typeshed leaves it out

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Die with the parent, and become the remote shell."""
    unused = ctypes.c_ulong(0)
    kernel = ctypes.CDLL(None)
    kernel.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), unused, unused, unused)
    if os.getppid() != int(sys.argv[1]):
        os.kill(os.getpid(), SIGKILL)  # the parent died before the kernel knew of the wish
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[2]} cannot be started: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
