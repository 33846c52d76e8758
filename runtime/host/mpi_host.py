"""The mpiexec of a launch: started with it, and ended when its workers are gone.

A batch system sends its signals to every process of a job.  mpiexec would end its ranks when
it gets one of them, although the job still has a checkpoint to write.  It installs handlers
of its own, so an ignored signal would not stay ignored.  A *blocked* one stays blocked:
children inherit the mask, and mpiexec and its libraries leave it alone (measured on PRRTE
3.0).  mpiexec unblocks all signals in the ranks that it starts.

Under ``--with-ft ulfm`` mpiexec ends by itself 0.3 s after its last rank, and its exit code
means nothing.  So the end of a launch is told once, when mpiexec and all workers that ran
are gone.  An mpiexec that outlives its workers is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.recovery.event import Event, LaunchEnded
from holdfast.runtime.host import guard as guard_file
from holdfast.runtime.host.host_messages import MpiOrder
from holdfast.runtime.host.launchers import LAUNCHERS, OPEN_MPI, LaunchLine
from holdfast.runtime.host.output import without_rules
from holdfast.runtime.run.events import Warned
from holdfast.runtime.system import become
from holdfast.runtime.system.connections import stranger, watch_strangers
from holdfast.runtime.system.own_process import by_env, has_ended
from holdfast.runtime.system.processes import UNKILLABLE_AFTER_S, kill_tree
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import blocked

_SHIM = (sys.executable, "-I", "-S", str(become.__file__))
_LOG = "mpiexec.log"
_WORDS_BYTES = 4096

LINGERS_S = 3.0
"""mpiexec needs a tenth of this to end after ranks that have left by agreement."""


class MpiLaunch:
    """A running mpiexec, in a session of its own; it dies with this process.

    All files of mpiexec and Open MPI go to the launch's private directory, which ``clear``
    removes.
    """

    def __init__(
        self,
        line: LaunchLine,
        environment: Mapping[str, str],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start mpiexec; its output goes to a log in the launch's directory.

        A thread may ``tell`` which strangers have connected to it.

        Raises ``OSError`` if the system has no process or thread to spare.
        """
        self.directory = line.directory
        """The launch's private one."""
        with (self.directory / _LOG).open("wb") as log, blocked():
            self._process = subprocess.Popen(
                by_env([*_SHIM, str(os.getpid()), *line.command()]),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.end_fd = os.pidfd_open(self._process.pid)
        try:
            if line.launcher is OPEN_MPI:  # Hydra's callers are others
                watch_strangers(self.pid, line.ranks, tell)
        except OSError:
            self.kill()
            self.end()
            raise

    @property
    def pid(self) -> int:
        """The process id of mpiexec."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of an mpiexec that is gone, else None; under ULFM it means nothing."""
        return self._process.poll()

    @property
    def has_ended(self) -> bool:
        """Whether mpiexec is gone."""
        return self.exit_code is not None

    def words(self) -> str:
        """Return the end of mpiexec's output."""
        try:
            with (self.directory / _LOG).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _WORDS_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def kill(self) -> None:
        """SIGKILL mpiexec and every process that it started."""
        if not self.has_ended:
            kill_tree(self._process.pid)

    def clear(self) -> None:
        """Wait for an mpiexec that ends, at most 10 s, and remove all files that it left behind."""
        self.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def end(self) -> None:
        """Wait for an mpiexec that ends, at most 10 s, and keep its files."""
        has_ended(self._process, UNKILLABLE_AFTER_S)
        with contextlib.suppress(OSError):
            os.close(self.end_fd)


@dataclass(frozen=True, slots=True)
class HostState:
    """The workers of the launch, as far as mpiexec's end depends on them."""

    is_empty: bool
    """No worker runs, and nothing of the last ones is left to be done."""
    had_guards: bool
    """mpiexec has started at least one rank."""
    ended_well: bool
    """Every worker so far has left by agreement."""


class MpiHost:
    """The mpiexec of the newest launch, and that of a launch which is prepared."""

    def __init__(self, reactor: Reactor, tell: Callable[[Event], None], directory: Path) -> None:
        self._reactor = reactor
        self._tell = tell
        self._directory = directory
        self._launch: MpiLaunch | None = None
        self._prepared: MpiLaunch | None = None
        self._prepared_generation = 0
        self._abandoned: list[MpiLaunch] = []
        """Those that were killed and may still hang; their files go when they have ended."""
        self._empty_since: float | None = None

    @property
    def pid(self) -> int | None:
        """The process id of mpiexec, None if there is none."""
        return None if self._launch is None else self._launch.pid

    def begin(self, generation: int, order: MpiOrder, ranks: int, agent: Path) -> None:
        """Start mpiexec with one guard for each rank, or take the one that was prepared.

        An earlier one is killed.

        Raises:
            OSError: it cannot be started.
        """
        prepared, self._prepared = self._prepared, None
        self.abandon()  # the head waits for no process
        self._empty_since = None
        if prepared is not None and self._prepared_generation == generation:
            self._launch = prepared
            return
        self._let_go(prepared)
        self._launch = self._started(generation, order, ranks, agent)

    def prepare(self, generation: int, order: MpiOrder, ranks: int, agent: Path) -> None:
        """Start mpiexec for a launch that may follow.

        Raises:
            OSError: it cannot be started.
        """
        self.drop_prepared()
        self._prepared = self._started(generation, order, ranks, agent)
        self._prepared_generation = generation

    def drop_prepared(self) -> None:
        """Kill the mpiexec of a launch that follows no more."""
        prepared, self._prepared = self._prepared, None
        self._let_go(prepared)

    def why_none_prepared(self) -> str:
        """Return the last words of an mpiexec that has ended before its turn, once; else ""."""
        prepared = self._prepared
        if prepared is None or not prepared.has_ended:
            return ""
        words = without_rules(prepared.words()) or "it has ended"
        self.drop_prepared()
        return f"mpiexec: {words}"

    def _started(self, generation: int, order: MpiOrder, ranks: int, agent: Path) -> MpiLaunch:
        directory = self._directory / f"launch-{generation}"
        directory.mkdir(mode=0o700, parents=True)
        line = LaunchLine(
            mpiexec=order.mpiexec,
            ranks=ranks,
            directory=directory,
            guard=(sys.executable, "-I", "-S", str(guard_file.__file__)),
            ulfm=order.ulfm,
            launcher=LAUNCHERS[order.library],
            terms=order.terms,
        )
        environment = line.environment(
            os.environ, HOLDFAST_AGENT=str(agent), HOLDFAST_GENERATION=str(generation)
        )
        launch = MpiLaunch(
            line,
            environment,
            lambda caller: self._tell(Warned(stranger(caller, "mpiexec"))),
        )
        self._reactor.watch(launch.end_fd, lambda: self._reactor.forget(launch.end_fd))
        return launch

    def kill(self) -> None:
        """SIGKILL mpiexec and its guards; its end is told as usual."""
        if self._launch is not None:
            self._launch.kill()

    def poll(self, now: float, host: HostState) -> None:
        """Tell the end of the launch, or end an mpiexec that its workers have left behind."""
        for ended in [launch for launch in self._abandoned if launch.has_ended]:
            self._abandoned.remove(ended)
            ended.clear()
        launch = self._launch
        if launch is None or not host.is_empty:
            self._empty_since = None
        elif launch.has_ended:
            self._conclude(launch, host)
        elif host.had_guards:
            if self._empty_since is None:
                self._empty_since = now
            if self._prepared is not None and host.ended_well:  # the next launch waits for this end
                self.abandon()
                self._tell(LaunchEnded())
            elif not host.ended_well or now - self._empty_since >= LINGERS_S:
                launch.kill()

    def close(self) -> None:
        """Kill mpiexec, and wait for it; its end is not told."""
        self.drop_prepared()
        self.abandon()
        for launch in self._abandoned:
            launch.clear()

    def abandon(self) -> None:
        """Kill mpiexec, and let go of it although it may hang in the kernel; tell nothing."""
        launch, self._launch = self._launch, None
        self._let_go(launch)

    def _let_go(self, launch: MpiLaunch | None) -> None:
        if launch is not None:
            launch.kill()
            self._reactor.forget(launch.end_fd)
            self._abandoned.append(launch)

    def _conclude(self, launch: MpiLaunch, host: HostState) -> None:
        words = "" if host.had_guards else without_rules(launch.words())
        self._reactor.forget(launch.end_fd)
        launch.clear()
        self._launch = None
        self._tell(LaunchEnded(words and f"mpiexec started no worker: {words}"))
