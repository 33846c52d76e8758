"""The agent's handle on its pool: starts it, asks it for workers, and replaces it when it dies.

The imports of the pool are most of a job's start.  So the agent starts its first pool before
it imports anything else.

Invariant: every requested worker is either pending here or was told of exactly once.  Requests that
a dead pool had not answered go to its successor.  If a pool dies while it imports a module, later
pools leave that module out.  So a bad module costs time, never the job.

Each answer that a pool owes has a deadline: a pool that keeps silent is replaced.  After too
many deaths without a new worker it is given up, until the next launch asks again.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from holdfast.recovery.detector import ChangeDetector
from holdfast.recovery.event import Event
from holdfast.recovery.world import WorkerId
from holdfast.runtime.run.events import PoolLost, PoolRestarted, PoolWarmed, PreloadFailed
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.own_process import by_env, has_ended, module_command
from holdfast.runtime.system.signals import blocked

if TYPE_CHECKING:  # these would delay the first pool by a tenth of a second
    from holdfast.runtime.options.worker_config import WorkerConfig
    from holdfast.runtime.system.reactor import Reactor

ENTRY = "holdfast.runtime.keras.script_setup:main"
"""What the workers of a job run."""

_DEATHS_IN_VAIN = 5
"""A pool that dies more often without a new worker is given up; the number is our choice."""

IMPORTS_WITHIN_S = 600.0
"""For one module; TensorFlow from a busy network file system takes minutes."""
FORKS_WITHIN_S = 60.0
"""For the workers of a launch; 128 of them take about a second."""
_KILLED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool imports, and the function that its workers run (``module:function``).

    It is the first message to a pool.  A worker may open ``files`` files, and a few more for each
    of its peers.
    """

    preload: tuple[str, ...]
    entry: str
    files: int = 1024


@dataclass(frozen=True, slots=True)
class ForkWorker:
    """Fork this worker; with it come its control, status, stdout and stderr."""

    config: Mapping[str, object]
    """A `WorkerConfig` as it travels: the pool itself does not load that."""


@dataclass(frozen=True, slots=True)
class LetBegin:
    """The guard of a worker has come: the worker begins, with what its rank has got from mpiexec.

    Descriptors may lie beside it, for launchers that hand a rank its connection.
    """

    generation: int
    worker: WorkerId
    environment: Mapping[str, str]
    directory: str


@dataclass(frozen=True, slots=True)
class ImportBegun:
    """The pool imports this module now."""

    module: str


@dataclass(frozen=True, slots=True)
class Forked:
    """A worker has its process, a child of the agent."""

    generation: int
    worker: WorkerId
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """There is no process for a worker."""

    generation: int
    worker: WorkerId
    message: str


_Answer: TypeAlias = ImportBegun | PreloadFailed | PoolWarmed | Forked | ForkFailed
_ANSWERS: MessageKinds[_Answer] = MessageKinds(_Answer)


@dataclass(frozen=True, slots=True)
class PoolProcess:
    """A pool that imports or has imported, and the means to speak with it.

    ``stdout`` and ``stderr`` are descriptors to read its output from.
    """

    settings: PoolSettings
    process: subprocess.Popen[bytes]
    channel: Channel
    stdout: int
    stderr: int

    @staticmethod
    def start(settings: PoolSettings) -> PoolProcess:
        """Start a pool, a child of this process, and tell it what to import.

        Raises:
            OSError: the system has no process or descriptor to spare; nothing is left open.
        """
        with ExitStack() as kept, ExitStack() as given:
            ours, theirs = pair()
            kept.callback(ours.close)
            given.callback(theirs.close)
            stdout, its_stdout = _pipe(kept, given)
            stderr, its_stderr = _pipe(kept, given)
            arguments = str(os.getpid()), str(theirs.fileno())
            with blocked():
                process = subprocess.Popen(
                    by_env(module_command("holdfast.runtime.host.pool", *arguments)),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=its_stdout,
                    stderr=its_stderr,
                )
            kept.pop_all()
        ours.post(to_message(settings))
        return PoolProcess(settings, process, ours, stdout, stderr)


PoolStart: TypeAlias = PoolSettings | PoolProcess
"""A pool to start, or one that was started already."""


def _pipe(kept: ExitStack, given: ExitStack) -> tuple[int, int]:
    """Return a pipe, to be read here and written there; each stack closes one end."""
    read, write = os.pipe()
    kept.callback(os.close, read)
    given.callback(os.close, write)
    return read, write


class WarmPool:
    """A pool process and the requests that it has not answered yet."""

    def __init__(
        self,
        reactor: Reactor,
        start: PoolStart,
        tell: Callable[[Forked | ForkFailed | Event], None],
        forward: Callable[[int, int], None],
    ) -> None:
        """Begin; events for the head are ``warm``, ``preload_failed`` and ``pool_*``.

        ``forward`` gets the descriptors of each pool's own output, to close them at its end.
        """
        self._reactor = reactor
        self._settings = start.settings if isinstance(start, PoolProcess) else start
        self._tell = tell
        self._forward = forward
        self._pending: dict[tuple[int, int], tuple[WorkerConfig, Sequence[int]]] = {}
        """Workers to be forked, by generation and id, each with its descriptors."""
        self._importing: str | None = None
        self._deaths_in_vain = 0
        self._answers = 0
        self._owes: ChangeDetector[str] = ChangeDetector(FORKS_WITHIN_S)
        self._why_killed: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.is_warm = False
        if isinstance(start, PoolProcess):
            self._serve(start)
        else:
            self._start()

    @property
    def pid(self) -> int | None:
        """The process id of the pool, None while there is none."""
        return None if self._process is None else self._process.pid

    def request(self, config: WorkerConfig, fds: Sequence[int]) -> None:
        """Ask for a worker; its descriptors must stay open until it is reported.

        They are those of control, status, stdout and stderr.
        """
        self._pending[(config.generation, config.worker)] = config, fds
        if self._process is not None:
            self._ask_for(config, fds)
        else:
            self._deaths_in_vain = 0
            self._start()

    def poll(self, now: float) -> None:
        """Replace a pool that owes an answer for too long; start one that could not start."""
        if self._process is None:
            if self._pending and self._deaths_in_vain <= _DEATHS_IN_VAIN:
                self._start()
            return
        owed = {"answer": self._answers} if self._pending or not self.is_warm else {}
        self._owes = self._owes.observe(owed, now)
        silent_s = self._owes.seconds.get("answer", 0.0)
        if silent_s > (FORKS_WITHIN_S if self.is_warm else IMPORTS_WITHIN_S):
            self.replace(f"without an answer for {silent_s:.0f} s")

    def replace(self, why: str) -> None:
        """Kill the pool; its end, with ``why`` as its cause, brings another one."""
        if self._process is not None:
            self._why_killed = why
            self._process.kill()

    def abandon(self, why: str) -> None:
        """Forget all requests, and start another pool, although this one may hang in the kernel."""
        self._pending.clear()
        if self._process is not None:
            self._stop_watching()
            self._process.kill()
            self._process = None  # it is reaped as a stranger
            self._importing, self.is_warm = None, False
            self._tell(PoolRestarted(why))
            self._start()

    def close(self) -> None:
        """End the pool and wait for it, but not for long; pending requests are dropped."""
        if self._process is not None:
            self._stop_watching()
            self._process.kill()
            has_ended(self._process, _KILLED_WITHIN_S)  # unless it hangs in the kernel
            self._process = None
        self._pending.clear()

    def _start(self) -> None:
        """Start a pool; a system that has no process to spare counts as a death of it."""
        self._owes = ChangeDetector(FORKS_WITHIN_S)
        try:
            self._serve(PoolProcess.start(self._settings))
        except OSError as error:
            self._count_death(f"{type(error).__name__}: {error}")

    def _serve(self, started: PoolProcess) -> None:
        """Speak to a pool that was started, and ask it for the workers that wait."""
        self._channel, self._process = started.channel, started.process
        self._forward(started.stdout, started.stderr)
        self._end = os.pidfd_open(started.process.pid)
        # the pool's last messages are handled before its death; the channel's end adds nothing
        self._reactor.watch_channel(self._channel, self._on_message, lambda: None)
        self._reactor.watch(self._end, self._on_death, order=2)
        for config, fds in self._pending.values():
            self._ask_for(config, fds)

    def _ask_for(self, config: WorkerConfig, fds: Sequence[int]) -> None:
        self._channel.post(to_message(ForkWorker(to_plain(config))), fds)

    def _on_message(self, line: Message) -> None:
        self._answers += 1
        match answer := _ANSWERS.decode(line):
            case ImportBegun(module):
                self._importing = module
            case PreloadFailed():
                self._leave_out(answer)
            case PoolWarmed():
                self.is_warm = True
                self._importing = None
                if not self._pending:
                    self._deaths_in_vain = 0
                self._tell(answer)
            case Forked() | ForkFailed():
                if isinstance(answer, Forked):
                    self._deaths_in_vain = 0
                del self._pending[(answer.generation, answer.worker)]
                self._tell(answer)

    def _on_death(self) -> None:
        from holdfast.runtime.system.processes import describe_status  # needed at a death alone

        for message in self._channel.drain():
            self._on_message(message)
        self._stop_watching()
        assert self._process is not None
        status = describe_status(self._process.wait())
        self._process = None
        how, self._why_killed = self._why_killed or status, None
        if self._importing is not None:
            reason = f"the pool ended with {how} while importing it"
            self._leave_out(PreloadFailed(self._importing, reason))
        self.is_warm = False
        if self._count_death(how):
            self._tell(PoolRestarted(how))
            self._start()

    def _count_death(self, how: str) -> bool:
        """Return whether another pool may be tried; tell if there were too many."""
        self._deaths_in_vain += 1
        if self._deaths_in_vain <= _DEATHS_IN_VAIN:
            return True
        lost = f"the pool of warm processes ended {self._deaths_in_vain} times, last with {how}"
        self._tell(PoolLost(lost))
        return False

    def _leave_out(self, failed: PreloadFailed) -> None:
        self._importing = None
        if failed.module in self._settings.preload:
            others = tuple(name for name in self._settings.preload if name != failed.module)
            self._settings = replace(self._settings, preload=others)
            self._tell(failed)

    def _stop_watching(self) -> None:
        if self._channel.fileno() < 0:
            return
        self._reactor.forget(self._channel)
        self._channel.close()
        self._reactor.forget(self._end)
        os.close(self._end)
