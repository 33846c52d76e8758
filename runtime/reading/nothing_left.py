"""The end of a restore that has taken no step: there is none, none is sound, or none was read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.recovery.patience import Finding, Leftover, leftover
from holdfast.runtime.errors import CheckpointsUnread, RecoveryImpossible
from holdfast.runtime.reading.shared_tries import AGAIN, Trouble

_MOST_NAMED = 3


def refuse_to_begin(run_dir: Path, lost: Sequence[int], unread: Mapping[int, Trouble]) -> None:
    """Return if the run has no step, so that it may begin; ``lost`` are those that were not taken.

    Raises:
        RecoveryImpossible: all of them are damaged.
        CheckpointsUnread: some of them, or all, may be whole.
    """
    spared = {step: unread[step] for step in lost if step in unread}
    findings = [spared[step].finding if step in spared else Finding.DAMAGED for step in lost]
    match leftover(findings):
        case Leftover.IMPOSSIBLE:
            raise RecoveryImpossible(
                f"none of the {len(lost)} checkpoints of {run_dir} is valid; mend them from a copy "
                f"with `holdfast repair {shlex.quote(str(run_dir))} --from COPY`, or start over "
                "with --fresh"
            )
        case Leftover.RUN_AGAIN:
            damaged = [step for step in lost if step not in spared]
            raise CheckpointsUnread(_sentence(run_dir, spared, damaged))
        case Leftover.NOTHING:
            return


def _sentence(run_dir: Path, unread: Mapping[int, Trouble], damaged: Sequence[int]) -> str:
    named = [f"step {step}: {trouble}" for step, trouble in unread.items()][:_MOST_NAMED]
    more = [f"and {len(unread) - len(named)} more"] if len(unread) > len(named) else []
    reasons = "; ".join((*named, *more))
    if not damaged:
        return (
            f"none of the {len(unread)} checkpoints of {run_dir} could be read ({reasons}); {AGAIN}"
        )
    return (
        f"no checkpoint of {run_dir} could be restored: {_steps(damaged)} damaged; "
        f"{_steps(list(unread))} not known to be damaged, but could not be read ({reasons}); "
        "run again when the file system answers"
    )


def _steps(steps: Sequence[int]) -> str:
    """Return steps in words, with the verb that follows."""
    numbers = ", ".join(map(str, steps))
    return f"step {numbers} is" if len(steps) == 1 else f"steps {numbers} are"
