"""Whether a launch that has ended was the end of the job, and of what kind."""

from __future__ import annotations

from holdfast.recovery.command import End
from holdfast.recovery.launch_view import LaunchView

_DONE, _STOPPED_EARLY, _RECOVERY_IMPOSSIBLE = 0, 75, 70


def verdict(view: LaunchView, stop_code: int | None) -> End | None:
    """Return how the job ends, or None if it was lost and may be relaunched.

    What the workers said counts, never mpiexec's exit code.  The rules, in
    order of precedence:

    1. workers completed the same step with different bytes: the result must not be used;
    2. all workers of the last world raised the same kind of error: it is the
       program's, and would happen again;
    3. a worker has completed, and a worker has come to the end of the script; if
       all died on the way there, the rest of the script is still to be done;
    4. a worker has stopped as it was asked to;
    5. all have left by agreement without training anything;
    6. the job was told to stop and did not get to a checkpoint.
    """
    for completion in view.completions:
        digests = {c.sha256 for c in view.completions if c.step == completion.step}
        if len(digests) > 1:
            return _contradicted(completion.step, sorted(digests))
    failure = view.common_failure
    if failure is not None:
        return End(failure.exit_code, failure.message_with_kind, failure.traceback)
    end = _left(view)
    if end is None and stop_code is not None:
        return End(stop_code, "told to stop; the run resumes from its newest checkpoint")
    return end


def _left(view: LaunchView) -> End | None:
    """Return how the job ended if its workers came to an end by themselves."""
    if view.completions and view.has_left:
        last = max(view.completions, key=lambda completion: completion.step)
        return End(_DONE, f"completed step {last.step}, state sha256 {last.sha256}")
    if view.stops:
        step = view.stops[0].step
        return End(_STOPPED_EARLY, f"stopped at step {step} with a checkpoint; run again to go on")
    if view.is_all_clean:
        return End(_DONE, "the script ended without training")
    return None


def _contradicted(step: int, digests: list[str]) -> End:
    return End(
        _RECOVERY_IMPOSSIBLE,
        f"the workers completed step {step} with {len(digests)} different states: {digests}; "
        "the memory or the arithmetic of one of them is wrong: do not use the result",
    )
