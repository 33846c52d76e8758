"""The process that becomes mpiexec: ``python -I -S become_mpiexec.py PARENT MPIEXEC ARGUMENT...``.

mpiexec must die with its parent, the agent: without an agent no rank can live, and a
stopped mpiexec would stay for ever.  The kernel sees to that, but each process has to ask
for itself (prctl(2)).  A wish made before execve(2) stays.
"""

from __future__ import annotations

import ctypes
import os
import sys
from _signal import SIGKILL  # type: ignore[import-not-found]  # typeshed leaves it out

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Die with the parent, and become mpiexec."""
    unused = ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), unused, unused, unused)
    if os.getppid() != int(sys.argv[1]):
        os.kill(os.getpid(), SIGKILL)  # the parent died before the kernel knew of the wish
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
