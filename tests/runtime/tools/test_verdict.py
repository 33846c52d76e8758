"""A run is bad as soon as one thing that must hold does not."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.runtime.run.journal import Record
from holdfast.runtime.tools.followed_run import FollowedRun
from holdfast.runtime.tools.strike import parse_strike
from holdfast.runtime.tools.striker import Struck
from holdfast.runtime.tools.verdict import judge, percentile, shares


def _records(sha256: str = "aa", samples: int = 40, *, exact: bool = True) -> tuple[Record, ...]:
    ledger = {"samples": samples, "exact": exact}
    return (
        {"event": "job_started", "now": 0.5},
        {"event": "launch", "now": 0.5},
        {"event": "step", "now": 2.0, "seconds": 1.0, "step": 1, "samples": 40, "generation": 1},
        {"event": "epoch", "now": 2.0, "epoch": 1, "step": 1, "ledger": ledger},
        {"event": "completed", "now": 2.5, "step": 1, "sha256": sha256},
        {"event": "job_ended", "now": 2.6, "exit_code": 0, "reason": ""},
    )


TWIN = FollowedRun((0,), 0.0, 3.0, _records(), (), ())


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
        ({"records": _records("bb")}, "wrong bytes: bb instead of aa"),
        ({"records": ()}, "wrong bytes: None instead of aa"),
        ({"records": _records(samples=39)}, "another ledger"),
        ({"records": _records(exact=False)}, "another ledger"),
        ({"leftovers": ("process 3 holdfast-w1",)}, "left behind: process 3 holdfast-w1"),
        ({"exit_codes": (-11, 0)}, "the supervisor died of signal 11"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_run_that_differs_is_bad(changes: dict[str, object], complaint: str) -> None:
    verdict = judge(dataclasses.replace(TWIN, **changes), TWIN)  # type: ignore[arg-type]

    assert not verdict.is_good
    assert verdict.has_survived == ("failure" not in changes)
    assert verdict.complaints[0].startswith(complaint)


def test_supervisor_that_was_killed_by_a_strike_is_no_complaint() -> None:
    kill = Struck(parse_strike("kill supervisor at 1s"), 1.0, 0, "77 python3")
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
    bad = judge(dataclasses.replace(TWIN, struck=struck, records=_records("bb")), TWIN)
    assert bad.in_words == "BAD"


def test_wrong_bytes_come_with_the_way_to_suspect_the_script() -> None:
    run = dataclasses.replace(TWIN, records=_records("bb"))
    hit = Struck(parse_strike("kill worker at 1s"), 0.75, 0, "77 holdfast-w0")

    assert "look for a seed from the clock" in judge(run, TWIN).complaints[0]
    struck = judge(dataclasses.replace(run, struck=(hit,)), TWIN)
    assert "--count 0` tells whether two undisturbed runs agree" in struck.complaints[0]


@pytest.mark.parametrize(
    ("part", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.25, 1.0), (0.0, 1.0), (1.0, 4.0)]
)
def test_percentile_is_a_value_that_was_measured(part: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], part) == expected


REPAIRED: tuple[Record, ...] = (
    {"event": "launch", "now": 10.5},
    {"event": "step", "now": 12.0, "seconds": 1.0, "step": 1, "samples": 40, "generation": 1},
    {"event": "step", "now": 15.0, "seconds": 1.0, "step": 2, "samples": 40, "generation": 2},
    {"event": "completed", "now": 15.5, "step": 2, "sha256": "aa"},
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


def test_shares_of_the_buckets_add_up_to_the_whole() -> None:
    found = shares({"training": 3_000_000_000, "repair": 1_000_000_000})

    assert found == {"training": (3.0, 0.75), "repair": (1.0, 0.25)}
    assert shares({"training": 0}) == {"training": (0.0, 0.0)}
