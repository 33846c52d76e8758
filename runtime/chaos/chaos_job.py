"""A run and its undisturbed twin: both are done, compared, and told in ``report.json``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.chaos.agenda import Agenda
from holdfast.runtime.chaos.followed_run import FollowedRun, RunTerms, follow_run
from holdfast.runtime.chaos.full_place import SHARED_MEMORY, FullPlace
from holdfast.runtime.chaos.plan import strikes_by_count, strikes_by_mtbf
from holdfast.runtime.chaos.strike import Blow, Strike, Target
from holdfast.runtime.chaos.verdict import Verdict, judge
from holdfast.runtime.commands.summary import summarize
from holdfast.runtime.errors import ProgramError, UsageError

REPORT_NAME = "report.json"
PLAN_NAME = "plan.txt"
_EVIDENCE_NAME = "evidence.txt"
_MOUNTED = (Target.DISK, Target.SHM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosTerms:
    """Everything that one call of ``holdfast chaos`` was told.

    ``strikes`` is a plan from a file; without it strikes come every ``mtbf_s`` on average, or
    ``count`` in all.  A place that is to be full is mounted with so many MiB.
    """

    arguments: tuple[str, ...]
    out: Path
    seed: int
    blows: tuple[Blow, ...]
    count: int
    mtbf_s: float | None = None
    strikes: tuple[Strike, ...] | None = None
    hang_after_s: float
    disk_mb: int
    shm_mb: int

    @property
    def mounted(self) -> tuple[Target, ...]:
        """The places that are to be full and that need a mount of their own."""
        blows = self.blows if self.strikes is None else [s.blow for s in self.strikes]
        targets = {blow.target for blow in blows}
        return tuple(place for place in _MOUNTED if place in targets)

    def without_places(self) -> ChaosTerms:
        """Return these terms without the strikes that need a mount.

        Raises:
            UsageError: nothing is left.
        """
        blows = tuple(blow for blow in self.blows if blow.target not in _MOUNTED)
        strikes = self.strikes
        if strikes is not None:
            strikes = tuple(s for s in strikes if s.blow.target not in _MOUNTED)
        if not blows or strikes == ():
            raise UsageError("nothing is left to strike with; name other --kinds, or be root")
        return dataclasses.replace(self, blows=blows, strikes=strikes)

    def agenda(self, steps: int) -> Agenda:
        """Return the strikes on a run that has so many steps."""
        if self.strikes is not None:
            return Agenda(self.strikes)
        if self.mtbf_s is not None:
            endless = strikes_by_mtbf(self.seed, self.mtbf_s, self.blows)
            return Agenda(endless, is_endless=True)
        return Agenda(strikes_by_count(self.seed, self.count, steps, self.blows))


def run_chaos(terms: ChaosTerms, tell: Callable[[str], None]) -> Verdict:
    """Run the twin and the struck run in ``terms.out``; return the verdict.

    Raises:
        UsageError: the directory is in use, or a place cannot be mounted.
        ProgramError: the undisturbed twin does not come to its end.
    """
    _make(terms.out)
    with contextlib.ExitStack() as mounts:
        places = {place: mounts.enter_context(_mount(terms, place)) for place in terms.mounted}
        tell(f"the undisturbed twin runs in {terms.out / 'twin'}")
        twin = follow_run(
            RunTerms(terms.arguments, terms.out / "twin", terms.hang_after_s), Agenda(())
        )
        _refuse_bad(twin, terms.out / "twin")
        steps = summarize(twin.records).steps
        tell(f"the twin made {steps} steps in {twin.ended - twin.began:.1f} s; now the strikes")
        run = _strike(terms, terms.agenda(steps), places)
    verdict = judge(run, twin)
    _write(terms, verdict)
    return verdict


def as_struck(verdict: Verdict) -> Sequence[str]:
    """Return the strikes as the lines of a plan, in the order in which they were carried out."""
    return [told.strike for told in verdict.strikes]


def _strike(terms: ChaosTerms, agenda: Agenda, places: dict[Target, FullPlace]) -> FollowedRun:
    """Run the struck run, on the small disk if there is one; its directory is kept."""
    folder, disk = terms.out / "struck", places.get(Target.DISK)
    run_terms = RunTerms(
        terms.arguments, folder, terms.hang_after_s, None if disk is None else disk.path
    )
    run = follow_run(run_terms, agenda, places)
    if disk is not None:
        shutil.copytree(run_terms.run_dir, folder / "run")
    return run


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"{out} is there already; remove it, or choose another --out") from error
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}; choose another --out") from error


def _mount(terms: ChaosTerms, place: Target) -> FullPlace:
    if place is Target.SHM:
        return FullPlace(SHARED_MEMORY, terms.shm_mb)
    return FullPlace(terms.out / "struck" / "disk", terms.disk_mb)


def _refuse_bad(twin: FollowedRun, folder: Path) -> None:
    if twin.failure is not None:
        (folder / _EVIDENCE_NAME).write_text(twin.evidence + "\n", encoding="utf-8")
        raise ProgramError(
            f"the undisturbed twin failed ({twin.failure}), so there is nothing to compare with; "
            f"see stderr.txt and {_EVIDENCE_NAME} in {folder}"
        )


def _write(terms: ChaosTerms, verdict: Verdict) -> None:
    head = {
        "good": verdict.is_good,
        "seed": terms.seed,
        "arguments": list(terms.arguments),
        "mtbf_s": terms.mtbf_s,
    }
    text = json.dumps(head | dataclasses.asdict(verdict), indent=2)
    (terms.out / REPORT_NAME).write_text(text + "\n", encoding="utf-8")
    plan = "\n".join(as_struck(verdict)) + "\n"
    (terms.out / PLAN_NAME).write_text(plan, encoding="utf-8")
