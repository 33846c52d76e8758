"""The warm process that workers are forked from.

Importing TensorFlow is most of a worker's start.  This process, a child of the agent, imports the
heavy modules once. Then it forks a worker on each request, within milliseconds, for every launch of
the job.

Three rules make that safe.  When the pool forks, it has one thread: a fork copies only the
calling thread, so a lock held by another thread would stay locked.  It installs no signal
handler.  It never imports ``mpi4py.MPI``, whose libraries belong to one MPI job.  A module
whose import breaks the first rule is refused, and so is a module that cannot be imported.
The agent then starts a pool without it.

A worker is forked twice, by way of a middle process that ends at once.  So the kernel
hands it to the agent (a subreaper), which can wait for it.  The worker goes on only after
that, because the handing over would clear "die with your parent".

Workers are forked when a launch is announced, while ``mpiexec`` is still starting.  Each
then waits on its control channel for the ``begin`` message.  It brings the guard's
knowledge: the rank's environment and the directory.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from itertools import zip_longest
from types import ModuleType
from typing import Any, NoReturn

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import WorkerFailed
from holdfast.runtime.host.pool_process import (
    Forked,
    ForkFailed,
    ForkWorker,
    ImportBegun,
    LetBegin,
    PoolSettings,
)
from holdfast.runtime.run.events import PoolWarmed, PreloadFailed
from holdfast.runtime.system.channel import FDS, Channel, MessageKinds, to_message
from holdfast.runtime.system.own_process import (
    allow_files,
    die_with_parent,
    is_single_threaded,
    name_process,
    thread_count,
)
from holdfast.runtime.system.signals import take_no_notice

_BEGIN: MessageKinds[LetBegin] = MessageKinds(LetBegin)
_REQUESTS: MessageKinds[ForkWorker] = MessageKinds(ForkWorker)
_SETTINGS: MessageKinds[PoolSettings] = MessageKinds(PoolSettings)

_THREADS_END_WITHIN_S = 1.0
_THREADS = "/proc/self/task"
_LINKS_OF_A_FOLDER = 2
_FILES_PER_PEER = 4
"""A worker maps two files of each peer, and Python keeps a descriptor for each; MPI has more."""


def main(agent_pid: int, control_fd: int) -> None:
    """Import the modules that the agent names, then fork workers until the agent is gone."""
    die_with_parent(agent_pid)
    name_process("holdfast-pool")
    agent = Channel.adopt(control_fd)
    if (line := agent.receive()) is None:
        return  # the agent is gone
    settings = _SETTINGS.decode(line)
    gc.disable()  # imports make objects that stay; to look through them takes a tenth of the time
    watch = _ThreadWatch()
    sys.meta_path.insert(0, watch)
    for module in settings.preload:
        if not _preload(module, agent, watch):
            return
    sys.meta_path.remove(watch)
    # Without it the first collection in each worker would copy every page.  Imports leave hardly
    # any garbage, and to look for it takes a quarter of a second.
    gc.freeze()
    gc.enable()
    agent.send(to_message(PoolWarmed()))
    while (line := agent.receive()) is not None:
        # all workers requested by now are forked together, by one middle process
        births = [
            _Birth(_REQUESTS.decode(asked).config, settings, tuple(asked[FDS]))
            for asked in (line, *agent.drain())
        ]
        _serve(births, agent, agent_pid)


@dataclass(frozen=True, slots=True)
class _Birth:
    """The request of one new worker, with everything that it gets."""

    config: Mapping[str, Any]
    settings: PoolSettings
    fds: tuple[int, ...]


class _ThreadWatch(MetaPathFinder):
    """Finds no module, but sees when an import begins, and what threads there are by then."""

    def __init__(self) -> None:
        self._importing = ""
        self._threads = {str(os.getpid())}
        self._begun_by: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Take note of the threads that the import before this one has begun."""
        self._look()
        self._importing = name

    def keeper(self) -> str:
        """Return the package that has begun a thread which still runs."""
        self._look()
        left = set(os.listdir(_THREADS)) - {str(os.getpid())}
        begun_by = [self._begun_by.get(thread) for thread in sorted(left)]
        return next(filter(None, begun_by), self._importing.partition(".")[0])

    def _look(self) -> None:
        # Thousands of modules are imported, and a count is faster than a list.
        if os.stat(_THREADS).st_nlink == len(self._threads) + _LINKS_OF_A_FOLDER:
            return
        threads = set(os.listdir(_THREADS))
        package = self._importing.partition(".")[0]
        self._begun_by |= dict.fromkeys(threads - self._threads, package)
        self._threads = threads


def _preload(module: str, agent: Channel, watch: _ThreadWatch) -> bool:
    """Import ``module``; false if it leaves this process unfit to fork."""
    agent.send(to_message(ImportBegun(module)))
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        agent.send(to_message(PreloadFailed(module, f"{type(error).__name__}: {error}")))
        return True
    if module == "mpi4py":
        imported.rc.initialize = False
        imported.rc.finalize = False
        imported.rc.thread_level = "serialized"
    if _settle_threads():
        return True
    keeper = watch.keeper()
    reason = f"the import of {keeper} leaves {thread_count()} threads running"
    agent.send(to_message(PreloadFailed(module, reason, keeper)))
    return False


def _settle_threads() -> bool:
    """Return whether one thread is left, after giving libraries a chance to end theirs.

    Libraries such as OpenBLAS start threads when loaded and end them before any fork
    (pthread_atfork(3)).  So a child that ends at once lets them end their threads.
    """
    if thread_count() == 1:
        return True
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return is_single_threaded(_THREADS_END_WITHIN_S)


def _serve(births: Sequence[_Birth], agent: Channel, agent_pid: int) -> None:
    pids: tuple[int, ...] = ()
    go_read, go_write = os.pipe()
    if _settle_threads():
        pids = _fork_twice(births, agent, agent_pid, (go_read, go_write))
    os.close(go_read)
    for fd in (fd for birth in births for fd in birth.fds):
        os.close(fd)
    # The agent hears of workers before they begin: if the pool dies between, so do they.
    for birth, pid in zip_longest(births, pids):
        key = birth.config["generation"], birth.config["worker"]
        reason = f"the pool could not fork, it has {thread_count()} threads"
        agent.send(to_message(ForkFailed(*key, reason) if pid is None else Forked(*key, pid)))
    with contextlib.suppress(BrokenPipeError):
        os.write(go_write, b"g" * len(pids))
    os.close(go_write)


def _fork_twice(
    births: Sequence[_Birth], agent: Channel, agent_pid: int, go: tuple[int, int]
) -> tuple[int, ...]:
    """Return the ids of new processes that wait at ``go`` and are the agent's children.

    They stand in the order of ``births``.  They are fewer if the system refuses a fork.
    """
    pid_read, pid_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if middle == 0:
        for birth in births:
            worker = _fork_or_end()
            if worker == 0:
                agent.close()
                strangers = (fd for other in births if other is not birth for fd in other.fds)
                for fd in (pid_read, pid_write, go[1], *strangers):
                    os.close(fd)
                _begin(birth, agent_pid, go[0])
            os.write(pid_write, b"%d\n" % worker)
        os._exit(0)
    os.close(pid_write)
    with open(pid_read) as pids:
        numbers = tuple(int(line) for line in pids)
    os.waitpid(middle, 0)
    return numbers


def _fork_or_end() -> int:
    try:
        return os.fork()
    except OSError:
        os._exit(1)


def _begin(birth: _Birth, agent_pid: int, go_read: int) -> NoReturn:
    """Run a worker from its first moment to its last."""
    status = 1
    try:
        go = os.read(go_read, 1)
        os.close(go_read)
        if go:
            _take_place(birth, agent_pid)
            _enter(birth)
        status = 0
    except SystemExit as end:
        status = _status_of(end)
    except ImportError as error:  # those of the script are reported by then
        status = _report_missing(error, birth)
    except BaseException:  # the frames below this one belong to the pool
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _report_missing(error: ImportError, birth: _Birth) -> int:
    """Tell the agent of a module that no worker could import; return the exit code for that."""
    message = f"a worker cannot import what it needs: {error}; install holdfast-mpi again"
    report = WorkerFailed(birth.config["worker"], "UsageError", message, "", ExitCode.USAGE)
    with contextlib.suppress(OSError):
        Channel.adopt(birth.fds[0]).send(to_message(report))
    return ExitCode.USAGE


def _take_place(birth: _Birth, agent_pid: int) -> None:
    os.setsid()
    die_with_parent(agent_pid)
    name_process(f"holdfast-w{birth.config['worker']}")
    take_no_notice()
    for standard, fd in enumerate(birth.fds[2:], start=1):
        os.dup2(fd, standard)
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _enter(birth: _Birth) -> None:
    from holdfast.runtime.options.worker_config import WorkerConfig  # the entry has imported it
    from holdfast.runtime.system.codec import from_plain

    module, _, function = birth.settings.entry.partition(":")
    entry = getattr(importlib.import_module(module), function)
    config = from_plain(WorkerConfig, birth.config)
    allow_files(birth.settings.files + _FILES_PER_PEER * len(config.workers))
    control = Channel.adopt(birth.fds[0])
    if (line := control.receive()) is None:
        return  # the agent has closed the channel: this worker is not needed
    begin = _BEGIN.decode(line)
    os.environ.update(begin.environment)
    for descriptor in line.get(FDS, ()):
        os.environ["PMI_FD"] = str(descriptor)  # here it has another number than in the guard
    with contextlib.suppress(FileNotFoundError):  # a name on the head's host alone: it is here
        os.chdir(begin.directory)
    entry(config, control.detach(), birth.fds[1])


def _status_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


if __name__ == "__main__":
    # os._exit, because leftover threads and the unloading of libraries may delay a normal end
    try:
        main(*map(int, sys.argv[1:]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
