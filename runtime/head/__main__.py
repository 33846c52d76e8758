"""The head's entry: ``python -m holdfast.runtime.head``, the agent of a job's first host.

The pool's imports are most of a job's start, so it is started before the head's own imports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.runtime.host.pool_process import ENTRY, PoolProcess, PoolSettings, PoolStart
from holdfast.runtime.system.own_process import (
    adopt_orphans,
    allow_many_files,
    name_process,
)
from holdfast.runtime.system.owned_directory import hold
from holdfast.runtime.system.signals import block
from holdfast.runtime.system.witnessed_time import Bound

_REMOVED_WITHIN_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a head with command line arguments; return the exit code."""
    name_process("holdfast-agent")
    adopt_orphans()
    # 9 descriptors for each worker; workers get the limit that the user has set.
    files = allow_many_files()
    options = _parse(argv)
    pool = _first_pool(PoolSettings(_names(options.preload), options.entry, files))
    from holdfast.runtime.head.head import Head  # while the pool imports
    from holdfast.runtime.host.agent import AgentSettings

    hold(options.directory)
    settings = AgentSettings(
        directory=options.directory,
        heartbeat_timeout_s=options.heartbeat_timeout,
        pool=pool,
        parent=options.parent,
        lease=options.lease_fd,
        verbose=options.verbose,
    )
    head = Head(settings)
    try:
        return head.run()
    finally:
        head.close()
        block()
        _remove(options.directory)


def _first_pool(settings: PoolSettings) -> PoolStart:
    """Start a pool; if the system refuses one, the agent tries again and counts it as a death."""
    try:
        return PoolProcess.start(settings)
    except OSError:
        return settings


def _remove(directory: Path) -> None:
    """Remove the directory; retry for a while, as an mpiexec may still clean up in it."""
    bound = Bound(_REMOVED_WITHIN_S)
    while directory.exists() and not bound.has_passed:
        shutil.rmtree(directory, ignore_errors=True)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast.runtime.head")
    parser.add_argument("--directory", type=Path, required=True, help="it goes with the head")
    parser.add_argument("--heartbeat-timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--preload", default="", metavar="MODULE,...")
    parser.add_argument("--entry", default=ENTRY, metavar="MODULE:FUNCTION")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="the client that starts this head"
    )
    parser.add_argument("--lease-fd", type=int, help="the lease of the run directory")
    return parser.parse_args(argv)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    sys.exit(main())
