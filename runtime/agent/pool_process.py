"""A pool as a process: its command, its channel, and its output.

The imports of the pool are most of a job's start.  So the agent starts its first pool before
it imports anything else, and before it knows its job if it was started early itself.  A pool
waits for the names of the modules.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.runtime.system.channel import Channel, pair
from holdfast.runtime.system.helper_process import module_command
from holdfast.runtime.system.signals import blocked


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool imports, and the function that its workers run (``module:function``).

    A worker may open ``files`` files, and a few more for each of its peers.
    """

    preload: tuple[str, ...]
    entry: str
    files: int = 1024


@dataclass(frozen=True, slots=True)
class BegunPool:
    """A pool that was started, and waits to be told what it shall import.

    ``stdout`` and ``stderr`` are descriptors to read its output from.
    """

    process: subprocess.Popen[bytes]
    channel: Channel
    stdout: int
    stderr: int

    @staticmethod
    def begin() -> BegunPool:
        """Start a pool, a child of this process.

        Raises:
            OSError: the system has no process or descriptor to spare; nothing is left open.
        """
        with ExitStack() as kept, ExitStack() as given:
            ours, theirs = pair()
            kept.callback(ours.close)
            given.callback(theirs.close)
            stdout, its_stdout = _pipe(kept, given)
            stderr, its_stderr = _pipe(kept, given)
            process = _spawn(theirs, (its_stdout, its_stderr))
            kept.pop_all()
        return BegunPool(process, ours, stdout, stderr)

    def tell(self, settings: PoolSettings) -> PoolProcess:
        """Let it import."""
        self.channel.post(
            {
                "kind": "import",
                "modules": list(settings.preload),
                "entry": settings.entry,
                "files": settings.files,
            }
        )
        return PoolProcess(settings, self.process, self.channel, self.stdout, self.stderr)

    def end(self) -> None:
        """End it: there is nothing to import."""
        self.process.kill()
        self.process.wait()
        self.channel.close()
        os.close(self.stdout)
        os.close(self.stderr)


@dataclass(frozen=True, slots=True)
class PoolProcess:
    """A pool that imports or has imported, and the means to speak with it."""

    settings: PoolSettings
    process: subprocess.Popen[bytes]
    channel: Channel
    stdout: int
    stderr: int

    @staticmethod
    def start(settings: PoolSettings) -> PoolProcess:
        """Start a pool with these settings.

        Raises:
            OSError: the system has no process or descriptor to spare; nothing is left open.
        """
        return BegunPool.begin().tell(settings)


PoolStart: TypeAlias = PoolSettings | PoolProcess
"""A pool to start, or one that was started already."""


def _pipe(kept: ExitStack, given: ExitStack) -> tuple[int, int]:
    """Return a pipe, to be read here and written there; each stack closes one end."""
    read, write = os.pipe()
    kept.callback(os.close, read)
    given.callback(os.close, write)
    return read, write


def _spawn(control: Channel, output: Sequence[int]) -> subprocess.Popen[bytes]:
    command = [*module_command("holdfast.runtime.agent.pool")]
    command += ["--agent", str(os.getpid()), "--control-fd", str(control.fileno())]
    with blocked():
        return subprocess.Popen(
            command,
            pass_fds=[control.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output[0],
            stderr=output[1],
        )
