"""A run and its twin: what each is asked for, what a strike has cost, and what makes a run bad."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import entry

from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.tools import verdict as verdict_module
from holdfast.runtime.tools.followed_run import FollowedRun, RunTerms
from holdfast.runtime.tools.strike import (
    BLOWS,
    PROCESS_BLOWS,
    Agenda,
    Blow,
    Kind,
    Progress,
    Target,
    parse_blows,
    parse_plan,
    parse_strike,
    strikes_by_count,
    strikes_by_mtbf,
)
from holdfast.runtime.tools.striker import Struck
from holdfast.runtime.tools.summary import Bucket, Span
from holdfast.runtime.tools.verdict import (
    ChaosTerms,
    Hit,
    can_interrupt,
    judge,
    pauses,
    percentile,
    recovery_times,
    run_chaos,
    unexplained,
)

CALM_ENTRIES: tuple[Entry[Any], ...] = (
    entry("job_started", 0.5),
    entry("launch", 0.5),
    entry("step", 2.0, seconds=1.0, step=6, samples=40),
    entry("completed", 2.5, step=6, sha256="aa"),
)

CALM = FollowedRun((0,), 0.0, 3.0, CALM_ENTRIES, (), ())

PLAN = parse_plan("kill agent at step 2\nfull stderr at step 3")


def _terms(out: Path, **changes: Any) -> ChaosTerms:
    terms = ChaosTerms(
        arguments=("-n", "2", "train.py"),
        out=out,
        seed=7,
        blows=BLOWS,
        count=3,
        hang_after_s=60.0,
    )
    return dataclasses.replace(terms, **changes)


class Runs:
    """Stands in for both runs: notes what they were asked for, and writes a journal."""

    def __init__(self, *outcomes: FollowedRun) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[RunTerms, Agenda]] = []

    def follow(self, terms: RunTerms, agenda: Agenda) -> FollowedRun:
        self.asked.append((terms, agenda))
        terms.folder.mkdir(parents=True, exist_ok=True)
        terms.run_dir.mkdir(parents=True)
        (terms.run_dir / "journal.jsonl").write_text("records")
        return self.outcomes.pop(0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs(CALM, CALM)
    monkeypatch.setattr(verdict_module, "follow_run", found.follow)
    return found


def test_plan_is_taken_before_a_seed_and_gaps_before_a_count() -> None:
    by_count = strikes_by_count(7, 3, 100, BLOWS)
    first_by_gaps = next(strikes_by_mtbf(7, 9.0, BLOWS))

    assert _terms(Path("/out"), strikes=PLAN, mtbf_s=9.0).agenda(100).unstruck() == list(PLAN)
    assert _terms(Path("/out")).agenda(100).unstruck() == list(by_count)
    endless = _terms(Path("/out"), mtbf_s=9.0).agenda(100)
    assert endless.due(1e9, Progress()) == [first_by_gaps]
    assert endless.unstruck() == []


def test_twin_is_left_alone_and_the_other_is_struck_by_the_steps_of_the_twin(
    runs: Runs, tmp_path: Path
) -> None:
    told: list[str] = []

    verdict = run_chaos(_terms(tmp_path / "out"), told.append)

    (twin, calm), (struck, agenda) = runs.asked
    assert (twin.folder, struck.folder) == (tmp_path / "out" / "twin", tmp_path / "out" / "struck")
    assert twin.arguments == struck.arguments == ("-n", "2", "train.py")
    assert twin.hang_after_s == struck.hang_after_s == 60.0
    assert calm.unstruck() == []
    assert agenda.unstruck() == list(strikes_by_count(7, 3, 6, BLOWS))
    assert verdict.is_good
    assert "the twin made 6 steps in 3.0 s" in told[1]


def test_report_and_plan_of_what_was_struck_are_written(runs: Runs, tmp_path: Path) -> None:
    plan = parse_plan("kill worker #2 at step 3\nstop+cont agent at 1s for 2s")
    struck = tuple(Struck(strike, 1.0, 0, "77 python3") for strike in reversed(plan))
    runs.outcomes[1] = dataclasses.replace(CALM, struck=struck)

    run_chaos(_terms(tmp_path / "out", strikes=plan), lambda _: None)

    assert parse_plan((tmp_path / "out" / "plan.txt").read_text()) == plan[::-1]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["good"], report["seed"], report["mtbf_s"]) == (True, 7, None)
    assert report["arguments"] == ["-n", "2", "train.py"]
    assert report["sha256"] == report["twin_sha256"] == "aa"


def test_twin_that_fails_leaves_its_evidence_and_nothing_is_struck(
    runs: Runs, tmp_path: Path
) -> None:
    runs.outcomes[0] = dataclasses.replace(CALM, failure="it hung", evidence="processes: none")

    with pytest.raises(ProgramError, match=r"twin failed \(it hung\), so there is nothing to com"):
        run_chaos(_terms(tmp_path / "out"), lambda _: None)

    assert (tmp_path / "out" / "twin" / "evidence.txt").read_text() == "processes: none\n"
    assert len(runs.asked) == 1
    assert not (tmp_path / "out" / "report.json").exists()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("taken", "taken is there already; remove it, or choose another --out"),
        ("file/out", "file/out cannot be made: Not a directory; choose another --out"),
    ],
)
def test_directory_that_cannot_be_had_is_refused_before_any_run(
    runs: Runs, tmp_path: Path, place: str, words: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match=words):
        run_chaos(_terms(tmp_path / place), lambda _: None)

    assert runs.asked == []


def _entries(
    sha256: str = "aa", samples: int = 40, *, exact: bool = True
) -> tuple[Entry[Any], ...]:
    return (
        entry("job_started", 0.5),
        entry("launch", 0.5),
        entry("step", 2.0, seconds=1.0, step=1, samples=40),
        entry("epoch", 2.0, epoch=1, step=1, ledger={"samples": samples, "exact": exact}),
        entry("completed", 2.5, step=1, sha256=sha256),
        entry("job_ended", 2.6),
    )


TWIN = FollowedRun((0,), 0.0, 3.0, _entries(), (), ())


def test_run_like_its_twin_is_good() -> None:
    verdict = judge(TWIN, TWIN)

    assert verdict.is_good
    assert verdict.has_survived
    assert verdict.speed == 1.0
    assert sum(verdict.buckets.values()) == 3_000_000_000


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"failure": "nothing has moved for 9 s"}, "not survived: nothing has moved for 9 s"),
        ({"entries": _entries("bb")}, "wrong bytes: bb instead of aa"),
        ({"entries": ()}, "wrong bytes: None instead of aa"),
        ({"entries": _entries(samples=39)}, "another ledger"),
        ({"entries": _entries(exact=False)}, "another ledger"),
        ({"leftovers": ("process 3 holdfast-w1",)}, "left behind: process 3 holdfast-w1"),
        ({"exit_codes": (-11, 0)}, "the client died of signal 11"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_run_that_differs_is_bad(changes: dict[str, object], complaint: str) -> None:
    verdict = judge(dataclasses.replace(TWIN, **changes), TWIN)  # type: ignore[arg-type]

    assert not verdict.is_good
    assert verdict.has_survived == ("failure" not in changes)
    assert verdict.complaints[0].startswith(complaint)


def test_supervisor_that_was_killed_by_a_strike_is_no_complaint() -> None:
    kill = Struck(parse_strike("kill client at 1s"), 1.0, 0, "77 python3")
    run = dataclasses.replace(TWIN, exit_codes=(-9, 0), struck=(kill,))

    assert judge(run, TWIN).is_good


def test_recoveries_are_told_by_kind_without_the_missed_ones() -> None:
    hit = Struck(parse_strike("kill worker at 1s"), 0.75, 0, "77 holdfast-w0")
    missed = Struck(parse_strike("kill agent on failure"), 2.9, 1, None)

    verdict = judge(dataclasses.replace(TWIN, struck=(hit, missed)), TWIN)

    assert [(found.blow, found.strikes) for found in verdict.recoveries] == [("kill worker", 1)]
    assert verdict.recoveries[0].median_s == 0.25  # the only step began at 1.0
    assert [told.victim for told in verdict.strikes] == ["77 holdfast-w0", None]


@pytest.mark.parametrize(
    ("strikes", "words"),
    [
        ((), "good, but nothing was struck"),
        (("77 holdfast-w0", "78 holdfast-w1"), "good"),
        (("77 holdfast-w0", None, None), "good, but 2 of 3 strikes found no victim"),
    ],
)
def test_good_verdict_tells_how_many_strikes_were_missed(
    strikes: tuple[str | None, ...], words: str
) -> None:
    kill = parse_strike("kill worker at 1s")
    struck = tuple(Struck(kill, 0.75, 0, victim) for victim in strikes)

    assert judge(dataclasses.replace(TWIN, struck=struck), TWIN).in_words == words
    bad = judge(dataclasses.replace(TWIN, struck=struck, entries=_entries("bb")), TWIN)
    assert bad.in_words == "BAD"


def test_wrong_bytes_come_with_the_way_to_suspect_the_script() -> None:
    run = dataclasses.replace(TWIN, entries=_entries("bb"))
    hit = Struck(parse_strike("kill worker at 1s"), 0.75, 0, "77 holdfast-w0")

    assert "look for a seed from the clock" in judge(run, TWIN).complaints[0]
    struck = judge(dataclasses.replace(run, struck=(hit,)), TWIN)
    assert "--count 0` tells whether two undisturbed runs agree" in struck.complaints[0]


@pytest.mark.parametrize(
    ("part", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.25, 1.0), (0.0, 1.0), (1.0, 4.0)]
)
def test_percentile_is_a_value_that_was_measured(part: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], part) == expected


REPAIRED: tuple[Entry[Any], ...] = (
    entry("launch", 10.5),
    entry("step", 12.0, seconds=1.0, step=1, samples=40, generation=1),
    entry("step", 15.0, seconds=1.0, step=2, samples=40, generation=2),
    entry("completed", 15.5, step=2, sha256="aa"),
)
"""Two steps, and a repair from 12 to 14 s between them."""


def _repaired(*struck: Struck) -> FollowedRun:
    return FollowedRun((0,), 10.0, 16.0, REPAIRED, struck, ())


def test_interruption_that_no_strike_has_caused_is_named_with_its_moment() -> None:
    kill = Struck(parse_strike("kill worker at 1s"), 11.5, 0, "77 holdfast-w0")

    assert judge(_repaired(), TWIN).unexplained == ("repair of 2.00 s at 2.00 s",)
    assert judge(_repaired(kill), TWIN).unexplained == ()


def test_strike_is_told_with_its_moment_in_the_run_and_what_it_cost() -> None:
    kill = Struck(parse_strike("kill worker #2 at 1s"), 11.5, 1, "77 holdfast-w0")
    harmless = Struck(parse_strike("term pool at 1s"), 10.75, 0, "78 holdfast-pool")
    late = Struck(parse_strike("kill agent at 5s"), 15.25, 2, "79 holdfast-agent")

    told = judge(_repaired(harmless, kill, late), TWIN).strikes

    assert [(t.at_s, t.step, t.recovered_s, t.has_paused) for t in told] == [
        (0.75, 0, 0.25, False),
        (1.5, 1, 2.5, True),
        (5.25, 2, None, False),
    ]


def test_recoveries_of_kinds_whose_names_begin_alike_are_kept_apart() -> None:
    stop = Struck(parse_strike("stop worker at 1s"), 11.5, 0, "77 holdfast-w0")
    short = Struck(parse_strike("stop+cont worker at 1s"), 10.5, 0, "78 holdfast-w1")
    late = Struck(parse_strike("stop worker #3 at 9s"), 15.25, 2, "79 holdfast-w2")

    found = {r.blow: r for r in judge(_repaired(short, stop, late), TWIN).recoveries}

    assert list(found) == ["stop worker", "stop+cont worker"]
    stopped = found["stop worker"]
    assert (stopped.strikes, stopped.recovered, stopped.paused) == (2, 1, 1)
    assert (stopped.median_s, stopped.p99_s) == (2.5, 2.5)
    assert found["stop+cont worker"].strikes == 1


def test_speed_is_the_time_of_the_twin_in_that_of_the_struck_run() -> None:
    verdict = judge(_repaired(), TWIN)

    assert (verdict.wall_s, verdict.twin_wall_s, verdict.speed) == (6.0, 3.0, 0.5)
    assert verdict.buckets["repair"] == 2_000_000_000
    assert verdict.twin_buckets["repair"] == 0


S = 1_000_000_000

KILL_WORKER = Blow(Kind.KILL, Target.WORKER)

STOP_AGENT = Blow(Kind.STOP, Target.AGENT)

TERM_POOL = Blow(Kind.TERM, Target.POOL)

KILL_AGENT = Blow(Kind.KILL, Target.AGENT)


def _spans(*parts: tuple[Bucket, float, float]) -> list[Span]:
    return [Span(bucket, round(begin * S), round(end * S)) for bucket, begin, end in parts]


TRAINING, REPAIR, RELAUNCH = Bucket.TRAINING, Bucket.REPAIR, Bucket.RELAUNCH


def test_stopped_agent_is_charged_with_the_relaunch_not_the_harmless_strike_after_it() -> None:
    spans = _spans((TRAINING, 0, 4), (RELAUNCH, 4, 9), (TRAINING, 9, 10))

    times = list(recovery_times([Hit(1, STOP_AGENT), Hit(3, TERM_POOL)], spans))

    assert times == [8, 6]  # the other one waits for the next step that begins


def test_harmless_strike_is_no_pause_and_a_late_step_is_one() -> None:
    """A stopped worker that goes on has no repair, and its step lasts as long as the stop."""
    spans = _spans((TRAINING, 0, 1), (TRAINING, 1, 2), (TRAINING, 2, 6), (REPAIR, 6, 7),
                   (TRAINING, 7, 8), (TRAINING, 8, 9))  # fmt: skip
    hits = [Hit(0.5, TERM_POOL), Hit(2.1, TERM_POOL), Hit(5.9, KILL_WORKER), Hit(8.5, KILL_AGENT)]

    assert list(pauses(hits, spans)) == [False, True, True, False]


def test_second_death_takes_the_gap_over() -> None:
    spans = _spans((TRAINING, 0, 5), (RELAUNCH, 5, 9), (TRAINING, 9, 10))

    times = list(recovery_times([Hit(4, KILL_WORKER), Hit(6, KILL_AGENT)], spans))

    assert times == [5, 3]


def test_gap_without_a_strike_that_explains_it_belongs_to_the_last_one() -> None:
    spans = _spans((TRAINING, 0, 5), (RELAUNCH, 5, 9), (TRAINING, 9, 10))

    assert list(recovery_times([Hit(4, TERM_POOL)], spans)) == [5]


def test_second_gap_of_a_strike_has_no_explanation() -> None:
    later = (RELAUNCH, 20, 25)
    spans = _spans((REPAIR, 0, 1), (TRAINING, 1, 5), (REPAIR, 5, 6), (TRAINING, 6, 20), later)
    hits = [Hit(4.5, KILL_WORKER)]

    assert list(recovery_times(hits, spans)) == [1.5]
    assert list(unexplained(hits, spans)) == _spans((REPAIR, 0, 1), later)


@pytest.mark.parametrize(
    ("line", "interrupts"),
    [
        ("kill worker", True),
        ("stop guard", True),
        ("kill mpiexec", True),
        ("kill client", False),
        ("term client", True),
        ("term agent", True),
        ("term worker", False),
        ("stop+cont worker", False),
        ("full stderr", False),
    ],
)
def test_failure_model_tells_which_strikes_stop_training(line: str, *, interrupts: bool) -> None:
    (blow,) = parse_blows(line)

    assert can_interrupt(blow) is interrupts


_LENGTHS = st.tuples(st.sampled_from([TRAINING, REPAIR, RELAUNCH]), st.integers(1, 5))


@given(
    st.lists(_LENGTHS, max_size=8),
    st.lists(st.tuples(st.integers(-2, 30), st.sampled_from(PROCESS_BLOWS)), max_size=5),
)
def test_each_gap_is_explained_by_one_strike_or_by_none(
    lengths: list[tuple[Bucket, int]], strikes: list[tuple[int, Blow]]
) -> None:
    ends = list(itertools.accumulate(length for _, length in lengths))
    spans = _spans(
        *((b, end - length, end) for (b, length), end in zip(lengths, ends, strict=True))
    )
    hits = [Hit(now, blow) for now, blow in sorted(strikes, key=lambda strike: strike[0])]

    times, paused = list(recovery_times(hits, spans)), list(pauses(hits, spans))

    gaps = [span for span in spans if span.bucket is not TRAINING]
    assert len(times) == len(paused) == len(hits)
    assert all(time is None or time >= 0 for time in times)
    # At most one gap is charged to each hit, and all others are told as unexplained.
    assert 0 <= len(gaps) - len(list(unexplained(hits, spans))) <= sum(paused)
