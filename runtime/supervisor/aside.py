"""A line for the user that does not belong to the journal of a job: before it, or after it."""

from __future__ import annotations

from holdfast.runtime.system.line_sink import LineSink

LAST_LINES_WITHIN_S = 2.0
"""A terminal that takes nothing may not keep a job from ending."""


def say(text: str) -> None:
    """Write one line beside a job; a stderr that takes nothing keeps no job from ending."""
    sink = LineSink(2)
    sink.put(f"holdfast: {' '.join(text.split())}\n".encode(errors="replace"))
    sink.close(LAST_LINES_WITHIN_S)
