"""A job and its twin: what each of them is asked for, and what is told of both."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.run.journal import Record
from holdfast.runtime.tools import verdict as verdict_module
from holdfast.runtime.tools.followed_run import FollowedRun, RunTerms
from holdfast.runtime.tools.strike import (
    DEFAULT_BLOWS,
    Agenda,
    Progress,
    Target,
    parse_blows,
    parse_plan,
    strikes_by_count,
    strikes_by_mtbf,
)
from holdfast.runtime.tools.striker import SHARED_MEMORY, Struck
from holdfast.runtime.tools.verdict import ChaosTerms, run_chaos

RECORDS: tuple[Record, ...] = (
    {"event": "job_started", "now": 0.5},
    {"event": "launch", "now": 0.5},
    {"event": "step", "now": 2.0, "seconds": 1.0, "step": 6, "samples": 40, "generation": 1},
    {"event": "completed", "now": 2.5, "step": 6, "sha256": "aa"},
)
TWIN = FollowedRun((0,), 0.0, 3.0, RECORDS, (), ())
FULL_DISK = parse_plan("kill agent at step 2\nfull disk at step 3")


def _terms(out: Path, **changes: Any) -> ChaosTerms:
    terms = ChaosTerms(
        arguments=("-n", "2", "train.py"),
        out=out,
        seed=7,
        blows=DEFAULT_BLOWS,
        count=3,
        hang_after_s=60.0,
        disk_mb=16,
        shm_mb=32,
    )
    return dataclasses.replace(terms, **changes)


class Runs:
    """Stands in for both runs: notes what they were asked for, and writes a journal."""

    def __init__(self, *outcomes: FollowedRun) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[RunTerms, Agenda]] = []
        self.places: list[set[Target]] = []

    def follow(
        self, terms: RunTerms, agenda: Agenda, places: Mapping[Target, object] | None = None
    ) -> FollowedRun:
        self.asked.append((terms, agenda))
        self.places.append(set(places or {}))
        terms.folder.mkdir(parents=True, exist_ok=True)
        terms.run_dir.mkdir(parents=True)
        (terms.run_dir / "journal.jsonl").write_text("records")
        return self.outcomes.pop(0)


class FakePlace:
    """A place that is mounted nowhere."""

    mounted: dict[Path, int]

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        FakePlace.mounted[path] = megabytes

    def __enter__(self) -> FakePlace:
        return self

    def __exit__(self, *_error: object) -> None:
        del FakePlace.mounted[self.path]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs(TWIN, TWIN)
    monkeypatch.setattr(verdict_module, "follow_run", found.follow)
    monkeypatch.setattr(FakePlace, "mounted", {}, raising=False)
    monkeypatch.setattr(verdict_module, "FullPlace", FakePlace)
    return found


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({}, ()),
        ({"blows": parse_blows("full")}, (Target.DISK, Target.SHM)),
        ({"strikes": FULL_DISK}, (Target.DISK,)),
        ({"strikes": FULL_DISK[:1], "blows": parse_blows("full")}, ()),
    ],
    ids=["defaults", "kinds", "plan", "plan before kinds"],
)
def test_place_that_may_be_full_is_mounted(
    changes: dict[str, Any], places: tuple[Target, ...]
) -> None:
    assert _terms(Path("/out"), **changes).mounted == places


def test_strikes_that_need_a_mount_can_be_left_out() -> None:
    terms = _terms(Path("/out"), blows=parse_blows("kill agent, full"), strikes=FULL_DISK)

    left = terms.without_places()

    assert left.strikes == FULL_DISK[:1]
    assert left.blows == parse_blows("kill agent, full stderr")
    assert left.mounted == ()


@pytest.mark.parametrize(
    "changes", [{"strikes": FULL_DISK[1:]}, {"blows": parse_blows("full disk")}], ids=str
)
def test_terms_with_nothing_else_to_strike_with_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="nothing is left to strike with; name other --kinds"):
        _terms(Path("/out"), **changes).without_places()


def test_plan_is_taken_before_a_seed_and_gaps_before_a_count() -> None:
    by_count = strikes_by_count(7, 3, 100, DEFAULT_BLOWS)
    first_by_gaps = next(strikes_by_mtbf(7, 9.0, DEFAULT_BLOWS))

    assert _terms(Path("/out"), strikes=FULL_DISK, mtbf_s=9.0).agenda(100).unstruck() == list(
        FULL_DISK
    )
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
    assert agenda.unstruck() == list(strikes_by_count(7, 3, 6, DEFAULT_BLOWS))
    assert verdict.is_good
    assert "the twin made 6 steps in 3.0 s" in told[1]


def test_report_and_plan_of_what_was_struck_are_written(runs: Runs, tmp_path: Path) -> None:
    plan = parse_plan("kill worker #2 at step 3\nstop+cont agent at 1s for 2s")
    struck = tuple(Struck(strike, 1.0, 0, "77 python3") for strike in reversed(plan))
    runs.outcomes[1] = dataclasses.replace(TWIN, struck=struck)

    run_chaos(_terms(tmp_path / "out", strikes=plan), lambda _: None)

    assert parse_plan((tmp_path / "out" / "plan.txt").read_text()) == plan[::-1]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["good"], report["seed"], report["mtbf_s"]) == (True, 7, None)
    assert report["arguments"] == ["-n", "2", "train.py"]
    assert report["sha256"] == report["twin_sha256"] == "aa"


def test_twin_that_fails_leaves_its_evidence_and_nothing_is_struck(
    runs: Runs, tmp_path: Path
) -> None:
    runs.outcomes[0] = dataclasses.replace(TWIN, failure="it hung", evidence="processes: none")

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


def test_small_disk_carries_the_struck_run_whose_directory_is_kept(
    runs: Runs, tmp_path: Path
) -> None:
    struck = tmp_path / "out" / "struck"

    run_chaos(_terms(tmp_path / "out", strikes=FULL_DISK), lambda _: None)

    (twin, _), (other, _) = runs.asked
    assert (twin.run_dir, other.run_dir) == (tmp_path / "out" / "twin" / "run", struck / "disk/run")
    assert runs.places == [set(), {Target.DISK}]
    assert (struck / "run" / "journal.jsonl").read_text() == "records"
    assert FakePlace.mounted == {}


def test_places_have_the_sizes_that_were_asked_for_until_the_end(
    runs: Runs, tmp_path: Path
) -> None:
    seen: list[dict[Path, int]] = []
    terms = _terms(tmp_path / "out", blows=parse_blows("full disk, full shm"))
    runs.outcomes[0] = dataclasses.replace(TWIN, failure="it hung")

    with pytest.raises(ProgramError):
        run_chaos(terms, lambda _: seen.append(dict(FakePlace.mounted)))

    assert seen == [{tmp_path / "out" / "struck" / "disk": 16, SHARED_MEMORY: 32}]
    assert FakePlace.mounted == {}
