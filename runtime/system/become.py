"""The process that becomes mpiexec, or a remote shell.

By path it is a program: ``python -I -S become.py PARENT PROGRAM ...``.  The program must die with
its parent, the agent.  Without an agent no rank can live, and a stopped mpiexec would stay for
ever.  A shell that waits for a dead link would stay for minutes.  The kernel sees to that, but each
process has to ask for itself (prctl(2)).  A wish made before execve(2) stays.
"""

from __future__ import annotations

import ctypes
import os
import sys
from _signal import SIGKILL  # type: ignore[import-not-found]  # typeshed leaves it out

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Die with the parent, and become the program."""
    kernel = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
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
