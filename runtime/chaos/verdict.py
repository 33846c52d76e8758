"""What became of a struck run, held against its undisturbed twin; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.runtime.chaos.followed_run import FollowedRun
from holdfast.runtime.chaos.recovery_times import Hit, pauses, recovery_times, unexplained
from holdfast.runtime.chaos.strike import Target
from holdfast.runtime.commands.goodput import Span, buckets_of, seconds, spans_of
from holdfast.runtime.commands.report import Report
from holdfast.runtime.commands.summary import summarize


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
class Told:
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
    strikes: tuple[Told, ...]
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
    report, expected = summarize(run.records), summarize(twin.records)
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
    """Yield each end of a supervisor by a signal that nobody has sent."""
    targets = {struck.strike.blow.target for struck in run.struck if struck.has_hit}
    if Target.SUPERVISOR not in targets:
        for code in run.exit_codes:
            if code < 0:
                yield f"the supervisor died of signal {-code}, and no strike was meant for it"


def _ledger(report: Report) -> list[tuple[int, int, int, bool]]:
    return [(e.epoch, e.step, e.samples, e.exact) for e in report.epochs]


def _spans(run: FollowedRun) -> tuple[Span, ...]:
    return spans_of(run.records, run.began, run.ended)


def _named(spans: Sequence[Span]) -> dict[str, int]:
    return {bucket.value: length for bucket, length in buckets_of(spans).items()}


def _hits(run: FollowedRun) -> list[Hit]:
    return [Hit(struck.now, struck.strike.blow) for struck in run.struck if struck.has_hit]


def _unexplained(run: FollowedRun, spans: Sequence[Span]) -> Iterator[str]:
    began = spans[0].begin if spans else 0
    for span in unexplained(_hits(run), spans):
        length = seconds(span.end - span.begin)
        yield f"{span.bucket.value} of {length:.2f} s at {seconds(span.begin - began):.2f} s"


def _tell(run: FollowedRun, spans: Sequence[Span]) -> Iterator[Told]:
    hits = _hits(run)
    times, paused = recovery_times(hits, spans), pauses(hits, spans)
    for struck in run.struck:
        yield Told(
            strike=str(struck.strike),
            at_s=round(struck.now - run.began, 3),
            step=struck.step,
            victim=struck.victim,
            recovered_s=next(times) if struck.has_hit else None,
            has_paused=struck.has_hit and next(paused),
        )


def _recoveries(run: FollowedRun, told: Sequence[Told]) -> Iterator[Recovery]:
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
