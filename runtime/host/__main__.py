"""The agent's entry: ``python -m holdfast.runtime.host``.

The pool's imports are most of a job's start, so it is started before the agent's own imports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.runtime.host.pool_process import PoolProcess, PoolSettings, PoolStart
from holdfast.runtime.system.own_process import (
    adopt_orphans,
    allow_many_files,
    name_process,
)
from holdfast.runtime.system.owned_directory import hold
from holdfast.runtime.system.signals import block
from holdfast.runtime.system.witnessed_time import Bound

DEFAULT_ENTRY = "holdfast.runtime.fit.script_setup:main"

_REMOVED_WITHIN_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent with command line arguments; return its exit code."""
    name_process("holdfast-agent")
    adopt_orphans()
    # 9 descriptors for each worker; workers get the limit that the user has set.
    files = allow_many_files()
    options = _parse(argv)
    pool = _first_pool(PoolSettings(_names(options.preload), options.entry, files))
    from holdfast.runtime.host.agent import Agent, AgentSettings  # while the pool imports

    hold(options.directory)
    agent = Agent(
        AgentSettings(
            directory=options.directory,
            heartbeat_timeout_s=options.heartbeat_timeout,
            pool=pool,
            parent=options.parent,
            lease=options.lease_fd,
            verbose=options.verbose,
            ready_fd=options.ready_fd,
        )
    )
    agent.take_signals()
    try:
        return agent.run()
    finally:
        is_last = options.private and not agent.has_supervisor
        agent.close()
        block()
        if is_last:
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
    parser = argparse.ArgumentParser(prog="python -m holdfast.runtime.host")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--heartbeat-timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--preload", default="", metavar="MODULE,...")
    parser.add_argument("--entry", default=DEFAULT_ENTRY, metavar="MODULE:FUNCTION")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--private", action="store_true", help="the directory goes with the job")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="process that starts this agent"
    )
    parser.add_argument("--lease-fd", type=int, help="goes to a supervisor that takes over")
    parser.add_argument("--ready-fd", type=int, help="gets a line as soon as the socket listens")
    return parser.parse_args(argv)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    sys.exit(main())
