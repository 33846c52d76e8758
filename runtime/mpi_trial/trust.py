"""From the reports of ranks to what an MPI can be trusted with: pure.

A wrong sum, or survivors that disagree about their world, weigh more than any number of lost
ranks.  Lost ranks cost a relaunch.  Wrong results would cost the bytes of the run.  So an
MPI that has given a wrong result once is not used in place at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from holdfast.runtime.mpi_trial.trial_table import Level, Trial


class Trust(IntEnum):
    """What a job may rely on; each includes those below it."""

    NOTHING = 0
    """Ranks do not even start."""
    RELAUNCH = 1
    """Ranks work together; a death ends the launch."""
    ONE = 2
    """Survivors outlive deaths that come one at a time."""
    ALL = 3
    """Survivors outlive deaths at any moment."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank wrote at its end."""

    world: tuple[int, ...]
    """The ranks of the launch that it went on with."""
    steps: int
    wrong: str = ""
    """A wrong result that it saw, as a sentence."""
    failure: str = ""
    """Why it could not go on, as a sentence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one trial ended; both texts are empty if it passed."""

    trial: Trial
    failure: str = ""
    wrong: str = ""
    seconds: float = 0.0

    @property
    def has_passed(self) -> bool:
        """Whether all survivors came to the end with right results."""
        return not self.failure and not self.wrong


def judge(
    trial: Trial, reports: Mapping[int, RankReport], ending: str, seconds: float = 0.0
) -> Outcome:
    """Return the outcome that the reports of ranks tell; ``ending`` says how mpiexec ended."""
    wrong = next((report.wrong for report in reports.values() if report.wrong), "")
    failure = next((report.failure for report in reports.values() if report.failure), "")
    survivors = {rank: reports[rank] for rank in sorted(trial.survivors) if rank in reports}
    worlds = {report.world for report in survivors.values() if not report.failure}
    lost = sorted(trial.survivors - set(survivors))
    if len(worlds) > 1:
        wrong = wrong or f"survivors went on in different worlds: {sorted(worlds)}"
    if lost and not failure:
        ranks = ", ".join(map(str, lost))
        failure = f"rank {ranks} of {trial.ranks} was lost, although nobody killed it; {ending}"
        if set(lost) == trial.survivors:
            failure = ending
    return Outcome(trial, failure, wrong, seconds)


def trust_of(outcomes: Sequence[Outcome]) -> Trust:
    """Return what a campaign's outcomes allow; an untried level has not passed."""
    if not _passed(outcomes, Level.START):
        return Trust.NOTHING
    if any(outcome.wrong for outcome in outcomes) or not _passed(outcomes, Level.ONE):
        return Trust.RELAUNCH
    return Trust.ALL if _passed(outcomes, Level.SEVERAL) else Trust.ONE


def first_fault(outcomes: Sequence[Outcome]) -> str:
    """Return the gravest fault as a sentence, empty if there is none."""
    needed = [outcome for outcome in outcomes if outcome.trial.level is not Level.SPAWN]
    for outcome in needed:
        if outcome.wrong:
            return f"{outcome.trial.name}: {outcome.wrong}"
    for outcome in needed:
        if outcome.failure:
            return f"{outcome.trial.name}: {outcome.failure}"
    return ""


def _passed(outcomes: Sequence[Outcome], level: Level) -> bool:
    found = [outcome for outcome in outcomes if outcome.trial.level is level]
    return bool(found) and all(outcome.has_passed for outcome in found)
