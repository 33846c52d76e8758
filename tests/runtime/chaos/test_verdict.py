"""A run is bad as soon as one thing that must hold does not."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.runtime.chaos.followed_run import FollowedRun
from holdfast.runtime.chaos.strike import parse_strike
from holdfast.runtime.chaos.striker import Struck
from holdfast.runtime.chaos.verdict import judge, percentile
from holdfast.runtime.run.journal import Record


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
