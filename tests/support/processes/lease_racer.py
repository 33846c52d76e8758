"""A job that takes a lease without locks together with others, round after round.

It reads a run directory a line, whose lease it has watched for long enough as soon as it says
so.  It goes for it when a file ``go`` appears beside, and prints its token, or nothing.
"""

from __future__ import annotations

import errno
import fcntl
import sys
from pathlib import Path

from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.run.lease import LASTS_S, Lease
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.witnessed_time import Stillness


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSYS, "no locks here")


def _take(directory: RunDirectory, watch: Stillness) -> Lease | None:
    try:
        return directory.acquire_lease(watch=watch)
    except RunDirectoryBusy:
        return None


def main() -> None:
    """Race for each directory of stdin."""
    fcntl.flock = _refuse
    for line in sys.stdin:
        directory, now = RunDirectory(Path(line.strip())), [0.0]
        watch = Stillness(lambda now=now: now[0])  # type: ignore[misc]
        if directory.lease_path.exists():
            assert _take(directory, watch) is None
        now[0] += LASTS_S
        print("watched", flush=True)
        go = directory.path.with_name("go")
        while not go.exists():
            pass
        lease = _take(directory, watch)
        print("" if lease is None else lease.token, flush=True)


if __name__ == "__main__":
    main()
