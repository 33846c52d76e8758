"""A run and its undisturbed twin: both are done, compared, and told in ``report.json``.

The twin says what is right: the bytes and the ledger of the struck run must be its own.  All else
is figures, among them how long each strike kept the run from training.

A repair or a relaunch belongs to the last strike before its end that can have caused it.  If none
can, it belongs to the last strike at all.  A strike with such gaps has cost the time up to the end
of the first one: a stopped agent is found and replaced only after a while.  A strike without one
has cost the time to the first step that began after it.  Each further gap of a strike, and a gap
before all strikes, has no explanation: a healthy worker may have been fenced.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.tools.followed_run import FollowedRun, RunTerms, follow_run
from holdfast.runtime.tools.report import Report
from holdfast.runtime.tools.strike import (
    Agenda,
    Blow,
    Kind,
    Strike,
    Target,
    strikes_by_count,
    strikes_by_mtbf,
)
from holdfast.runtime.tools.summary import Bucket, Span, buckets_of, seconds, spans_of, summarize

REPORT_NAME = "report.json"
_PLAN_NAME = "plan.txt"
_EVIDENCE_NAME = "evidence.txt"
_LOST = (Bucket.REPAIR, Bucket.RELAUNCH)
_WORK = (Bucket.TRAINING, Bucket.REPEATED)
_CARRIES_TRAINING = (Target.WORKER, Target.GUARD, Target.AGENT, Target.MPIEXEC, Target.HOST)
_TAKES_ORDERS = (Target.AGENT, Target.CLIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosTerms:
    """Everything that one call of ``holdfast chaos`` was told.

    ``strikes`` is a plan from a file; without it strikes come every ``mtbf_s`` on average, or
    ``count`` in all.  ``hosts`` are those of a job over several, the head's first.
    """

    arguments: tuple[str, ...]
    out: Path
    seed: int
    blows: tuple[Blow, ...]
    count: int
    mtbf_s: float | None = None
    strikes: tuple[Strike, ...] | None = None
    hang_after_s: float
    hosts: tuple[str, ...] = ()

    def run_in(self, folder: Path) -> RunTerms:
        """Return what one of both runs is told."""
        return RunTerms(self.arguments, folder, self.hang_after_s, self.hosts)

    def agenda(self, steps: int) -> Agenda:
        """Return the strikes on a run that has so many steps."""
        if self.strikes is not None:
            return Agenda(self.strikes)
        if self.mtbf_s is not None:
            endless = strikes_by_mtbf(
                self.seed, self.mtbf_s, self.blows, has_hosts=bool(self.hosts)
            )
            return Agenda(endless, is_endless=True)
        of_count = strikes_by_count(
            self.seed, self.count, steps, self.blows, has_hosts=bool(self.hosts)
        )
        return Agenda(of_count)


def run_chaos(terms: ChaosTerms, tell: Callable[[str], None]) -> Verdict:
    """Run the twin and the struck run in ``terms.out``; return the verdict.

    Raises:
        UsageError: the directory is in use.
        ProgramError: the undisturbed twin does not come to its end.
    """
    _make(terms.out)
    tell(f"the undisturbed twin runs in {terms.out / 'twin'}")
    twin = follow_run(terms.run_in(terms.out / "twin"), Agenda(()))
    _refuse_bad(twin, terms.out / "twin")
    steps = summarize(twin.entries).steps
    tell(f"the twin made {steps} steps in {twin.ended - twin.began:.1f} s; now the strikes")
    run = follow_run(terms.run_in(terms.out / "struck"), terms.agenda(steps))
    verdict = judge(run, twin)
    _write(terms, verdict)
    return verdict


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"{out} is there already; remove it, or choose another --out") from error
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}; choose another --out") from error


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
    # In the order in which they were carried out.
    plan = "\n".join(told.strike for told in verdict.strikes) + "\n"
    (terms.out / _PLAN_NAME).write_text(plan, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Recovery:
    """The time from strikes of one kind to the training that went on, in seconds.

    ``strikes`` of them hit, and after ``recovered`` of them training went on; the others
    came after the last step.  Training has paused for ``paused`` of them.
    """

    blow: str
    strikes: int
    recovered: int
    paused: int
    median_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class StrikeResult:
    """A strike of the report: its line, the moment in seconds of the run, and the victim."""

    strike: str
    at_s: float
    step: int
    victim: str | None
    recovered_s: float | None
    has_paused: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """A struck run and its twin; times in seconds, buckets in nanoseconds.

    The run is good if there is no complaint, and has survived if a job of it ended with 0.
    ``unexplained`` names interruptions that no strike has caused.  ``speed`` is the twin's wall
    time divided by that of the struck run.
    """

    complaints: tuple[str, ...]
    has_survived: bool
    exit_codes: tuple[int, ...]
    sha256: str | None
    twin_sha256: str | None
    steps: int
    wall_s: float
    twin_wall_s: float
    speed: float
    buckets: dict[str, int]
    twin_buckets: dict[str, int]
    strikes: tuple[StrikeResult, ...]
    recoveries: tuple[Recovery, ...]
    unexplained: tuple[str, ...]
    leftovers: tuple[str, ...]
    evidence: str

    @property
    def is_good(self) -> bool:
        """Whether everything that must hold does."""
        return not self.complaints

    @property
    def in_words(self) -> str:
        """The verdict, with the strikes that have told nothing."""
        missed = sum(told.victim is None for told in self.strikes)
        if not self.is_good:
            return "BAD"
        if not self.strikes:
            return "good, but nothing was struck"
        of_all = f"{missed} of {len(self.strikes)}"
        return f"good, but {of_all} strikes found no victim" if missed else "good"


def judge(run: FollowedRun, twin: FollowedRun) -> Verdict:
    """Compare a struck run with its twin."""
    report, expected = summarize(run.entries), summarize(twin.entries)
    spans, twin_spans = _spans(run), _spans(twin)
    wall_s, twin_wall_s = run.ended - run.began, twin.ended - twin.began
    told = tuple(_tell(run, spans))
    return Verdict(
        complaints=tuple(_complaints(run, report, expected)),
        has_survived=run.failure is None,
        exit_codes=run.exit_codes,
        sha256=report.final_sha256,
        twin_sha256=expected.final_sha256,
        steps=report.steps,
        wall_s=wall_s,
        twin_wall_s=twin_wall_s,
        speed=twin_wall_s / wall_s if wall_s > 0 else 0.0,
        buckets=_named(spans),
        twin_buckets=_named(twin_spans),
        strikes=told,
        recoveries=tuple(_recoveries(run, told)),
        unexplained=tuple(_unexplained(run, spans)),
        leftovers=run.leftovers,
        evidence=run.evidence,
    )


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest of ``values`` that ``part`` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _complaints(run: FollowedRun, report: Report, expected: Report) -> Iterator[str]:
    """Yield a sentence for each thing that must hold and does not."""
    if run.failure is not None:
        yield f"not survived: {run.failure}"
        return
    if report.final_sha256 is None or report.final_sha256 != expected.final_sha256:
        yield (
            f"wrong bytes: {report.final_sha256} instead of {expected.final_sha256}; {_hint(run)}"
        )
    if _ledger(report) != _ledger(expected):
        yield f"another ledger: {_ledger(report)} instead of {_ledger(expected)}"
    yield from (f"left behind: {what}" for what in run.leftovers)
    yield from _unexplained_ends(run)


def _hint(run: FollowedRun) -> str:
    """Return how to tell a script without the same bytes twice from a job that lost some."""
    if any(struck.has_hit for struck in run.struck):
        return "`holdfast chaos --count 0` tells whether two undisturbed runs agree"
    return "nothing was struck, so look for a seed from the clock, or data that change"


def _unexplained_ends(run: FollowedRun) -> Iterator[str]:
    """Yield each end of a client by a signal that nobody has sent."""
    targets = {struck.strike.blow.target for struck in run.struck if struck.has_hit}
    if Target.CLIENT not in targets:
        for code in run.exit_codes:
            if code < 0:
                yield f"the client died of signal {-code}, and no strike was meant for it"


def _ledger(report: Report) -> list[tuple[int, int, int, bool]]:
    return [(e.epoch, e.step, e.samples, e.exact) for e in report.epochs]


def _spans(run: FollowedRun) -> tuple[Span, ...]:
    return spans_of(run.entries, run.began, run.ended)


def _named(spans: Sequence[Span]) -> dict[str, int]:
    return {bucket.value: length for bucket, length in buckets_of(spans).items()}


def _hits(run: FollowedRun) -> list[Hit]:
    return [Hit(struck.now, struck.strike.blow) for struck in run.struck if struck.has_hit]


def _unexplained(run: FollowedRun, spans: Sequence[Span]) -> Iterator[str]:
    began = spans[0].begin if spans else 0
    for span in unexplained(_hits(run), spans):
        length = seconds(span.end - span.begin)
        yield f"{span.bucket.value} of {length:.2f} s at {seconds(span.begin - began):.2f} s"


def _tell(run: FollowedRun, spans: Sequence[Span]) -> Iterator[StrikeResult]:
    hits = _hits(run)
    times, paused = recovery_times(hits, spans), pauses(hits, spans)
    for struck in run.struck:
        yield StrikeResult(
            strike=str(struck.strike),
            at_s=round(struck.now - run.began, 3),
            step=struck.step,
            victim=struck.victim,
            recovered_s=next(times) if struck.has_hit else None,
            has_paused=struck.has_hit and next(paused),
        )


def _recoveries(run: FollowedRun, told: Sequence[StrikeResult]) -> Iterator[Recovery]:
    blows = sorted({str(struck.strike.blow) for struck in run.struck if struck.has_hit})
    for blow in blows:
        hits = [t for t in told if t.victim is not None and t.strike.startswith(f"{blow} ")]
        times = [t.recovered_s for t in hits if t.recovered_s is not None]
        yield Recovery(
            blow=blow,
            strikes=len(hits),
            recovered=len(times),
            paused=sum(t.has_paused for t in hits),
            median_s=percentile(times, 0.5) if times else None,
            p99_s=percentile(times, 0.99) if times else None,
        )


def shares(buckets: dict[str, int]) -> dict[str, tuple[float, float]]:
    """Return each bucket's seconds and its part of the whole."""
    whole = sum(buckets.values()) or 1
    return {name: (seconds(length), length / whole) for name, length in buckets.items()}


@dataclass(frozen=True, slots=True)
class Hit:
    """A strike that had a victim, at ``now`` monotonic seconds."""

    now: float
    blow: Blow


def recovery_times(hits: Sequence[Hit], spans: Sequence[Span]) -> Iterator[float | None]:
    """Yield the seconds that each hit cost, None if no training came after it.

    ``hits`` and ``spans`` are in the order of time.
    """
    owners = {span: _owner(span, hits) for span in spans if span.bucket in _LOST}
    for hit in hits:
        moment = _ns(hit)
        ends = [span.end for span, owner in owners.items() if owner is hit]
        ends = ends or [s.begin for s in spans if s.bucket in _WORK and s.begin >= moment][:1]
        yield seconds(ends[0] - moment) if ends else None


def pauses(hits: Sequence[Hit], spans: Sequence[Span]) -> Iterator[bool]:
    """Yield for each hit whether training has paused.

    Without repair and relaunch, the next step begins after two usual ones at the latest.
    """
    lost = [_owner(span, hits) for span in spans if span.bucket in _LOST]
    steps = sorted(seconds(span.end - span.begin) for span in spans if span.bucket in _WORK)
    usual_s = steps[len(steps) // 2] if steps else 0.0
    for hit, recovered_s in zip(hits, recovery_times(hits, spans), strict=True):
        is_late = recovered_s is not None and recovered_s > 2 * usual_s
        yield is_late or any(owner is hit for owner in lost)


def unexplained(hits: Sequence[Hit], spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the repairs and relaunches that no strike explains."""
    explained: list[Hit] = []
    for span in spans:
        if span.bucket in _LOST:
            owner = _owner(span, hits)
            if owner is None or any(owner is other for other in explained):
                yield span
            else:
                explained.append(owner)


def can_interrupt(blow: Blow) -> bool:
    """Return whether training stops for a while after ``blow``, by the failure model."""
    if blow.kind in (Kind.KILL, Kind.STOP):
        return blow.target in _CARRIES_TRAINING
    return blow.kind is Kind.TERM and blow.target in _TAKES_ORDERS


def _owner(span: Span, hits: Sequence[Hit]) -> Hit | None:
    before = [hit for hit in hits if _ns(hit) < span.end]
    causes = [hit for hit in before if can_interrupt(hit.blow)]
    return next(iter((causes or before)[-1:]), None)


def _ns(hit: Hit) -> int:
    return round(hit.now * 1_000_000_000)
