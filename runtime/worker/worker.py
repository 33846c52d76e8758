"""A worker's first and last moments: join the world, run the script, leave together.

Theory of leaving.  A worker may end quietly only after all survivors have agreed that they
are done.  Otherwise the first to go looks like a failure to the rest.  So a script that
ended well, or a job that was stopped, leaves by agreement and exits with 0.  Any other end
is a death, and the worker tells its agent first.  ``MPI_Finalize`` is never called: after
failures it may hang.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from holdfast.runtime.errors import ExitCode, JobError, StopRequested, UsageError
from holdfast.runtime.evidence.stack_signal import listen
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase, Pulse, pulse_interval_s
from holdfast.runtime.worker.context import WorkerContext, injector_of, install, journal_of

_TENSORFLOW = frozenset({"tensorflow", "keras"})


def main(config: WorkerConfig, control_fd: int, heartbeat_fd: int) -> NoReturn:
    """Run the worker that ``config`` describes, in a fresh process of the pool."""
    agent = Channel.adopt(control_fd)
    page = HeartbeatPage(heartbeat_fd)
    listen(page, os.getppid())
    Pulse(page, pulse_interval_s(config.options.heartbeat_timeout_s)).start()
    context = _join(config, agent, page)
    install(context)
    page.phase = Phase.STARTING
    failure = _run_script(config)
    context.journal.close()
    if failure is not None:
        agent.send(failure)
        _exit(failure)
    page.phase = Phase.LEAVING
    # MPI waits with a core each, and the first worker may still write for long.
    assert context.ask_agent is not None
    context.ask_agent({"kind": "at_end"})
    context.communicator.leave()
    agent.send({"kind": "leaving"})
    _end(ExitCode.DONE)


def _join(config: WorkerConfig, agent: Channel, page: HeartbeatPage) -> WorkerContext:
    """Initialise MPI and return the worker's surroundings."""
    from holdfast.runtime.exchange.mpi_communicator import join_world

    page.phase = Phase.JOINING
    page.generation = config.generation
    communicator = join_world(shrinkable=config.options.shrink)
    agent.send({"kind": "joined"})
    journal = journal_of(config)
    injector = injector_of(config, journal)

    asking = threading.Lock()

    def ask(question: dict[str, object]) -> dict[str, Any]:
        with asking:  # two threads may ask: the loop's, and the one that commits
            agent.send(question)
            return agent.receive() or {}  # without an agent the kernel ends this process

    return WorkerContext(
        config,
        communicator,
        journal,
        page,
        injector,
        agent.send,
        send_snapshot=agent.send,
        ask_agent=ask,
    )


def _run_script(config: WorkerConfig) -> dict[str, object] | None:
    """Run the user's script as ``__main__``; return a report of its error, None without one."""
    script = str(config.options.script.resolve())
    sys.argv = [script, *config.options.argv]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        return _exit_report(error)
    except StopRequested:
        return None
    except JobError as error:
        return _error_report(error, "")
    except ImportError as error:
        return _import_report(error, script)
    except BaseException as error:  # the script may raise anything at all
        return _error_report(error, _users_traceback(error, script))
    return None


def _exit_report(error: SystemExit) -> dict[str, object] | None:
    if error.code in (None, 0):
        return None
    message = f"the script ended itself with exit code {error.code}"
    return _report("SystemExit", message, "", ExitCode.PROGRAM_FAILED)


def _import_report(error: ImportError, script: str) -> dict[str, object]:
    """Report that TensorFlow is missing or broken; other imports are the script's errors."""
    if _TENSORFLOW.isdisjoint(_modules_of(error)):
        return _error_report(error, _users_traceback(error, script))
    return _error_report(
        UsageError(
            f"TensorFlow cannot be imported: {error}; install it with "
            "`pip install 'holdfast[cpu]'` and look at `holdfast doctor`"
        ),
        "",
    )


def _modules_of(error: ImportError) -> set[str]:
    """Return the top-level names of the failed module and of all modules that imported it."""
    names = {error.name or ""}
    frame = error.__traceback__
    while frame is not None:
        names.add(str(frame.tb_frame.f_globals.get("__name__")))
        frame = frame.tb_next
    return {name.partition(".")[0] for name in names}


def _error_report(error: BaseException, trace: str) -> dict[str, object]:
    code = error.exit_code if isinstance(error, JobError) else ExitCode.PROGRAM_FAILED
    return _report(type(error).__name__, str(error), trace, code)


def _report(kind: str, message: str, trace: str, code: ExitCode) -> dict[str, object]:
    return {
        "kind": "error",
        "type": kind,
        "message": message,
        "traceback": trace,
        "exit_code": int(code),
    }


def _users_traceback(error: BaseException, script: str) -> str:
    """Return the traceback from the script's own first frame on; none if it cannot be parsed."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != script:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))


def _exit(failure: dict[str, object]) -> NoReturn:
    code = failure["exit_code"]
    _end(code if isinstance(code, int) and code else ExitCode.PROGRAM_FAILED)


def _end(code: int) -> NoReturn:
    """Leave without finalisers: MPI's may hang, and threads may still be writing."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))
