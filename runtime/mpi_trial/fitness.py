"""Whether an MPI is fit for a job: by its kept verdict, or by a short trial.

A job may rely on an MPI only as far as it has passed.  Before the first run with an MPI one
of two ranks is killed, and the other must go on; that takes half a second.  Without shrinking
two ranks must start.  `holdfast doctor --mpi` tries everything, and its verdict then counts.

The bad answer of a short trial is not kept: the machine may have been busy, and a broken
installation may be fixed later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.runtime.errors import UsageError
from holdfast.runtime.mpi_trial.mpi_library import INSTALL_HINT, MpiLibrary
from holdfast.runtime.mpi_trial.trial_table import CAMPAIGN, FIRST_DEATH, PLAIN_START
from holdfast.runtime.mpi_trial.trust import Trust, first_fault, trust_of
from holdfast.runtime.mpi_trial.verdict_file import Verdict, find_verdict, keep_verdict

if TYPE_CHECKING:
    from holdfast.runtime.mpi_trial.campaign import Finding

_SHORT_TRIALS = {Trust.RELAUNCH: PLAIN_START, Trust.ONE: FIRST_DEATH}


def assess(library: MpiLibrary, environment: Mapping[str, str], needed: Trust) -> Verdict:
    """Return the kept verdict, or that of a short trial if it does not tell enough."""
    kept = find_verdict(library, environment)
    if kept is not None and (kept.is_campaign or kept.trust >= needed):
        return kept
    if needed >= Trust.ONE and not library.launcher.can_shrink:
        return Verdict(Trust.RELAUNCH, f"{library.name} ends all workers with the first that dies")
    from holdfast.runtime.mpi_trial.campaign import run_trial  # most jobs find a kept verdict

    finding = run_trial(library, environment, _SHORT_TRIALS[needed])
    if finding.outcome.has_passed:
        verdict = Verdict(needed)
        keep_verdict(library, environment, verdict, finding.files)
        return verdict
    fault = finding.outcome.wrong or finding.outcome.failure
    return Verdict(Trust(needed - 1), fault)


def examine(
    library: MpiLibrary, environment: Mapping[str, str], on_finding: Callable[[Finding], None]
) -> Verdict:
    """Run the whole campaign, keep its verdict for later runs, and return it."""
    from holdfast.runtime.mpi_trial.campaign import run_campaign

    findings = run_campaign(library, environment, CAMPAIGN, on_finding)
    outcomes = [finding.outcome for finding in findings]
    verdict = Verdict(trust_of(outcomes), first_fault(outcomes), is_campaign=True)
    files = [name for finding in findings for name in finding.files]
    keep_verdict(library, environment, verdict, files)
    return verdict


def require(library: MpiLibrary, verdict: Verdict, needed: Trust) -> None:
    """Refuse an MPI that a job cannot rely on.

    Raises:
        UsageError: the message gives the reason and the remedies.
    """
    if verdict.trust >= needed:
        return
    if verdict.trust is Trust.NOTHING:
        raise UsageError(
            f"{library} cannot start workers: {verdict.fault}; {INSTALL_HINT}, "
            "or name another with --mpiexec"
        )
    raise UsageError(
        f"{library} cannot continue after a worker's death (ULFM): {verdict.fault}; "
        f"{INSTALL_HINT}, or run with --no-shrink, which relaunches the job at every death"
    )


def warning_of(library: MpiLibrary, verdict: Verdict) -> str | None:
    """Return one sentence about deaths that this MPI may not survive in place, else None."""
    if verdict.trust is not Trust.ONE or not verdict.is_campaign:
        return library.warning
    return (
        f"{library} has lost workers when deaths followed each other closely ({verdict.fault}); "
        f"such jobs are relaunched from their checkpoints instead of going on in place; "
        f"use 5.0.9: {INSTALL_HINT}"
    )
