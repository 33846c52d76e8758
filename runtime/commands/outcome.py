"""How a run stands, in words: the end of its last job, and whether the journal tells all; pure.

A report is only what the journal says.  The lease tells of a job whose journal has no end.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.commands.lease_holder import Life
from holdfast.runtime.commands.report import Report

_LIVES = {
    Life.SUPERVISED: "still running",
    Life.ORPHANED: "still running without its supervisor: take it over with `holdfast attach {}`",
    Life.ELSEWHERE: "moved or copied: `holdfast status` says where its job works",
    Life.ENDED: "over, and its journal does not say how; go on with `holdfast run`",
    Life.GONE: "lost with its supervisor: go on with `holdfast run`",
    Life.ALONE: "still running, without a supervisor",
    Life.UNKNOWN: "still running, or its supervisor was lost",
}


def describe_outcome(report: Report, life: Life, run_dir: Path) -> str:
    """Return how the last job ended, in words, or whether it lives."""
    if report.exit_code is None:
        done = report.completed_step
        has_completed = "" if done is None else f"completed step {done}; "
        if life is Life.GONE and done is not None:
            return f"completed step {done}, after its supervisor was lost"
        return has_completed + _LIVES[life].format(run_dir)
    return f"exit {report.exit_code}" + (f": {report.reason}" if report.reason else "")


def describe_journal(report: Report, life: Life) -> str:
    """Return whether the journal has every event, in words, or what it lacks."""
    events = "1 event" if report.lost_events == 1 else f"{report.lost_events} events"
    # A script without a supervisor writes neither the begin nor the end of its job.
    has_no_end = report.jobs > 0 and report.exit_code is None and life is Life.ENDED
    lacks = {
        "all that was before it was removed during a job": report.is_begun_again,
        f"{events} that could not be written": report.lost_events > 0,
        "the end of the last job": has_no_end,
    }
    named = [what for what, is_lacking in lacks.items() if is_lacking]
    if not named:
        return "whole"
    return f"lacks {', and '.join(named)}; so the numbers here are lower bounds"
