#!/usr/bin/env python3
"""Kill ranks of an MPI: whether survivors go on after deaths at any moment.

    python ci/mpi_deaths.py [--mpiexec PATH]

Some 33 launches, in a minute on two idle cores and three on busy ones.  Each rank runs the code
of the workers, and dies by SIGKILL, as guards do.  Ranks die one at a time.  Then several die at
once, and inside the repair of another death.  How else a worker may die is tried with real ones, by
``tests/runtime/host/test_mpi_deaths.py``.  One line tells each trial, and the last one the verdict.
Exits with 0 if survivors outlive deaths at any moment, and with 2 if not.

The order of the levels is the order of trust: a level is tried only if the levels before it have
passed.  One wrong sum counts more than all that has passed: such an MPI is fit for relaunches only.

In the level ``SEVERAL`` deaths fall into the repair of other deaths.  A member that notices
one there revokes the new world, while others are still inside Shrink.  Open MPI 5.0.10 and
5.0.11 then follow a null pointer.  Deaths 10 to 30 ms apart hit that moment in a quarter of
all runs or less.  So one trial makes it without any death, a hundred times over: it fails at
once on those two, and never on 5.0.8 and 5.0.9.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

from holdfast.runtime.host.launchers import MpiLibrary, find_mpiexec, identify
from holdfast.runtime.host.mpi_trial import (
    FIRST_DEATH,
    PLAIN_START,
    Death,
    Trial,
    TrialOutcome,
    Where,
    run_trial,
)

ENOUGH_FAILURES = 3
"""A level that has failed so often is not tried further: each hang takes the whole timeout."""
_REVOKES = 100
_LARGE = 500_000
"""4 MB: sent piece by piece, with other code of the library than small messages."""


class Level(IntEnum):
    """What trials ask of an MPI, from the least to the most."""

    START = 1
    """Ranks start, find each other and exchange; nobody dies."""
    ONE = 2
    """Deaths one at a time: the survivors go on."""
    SEVERAL = 3
    """Several deaths at once, or one inside the repair of another."""


Step: TypeAlias = tuple[Level, Trial]


def _deaths_one_by_one() -> tuple[Trial, ...]:
    places = tuple(
        Trial(f"a death: {where.value}", 4, (Death(rank, where, 2.0),))
        for rank, where in enumerate((Where.VOTE, Where.CLOCK, Where.EXCHANGE))
    )
    large = Trial("a death among large messages", 3, (Death(0, Where.EXCHANGE),), elements=_LARGE)
    return (FIRST_DEATH, *places, large)


def _deaths_together() -> tuple[Trial, ...]:
    all_but_one = tuple(Death(rank, Where.EXCHANGE) for rank in (0, 2, 3))
    after_revoke = (Death(1, Where.EXCHANGE), Death(3, Where.REVOKED))
    return (
        *(Trial(f"{_REVOKES} revokes inside Shrink", ranks, revokes=_REVOKES) for ranks in (3, 6)),
        Trial("two at once", 4, (Death(0, Where.VOTE), Death(2, Where.VOTE))),
        Trial("all but one at once", 4, all_but_one, elements=_LARGE),
        Trial("one after the revoke", 5, after_revoke),
    )


def _deaths_by_the_clock() -> tuple[Trial, ...]:
    apart = tuple(
        Trial(
            f"three, {gap} ms apart",
            6,
            tuple(Death(rank, Where.CLOCK, index * gap) for index, rank in enumerate(ranks)),
        )
        for gap in (10, 20, 30)
        for ranks in ((1, 3, 5), (0, 4, 2), (5, 0, 3), (2, 1, 4))
    )
    inside = tuple(
        Trial(
            f"two inside Shrink, at {delay} ms",
            6,
            (
                Death(1, Where.EXCHANGE),
                Death(4, Where.REPAIR, delay),
                Death(2, Where.REPAIR, 2 * delay),
            ),
        )
        for delay in (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0)
    )
    return (*apart, *inside)


CAMPAIGN: tuple[Step, ...] = (
    (Level.START, PLAIN_START),
    (Level.START, Trial("start", 2)),
    *((Level.ONE, trial) for trial in _deaths_one_by_one()),
    *((Level.SEVERAL, trial) for trial in (*_deaths_together(), *_deaths_by_the_clock())),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A trial that was made, with its level."""

    level: Level
    outcome: TrialOutcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpiexec", type=Path, help="the mpiexec to examine")
    library = identify(find_mpiexec(parser.parse_args(argv).mpiexec))
    print(library, flush=True)
    judged = run_campaign(library, os.environ, CAMPAIGN, _print_trial)
    trust = trust_of(judged)
    print(_verdict(trust))
    return 0 if trust is Level.SEVERAL else 2


def run_campaign(
    library: MpiLibrary,
    environment: Mapping[str, str],
    campaign: Sequence[Step],
    tell: Callable[[Judged], None] = lambda _: None,
) -> tuple[Judged, ...]:
    """Run the trials in their order; leave out what a failure has made pointless.

    A level begins only if all before it have passed.  Fault tolerance is not tried with a
    launcher that has none.  The first trial of a level that hangs has a second chance: an
    overloaded machine may lose an event, once in hundreds of deaths.
    """
    found: list[Judged] = []
    for level, trial in campaign:
        failed = [judged.level for judged in found if not judged.outcome.has_passed]
        is_pointless = any(other is not level for other in failed)
        if is_pointless or failed.count(level) >= ENOUGH_FAILURES:
            continue
        if trial.ulfm and not library.launcher.can_shrink:
            continue
        outcome = run_trial(library, environment, trial)
        if outcome.has_hung and not failed.count(level):
            outcome = run_trial(library, environment, trial)
        found.append(Judged(level, outcome))
        tell(found[-1])
    return tuple(found)


def trust_of(found: Sequence[Judged]) -> Level | None:
    """Return the level up to which a job may rely on the MPI; an untried one has not passed."""
    passed = [level for level in Level if _has_passed(found, level)]
    reached = [level for level in passed if set(range(1, level)) <= set(passed)]
    if reached and any(judged.outcome.wrong for judged in found):
        return Level.START
    return max(reached, default=None)


def _has_passed(found: Sequence[Judged], level: Level) -> bool:
    outcomes = [judged.outcome for judged in found if judged.level is level]
    return bool(outcomes) and all(outcome.has_passed for outcome in outcomes)


def _verdict(trust: Level | None) -> str:
    match trust:
        case Level.SEVERAL:
            return "survivors go on after deaths at any moment, several at once"
        case Level.ONE:
            return (
                "survivors go on after one death at a time; closer ones cost a relaunch, or take "
                "--no-shrink"
            )
        case Level.START:
            return "jobs can run with --no-shrink, which relaunches them at every death"
        case None:
            return "no job can run with this MPI"


def _print_trial(judged: Judged) -> None:
    outcome = judged.outcome
    mark = "ok  " if outcome.has_passed else "FAIL"
    name, fault = f"{outcome.trial.name} ({outcome.seconds:.1f} s)", outcome.fault
    line = f"{mark}  {judged.level.name.lower():<8} {name}{': ' if fault else ''}{fault}"
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
