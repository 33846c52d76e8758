"""What was committed is spoilt in seeded ways: never used, or exactly what was saved."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path
from typing import Protocol

import damages.mend
import damages.run
import damages.steps
from damages.mend import DamagedMend
from damages.run import DamagedRun
from damages.steps import DamagedSteps
from job import scratch
from tally import Enough, Tally, Wrong

_ENDS_WITHIN_S = 60


class _Campaign(Protocol):
    """Files of one kind, and what reads them."""

    def run(self, case: int) -> None:
        """Damage, read, complain."""


class _Kind(Protocol):
    def __call__(self, root: Path, seed: int, tally: Tally) -> _Campaign:
        """Return the campaign in the folder ``root``."""


_KINDS: dict[str, tuple[_Kind, int, int]] = {
    damages.steps.NAME: (DamagedSteps, damages.steps.CASES, damages.steps.SHORT_CASES),
    damages.run.NAME: (DamagedRun, damages.run.CASES, damages.run.SHORT_CASES),
    damages.mend.NAME: (DamagedMend, damages.mend.CASES, damages.mend.SHORT_CASES),
}
NAMES = tuple(_KINDS)


class _Hangs(BaseException):
    """A case takes too long."""


def run(seed: int, name: str, *, is_short: bool, only: int | None) -> Tally:
    """Run the damages of one kind of files; ``only`` replays the case of that number."""
    signal.signal(signal.SIGALRM, _interrupt)
    kind, whole, short = _KINDS[name]
    tally = Tally(f"damaged {name}", f"--part damage --victim {name}")
    cases = [only] if only is not None else range(short if is_short else whole)
    with Enough.caught, scratch() as root:
        campaign = kind(root, seed, tally)
        for case in cases:
            _run_one(campaign, case, tally)
    return tally


def _run_one(campaign: _Campaign, case: int, tally: Tally) -> None:
    tally.cases += 1
    signal.alarm(_ENDS_WITHIN_S)
    try:
        campaign.run(case)
    except Enough:
        raise
    except _Hangs:
        tally.complain(Wrong.OTHER, case, "it hangs")
    except Exception:
        tally.complain(Wrong.OTHER, case, f"an error that is not ours: {traceback.format_exc()}")
    finally:
        signal.alarm(0)


def _interrupt(_number: int, _frame: object) -> None:
    raise _Hangs
