"""The entry of an agent that another process tells what to do: ``python -m holdfast.runtime.host``.

The pool's imports are most of a job's start, so it is started before the agent's own imports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.runtime.host.pool_process import PoolProcess, PoolSettings, PoolStart
from holdfast.runtime.system.own_process import (
    adopt_orphans,
    allow_many_files,
    name_process,
)
from holdfast.runtime.system.owned_directory import hold
from holdfast.runtime.system.signals import block
from holdfast.runtime.system.witnessed_time import Bound

if TYPE_CHECKING:
    from holdfast.runtime.host.agent import Agent
    from holdfast.runtime.host.superior import Superior

DEFAULT_ENTRY = "holdfast.runtime.fit.script_setup:main"

_REMOVED_WITHIN_S = 5.0


def main(
    argv: Sequence[str] | None = None,
    superior: Callable[[], Callable[[Agent], Superior]] | None = None,
) -> int:
    """Run an agent with command line arguments; return its exit code.

    ``superior`` imports and returns what makes the one who decides; None for one at another
    end of a connection.
    """
    name_process("holdfast-agent")
    adopt_orphans()
    # 9 descriptors for each worker; workers get the limit that the user has set.
    files = allow_many_files()
    options = _parse(argv)
    pool = _first_pool(PoolSettings(_names(options.preload), options.entry, files))
    from holdfast.runtime.host.agent import Agent, AgentSettings  # while the pool imports

    hold(options.directory)
    settings = AgentSettings(
        directory=options.directory,
        heartbeat_timeout_s=options.heartbeat_timeout,
        pool=pool,
        parent=options.parent,
        lease=options.lease_fd,
        verbose=options.verbose,
        ready_fd=options.ready_fd,
    )
    agent = Agent(settings, None if superior is None else superior())
    agent.take_signals()
    try:
        return agent.run()
    finally:
        agent.close()
        block()
        if options.private:
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
    parser.add_argument("--private", action="store_true", help="the directory goes with the agent")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="process that starts this agent"
    )
    parser.add_argument("--lease-fd", type=int, help="the lease of the run directory, for a head")
    parser.add_argument("--ready-fd", type=int, help="gets a line as soon as the socket listens")
    return parser.parse_args(argv)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    sys.exit(main())
