"""A worker's first and last moments: join the world, run the script, leave together.

Theory of leaving.  A worker may end quietly only after all survivors have agreed that they
are done.  Otherwise the first to go looks like a failure to the rest.  So a script that
ended well, or a job that was stopped, leaves by agreement and exits with 0.  Any other end
is a death, and the worker tells its agent first.

A worker ends by ``os._exit``: after failures the finalisers of MPI may hang, and our own threads
may still be writing.  But a script leaves work for the end of its process.  It is done as Python
does it, in this order:

1. calls that libraries have given to ``threading``: executors finish, joblib's processes end;
2. all threads that are no daemons are joined;
3. what was given to ``atexit``, the last first: processes of ``multiprocessing`` are joined;
4. files that nobody has closed are written out.

The pool has imported libraries for its workers, and what these have left for the end belongs to
each worker.  How long all that takes is the script's affair, so it has no bound.  But it is told
what the script waits for.  When the job has ended the script, there is a bound.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import sys
import threading
import traceback
from _io import _BufferedIOBase, _TextIOBase
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

from holdfast.recovery.event import WorkerFailed, WorkerJoined
from holdfast.recovery.world import NOBODY
from holdfast.runtime.errors import (
    Ending,
    ExitCode,
    JobError,
    StopRequested,
    UsageError,
    WorldLost,
    exit_code_of,
)
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import SentRecords
from holdfast.runtime.script.modules import prefer_users_modules, text_of
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.channel import Channel, to_message
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.connections import stranger
from holdfast.runtime.system.devices import take_device
from holdfast.runtime.system.worker_status import (
    Phase,
    Pulse,
    ScriptEnded,
    WorkerLeaving,
    WorkerStatus,
    pulse_interval_s,
)
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker.context import (
    WorkerContext,
    injector_of,
    install,
)
from holdfast.runtime.worker.halt import HaltWatch
from holdfast.runtime.worker.injector import InjectedFault
from holdfast.runtime.worker.stacks import Frame, listen, shortened

TOLD_AFTER_S = 60

CUT_AFTER_S = 3
"""So much time has the end of a script that the job has ended: all others may be waiting."""

_LOOK_S = 1
_TENSORFLOW = frozenset({"tensorflow", "keras"})
_OTHER_BACKENDS = frozenset({"torch", "jax", "openvino"})

_IN_TRAINING = frozenset(
    {Phase.RESTORING, Phase.COMPILING, Phase.TRAINING, Phase.SAVING, Phase.REPAIRING}
    | {Phase.FAILED}
)
"""A script that ends in one of these has left its training."""

_ENDS_OF_SCRIPTS = (ExitCode.PROGRAM_FAILED, ExitCode.USAGE)
"""Errors with other codes are the job's: nobody has to wait for what the script leaves to do."""


def main(
    config: WorkerConfig,
    control_fd: int,
    heartbeat_fd: int,
    prepare: Callable[[WorkerConfig], None] = lambda _: None,
) -> NoReturn:
    """Run the worker that ``config`` describes, in a fresh process of the pool.

    ``prepare`` is called before the script's first line.
    """
    agent = Channel.adopt(control_fd)
    page = WorkerStatus(heartbeat_fd)
    listen(page)
    beats: list[Callable[[], None]] = []
    interval_s = pulse_interval_s(config.options.heartbeat_timeout_s)
    Pulse(page, interval_s, lambda: [beat() for beat in beats]).start()
    page.enter(Activity.JOIN)
    take_device(config.place_on_host)  # MPI may look for devices, too
    context = _join(config, agent, page)
    if context is None:
        _end(ExitCode.DONE)
    config = context.config
    install(context)
    watch = HaltWatch(config.worker, page, context.halt, context.report)
    beats += [watch.poll, context.beat]
    page.phase = Phase.STARTING
    page.enter(Activity.SCRIPT)
    report = run_script(config, page, prepare, functools.partial(_end_script, context))
    _leave(context, report)


def _join(config: WorkerConfig, agent: Channel, page: WorkerStatus) -> WorkerContext | None:
    """Initialise MPI and return the worker's surroundings; None if its agent is gone.

    A worker that was prepared waits until the launch before has made room.
    """
    from holdfast.runtime.exchange.mpi_communicator import join_world

    page.phase = Phase.JOINING
    page.generation = config.generation

    def tell(caller: str) -> None:
        agent.send(to_message(Notice(stranger(caller, f"worker {config.worker}"))))

    communicator = join_world(shrinkable=config.options.shrink, tell=tell)
    agent.send(to_message(WorkerJoined(config.worker)))
    if config.is_prepared:
        if (begin := agent.receive()) is None:
            return None
        config = from_plain(WorkerConfig, begin["config"])
    journal = SentRecords(agent.send)
    injector = injector_of(config, journal)

    asking = threading.Lock()

    def ask(question: dict[str, object]) -> dict[str, Any]:
        with asking:  # two threads may ask: the loop's, and the one that commits
            agent.send(question)
            return agent.receive() or {}  # once the agent is gone the kernel ends this process

    return WorkerContext(config, communicator, journal, page, injector, agent.send, ask)


def run_script(
    config: WorkerConfig,
    page: WorkerStatus,
    prepare: Callable[[WorkerConfig], None] = lambda _: None,
    finish: Callable[[BaseException | None], None] = lambda _: None,
) -> WorkerFailed | None:
    """Run the user's script as ``__main__``; return a report of its error, None without one.

    A script that ends well in mid-training has failed: its training is not complete.  ``finish``
    gets the script's error and does what is left for its end, still in the script's ``__main__``.
    """
    script = str(config.script)
    sys.argv = [script, *config.options.argv]
    sys.path.insert(0, str(Path(script).parent))
    prefer_users_modules(Path(script).parent)
    error: BaseException | None = None
    process = os.getpid()
    try:
        prepare(config)
        _run(script)
    except BaseException as raised:  # the script may raise anything at all
        error = raised
    if os.getpid() != process:
        _end_forked(error)
    if error is not None and not isinstance(error, (SystemExit, JobError, Ending, InjectedFault)):
        _tell_hook(error)
    finish(error)
    end = _end_of_script(error)
    report = _early_end(page) if end is None else _end_report(end, script, page)
    is_of_training = end is not None and end is contexts.trainings.end
    is_in_training = page.phase in _IN_TRAINING or is_of_training
    return report and replace(report, worker=config.worker, is_in_training=is_in_training)


def _run(script: str) -> None:
    """Run the script in a ``__main__`` that stays: threads and processes may still ask for it."""
    main = ModuleType("__main__")
    main.__file__ = script
    code = compile(text_of(script), script, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _end_forked(error: BaseException | None) -> NoReturn:
    """End a process that the script has forked as Python does: the job's connections are not its.

    Others, such as those of ``multiprocessing``, do not come back here.
    """
    code = error.code if isinstance(error, SystemExit) else error and 1
    if error is not None and not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
    end_as_python()
    _end(code if isinstance(code, int) else int(code is not None))


def _tell_hook(error: BaseException) -> None:
    """Call the hook for errors that nobody has caught, if the script has set one of its own."""
    if sys.excepthook is sys.__excepthook__:
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        traceback.print_exc()


def _end_of_script(error: BaseException | None) -> BaseException | None:
    """Return what has ended the script: ``error``, or that of a training if the script caught it.

    What the job has decided counts, and not what the script has raised since.
    """
    before = contexts.trainings.failure
    if before is None or isinstance(before, (JobError, Ending, InjectedFault)):
        return before or error
    ended_well = error is None or (isinstance(error, SystemExit) and not error.code)
    return before if ended_well else error


def _end_report(error: BaseException, script: str, page: WorkerStatus) -> WorkerFailed | None:
    """Report the error that has ended the script, None for an end that is none."""
    match error:
        case StopRequested():
            return None
        case SystemExit():
            return _exit_report(error, script, page)
        case JobError() | Ending():
            return _error_report(error)
        case ImportError() if refusal := _refused_import(error):
            return _error_report(UsageError(refusal))
    return _placed(_error_report(error), error, script)


def _exit_report(error: SystemExit, script: str, page: WorkerStatus) -> WorkerFailed | None:
    if error.code in (None, 0):
        report = _early_end(page)
        return report and _placed(report, error, script)
    is_number = isinstance(error.code, int)
    message = f"the script ended itself with exit code {error.code}" if is_number else str(error)
    return _report("SystemExit", message, ExitCode.PROGRAM_FAILED)


def _early_end(page: WorkerStatus) -> WorkerFailed | None:
    """Report a script that has left its training, None if it was out of training."""
    if page.phase not in _IN_TRAINING:
        return None
    planned = contexts.trainings.planned_steps
    of = f" of {planned}" if planned else ""
    message = f"the script ended at step {page.step}{of}, before training was over"
    return _report("SystemExit", message, ExitCode.PROGRAM_FAILED)


def _refused_import(error: ImportError) -> str:
    """Return that TensorFlow is missing or broken; "" for other imports: the script's errors.

    A package whose own import has failed is in ``sys.modules`` no more.  One that is there
    has only refused a name or asked for a third package.
    """
    if not _TENSORFLOW & _modules_of(error) - sys.modules.keys():
        return ""
    if error.name in _OTHER_BACKENDS:
        return (
            f"Keras looks for its backend {error.name}, and holdfast trains "
            "with TensorFlow: `export KERAS_BACKEND=tensorflow`, or let the script set it"
        )
    return (
        f"TensorFlow cannot be imported: {error}; install it with "
        "`pip install tensorflow-cpu` and look at `holdfast doctor`"
    )


def _modules_of(error: ImportError) -> set[str]:
    """Return the top-level names of the failed module and of all modules that imported it."""
    frames = traceback.walk_tb(error.__traceback__)
    names = {error.name or "", *(str(frame.f_globals.get("__name__")) for frame, _ in frames)}
    return {name.partition(".")[0] for name in names}


def _error_report(error: BaseException) -> WorkerFailed:
    report = _report(type(error).__name__, str(error), exit_code_of(error))
    # These are no mistake of the script: a relaunch may cure them.
    return replace(report, is_death=isinstance(error, (InjectedFault, WorldLost)))


def _report(error_type: str, message: str, code: ExitCode) -> WorkerFailed:
    return WorkerFailed(NOBODY, shortened(error_type), shortened(message), "", code)


def _placed(report: WorkerFailed, error: BaseException, script: str) -> WorkerFailed:
    """Return a report with the traceback from the script's own first frame on, and its place."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != script:
        frame = frame.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frame))
    calls = traceback.extract_tb(frame)
    places = [Frame(call.filename, str(call.lineno), call.name) for call in calls]
    users = [place for place in places if place.is_users]
    where = users[-1].short if users else ""
    return replace(report, traceback=shortened(trace), where=where)


def _end_script(context: WorkerContext, error: BaseException | None) -> None:
    """Do what the script has left for its end; what the job has ended has little time for it.

    An order to stop halts a worker here as anywhere else (`halt`).
    """
    end = _end_of_script(error)
    is_jobs_end = end is not None and exit_code_of(end) not in _ENDS_OF_SCRIPTS

    def cut() -> NoReturn:
        assert end is not None
        script = str(context.config.script)
        _leave(context, _end_report(end, script, context.page), was_cut=True)

    with EndWatch(context.notify, cut if is_jobs_end else None):
        end_as_python()


class EndWatch:
    """Counts the seconds of a script's end, and tells once what it waits for.

    With a ``cut`` the end has a bound.  Then it is called, and ends the process.
    """

    def __init__(
        self, tell: Callable[[str], None], cut: Callable[[], NoReturn] | None = None
    ) -> None:
        self._tell = tell
        self._cut = cut
        self._is_over = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="holdfast-end", daemon=True)

    def __enter__(self) -> None:
        """Begin to count."""
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        """Count no more; if the end is being cut, wait for that."""
        self._is_over.set()
        with self._ending:
            pass

    def _run(self) -> None:
        seconds = 0  # of looks: no time counts in which this process stood still
        while not self._is_over.wait(_LOOK_S):
            seconds += _LOOK_S
            if self._cut is not None and seconds >= CUT_AFTER_S:
                with self._ending:
                    if not self._is_over.is_set():
                        self._cut()
            if seconds == TOLD_AFTER_S:
                self._tell(
                    f"the script has come to its end, but {_what_is_awaited()}: the job waits for "
                    "it, as Python does; end it in the script, or stop the job (Ctrl-C)"
                )


def _what_is_awaited() -> str:
    """Say in words what keeps the script from its end, and where that is."""
    frames = sys._current_frames()
    main = threading.main_thread()
    own = {thread.ident: thread for thread in threading.enumerate()}
    threads = [own[ident] for ident in frames if ident in own]
    awaited = [thread for thread in threads if thread is not main and not thread.daemon]
    places = {thread.name: _place(frames[thread.ident or 0]) for thread in awaited}
    awaited.sort(key=lambda thread: not places[thread.name].is_users)
    if awaited:
        what = f"its thread {awaited[0].name!r} is still in {places[awaited[0].name].short}"
        what += f", and {len(awaited) - 1} more" if len(awaited) > 1 else ""
    elif processes := _processes():
        what = f"its process {processes[0]!r} still runs"
    else:
        what = f"a call of its end is still in {_place(frames[main.ident or 0]).short}"
    return what


def _place(frame: FrameType) -> Frame:
    """Return the innermost call of the user's, else the innermost one."""
    calls = [
        Frame(call.f_code.co_filename, str(line), call.f_code.co_name)
        for call, line in traceback.walk_stack(frame)
    ]
    return next((call for call in calls if call.is_users), calls[0])


def _processes() -> list[str]:
    """Return the names of the processes that the script has begun and Python would join."""
    module = sys.modules.get("multiprocessing.process")
    children = list(getattr(module, "_children", ()))
    return sorted(child.name for child in children if not child.daemon)


def end_as_python() -> None:
    """Do what Python does at the end of a process; call it in the main thread, once."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # Python itself calls it
    except BaseException:  # of the user's code; Python prints it too, and goes on
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    _write_files_out()


def _write_files_out() -> None:
    """Write out the files that the script has left open, which Python would close.

    Some kinds, such as those of gzip, are only whole when they are closed.
    """
    ours = {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}
    kinds = (_TextIOBase, _BufferedIOBase)
    found = [stream for stream in gc.get_objects() if isinstance(stream, kinds)]
    for stream in sorted(found, key=lambda stream: not isinstance(stream, _TextIOBase)):
        with contextlib.suppress(Exception):  # closed, or nobody reads what it writes
            if stream in ours or not stream.writable():
                continue
            stream.flush()
            if type(stream).__module__ not in ("_io", "io", "tempfile"):
                stream.close()


def _leave(
    context: WorkerContext, report: WorkerFailed | None, *, was_cut: bool = False
) -> NoReturn:
    """End this process: with its error, or together with all others."""
    for finish in context.at_end:
        finish()
    if report is not None:
        context.report(replace(report, worker=context.config.worker))
        _end(report.exit_code or ExitCode.PROGRAM_FAILED)
    context.page.phase = Phase.LEAVING
    # MPI waits with a core each, and the first worker may still write for long.
    context.ask_agent(to_message(ScriptEnded(context.config.worker)))
    context.communicator.leave()
    if contexts.trainings.failure is None and not was_cut:
        for finish in context.after_leaving:
            finish()
    context.report(WorkerLeaving(context.config.worker))
    _end(ExitCode.DONE)


def _end(code: int) -> NoReturn:
    """Leave without finalisers: MPI's may hang, and threads may still be writing."""
    flush_output()
    os._exit(int(code) & 0xFF)


def flush_output() -> None:
    """Write out what the script has printed, as far as its streams still take it."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # the script may have put anything there
            if stream is not None:
                stream.flush()
