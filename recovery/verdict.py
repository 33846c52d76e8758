"""Whether a launch that has ended was the end of the job, and of what kind."""

from __future__ import annotations

from holdfast.recovery.command import End
from holdfast.recovery.launch_view import LaunchView

_DONE, _STOPPED_EARLY, _RECOVERY_IMPOSSIBLE = 0, 75, 70


def verdict(view: LaunchView, stop_code: int | None) -> End | None:
    """Return how the job ends, or None if it was lost and may be relaunched.

    What the workers said counts, never mpiexec's exit code.  The rules, in
    order of precedence:

    1. all workers of the last world raised the same kind of error: it is the
       program's, and would happen again;
    2. a worker has completed: the final checkpoint is on the disk;
    3. a worker has stopped as it was asked to;
    4. all have left by agreement without training anything;
    5. the job was told to stop and did not get to a checkpoint.
    """
    failure = view.common_failure
    if failure is not None:
        return End(failure.exit_code, failure.message_with_kind, failure.traceback)
    if view.completions:
        return _completed(view)
    if view.stops:
        step = view.stops[0].step
        return End(_STOPPED_EARLY, f"stopped at step {step} with a checkpoint; run again to go on")
    if view.is_all_clean:
        return End(_DONE, "the script ended without training")
    if stop_code is not None:
        return End(stop_code, "told to stop; the run resumes from its newest checkpoint")
    return None


def _completed(view: LaunchView) -> End:
    """Completed, if all who say so ended with the same bytes."""
    digests = {completion.sha256 for completion in view.completions}
    if len(digests) > 1:
        return End(
            _RECOVERY_IMPOSSIBLE,
            f"the workers ended with {len(digests)} different states: {sorted(digests)}; "
            "the memory or the arithmetic of one of them is wrong: do not use the result",
        )
    first = view.completions[0]
    return End(_DONE, f"completed step {first.step}, state sha256 {first.sha256}")
