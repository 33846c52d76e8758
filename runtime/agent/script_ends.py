"""The ends of the scripts of a launch: its workers leave together, or not at all.

A worker whose script has ended waits here until all have come so far.  If another worker
begins a training that the first will never come to, both would wait for ever.  Then the
launch ends with an error of the script, in the name of each of its workers.  So it is no
death, and no relaunch follows.  After an order to stop it is a stop: the end of the last
common training has a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.recovery.event import ExitCode
from holdfast.recovery.script_end import ScriptsApart, ScriptView, find_apart
from holdfast.recovery.world import WorkerId
from holdfast.runtime.agent.hosted_worker import HostedWorker
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.heartbeat import RequestFlag

_KIND = "ScriptsApart"
"""The kind of the error, which no Python exception has."""
_WHY = "its launch has ended: the workers train different numbers of times"


def look_at_ends(
    hosted: Sequence[HostedWorker],
    workers: Sequence[WorkerId],
    tell_report: Callable[[WorkerId, Message], None],
) -> None:
    """Let the workers of a launch leave, or end them, or wait for those that may still come.

    ``workers`` are all of the launch, also those that have died.
    """
    living = [one for one in hosted if not one.is_condemned]
    apart = find_apart(_view_of(one) for one in living)
    if apart is not None:
        _end(apart, living, workers, tell_report)
    elif all(one.is_at_end for one in living):
        for one in living:
            one.may_leave = True
            one.answer({"kind": "leave"})


def _view_of(hosted: HostedWorker) -> ScriptView:
    return ScriptView(hosted.worker, hosted.trainings, hosted.is_at_end)


def _end(
    apart: ScriptsApart,
    living: Sequence[HostedWorker],
    workers: Sequence[WorkerId],
    tell_report: Callable[[WorkerId, Message], None],
) -> None:
    """Tell why the launch ends, and kill its workers, which wait for each other."""
    ended = next(one for one in living if one.worker == apart.ended.worker)
    is_stopping = any(RequestFlag.STOP in one.page.requests for one in living)
    if is_stopping and apart.ended.begun:
        tell_report(ended.worker, {"kind": "stopped", "step": ended.page.step})
    else:
        for worker in workers:
            tell_report(worker, _error(apart.message))
    for one in living:
        one.kill(_WHY)


def _error(message: str) -> Message:
    fields: Message = {"type": _KIND, "message": message, "traceback": "", "where": ""}
    return {"kind": "error", "exit_code": int(ExitCode.PROGRAM_FAILED), **fields}
