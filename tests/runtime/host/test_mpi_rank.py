"""A rank of a trial dies where the trial wants it, and tells what it saw; its world is a fake."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fake_communicator import FakeCommunicator, run_world

from holdfast.runtime.exchange.membership import Buffer, WorldBroken
from holdfast.runtime.host import mpi_rank as rank_file
from holdfast.runtime.host.mpi_rank import STEPS, WrongResult, _Player
from holdfast.runtime.host.mpi_trial import (
    Death,
    RankReport,
    Trial,
    Where,
    _read_reports,
    judge,
)

pytestmark = pytest.mark.usefixtures("one_core")

PAIR = Trial("two ranks", 2, elements=3)
ALONE = Trial("one rank", 1, elements=3)
FIRST, LATE = Death(1, Where.EXCHANGE), Where.REPAIR
AT_ONCE = (Where.EXCHANGE, Where.VOTE, Where.CLOCK)
WORLDS = (
    PAIR,
    Trial("one of two", 2, (FIRST,), elements=3),
    *(Trial(f"in {where.value}", 4, (Death(0, where),), elements=3) for where in AT_ONCE),
    *(Trial("revokes inside Shrink", ranks, elements=3, revokes=3) for ranks in (3, 6)),
    Trial("two votes", 4, (Death(0, Where.VOTE), Death(2, Where.VOTE)), elements=3),
    Trial("all but one", 4, tuple(Death(rank, Where.EXCHANGE) for rank in (0, 2, 3)), elements=3),
    Trial("after the revoke", 5, (FIRST, Death(3, Where.REVOKED)), elements=3),
    Trial("by the clock", 6, tuple(Death(rank, Where.CLOCK) for rank in (5, 0, 3)), elements=3),
    Trial("inside Shrink", 6, (FIRST, Death(4, LATE), Death(2, LATE)), elements=3),
)
"""In a fake world the length of a vector does not matter."""


class Clock:
    """A timer whose moment comes at once, or never."""

    delays: ClassVar[list[float]] = []
    is_fast: ClassVar[bool] = True

    def __init__(self, delay_s: float, die: Callable[..., None], arguments: tuple[int]) -> None:
        self._strike = lambda: die(*arguments)
        Clock.delays.append(delay_s)

    def start(self) -> None:
        if Clock.is_fast:
            self._strike()


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> dict[int, FakeCommunicator]:
    """The members of a world, by rank, whose deaths end them."""
    found: dict[int, FakeCommunicator] = {}
    monkeypatch.setattr(rank_file, "_die", lambda rank: found[rank].die())
    monkeypatch.setattr(rank_file, "threading", SimpleNamespace(Timer=Clock))
    monkeypatch.setattr(Clock, "delays", [])
    return found


def _reports(
    trial: Trial,
    members: dict[int, FakeCommunicator],
    *,
    seed: int = 0,
    deaths: Mapping[int, int] | None = None,
) -> dict[int, RankReport]:
    """Play all ranks of a trial; return the reports of those that came to the end."""

    def play(member: FakeCommunicator) -> RankReport:
        members[member.rank] = member
        report = RankReport()
        player = _Player(trial, member.rank, member)
        player.play(report)
        player.leave()
        return report

    ended = run_world(trial.ranks, play, seed=seed, deaths=deaths)
    return {rank: report for rank, report in enumerate(ended) if report is not None}


@pytest.mark.parametrize("trial", WORLDS, ids=lambda trial: trial.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_survivors_of_a_trial_go_on_together(
    members: dict[int, FakeCommunicator], trial: Trial, seed: int
) -> None:
    reports = _reports(trial, members, seed=seed)

    assert judge(trial, reports, "").has_passed
    together = RankReport(tuple(sorted(trial.survivors)), STEPS)
    assert reports == dict.fromkeys(trial.survivors, together)


def test_trial_goes_on_until_a_late_death_has_come(
    members: dict[int, FakeCommunicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the end of a trial could overtake the death that it is about."""
    monkeypatch.setattr(Clock, "is_fast", False)
    late = dataclasses.replace(PAIR, deaths=(Death(1, Where.CLOCK),))

    reports = _reports(late, members, deaths={1: 200})

    assert reports.keys() == {0}
    assert reports[0].world == (0,)
    assert reports[0].steps > STEPS


@pytest.mark.parametrize(
    ("places", "total"), [(slice(None), "2.0"), (slice(2, None), "nan")], ids=["all", "a part"]
)
def test_wrong_sum_is_told_although_every_exchange_succeeds(
    members: dict[int, FakeCommunicator],
    monkeypatch: pytest.MonkeyPatch,
    places: slice,
    total: str,
) -> None:
    take = FakeCommunicator.take

    def take_wrongly(self: FakeCommunicator, peer: int, tag: object, place: int) -> Buffer:
        content = take(self, peer, tag, place).copy()
        if content.dtype == float:
            content[places] += 1
        return content

    monkeypatch.setattr(FakeCommunicator, "take", take_wrongly)

    with pytest.raises(WrongResult, match=f"^step 0 had the sum {total}, and 1 is right$"):
        _reports(PAIR, members)


def test_repairs_that_never_succeed_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def shrink(self: FakeCommunicator) -> FakeCommunicator:
        tries.append(self.rank)
        raise WorldBroken("no Shrink")

    monkeypatch.setattr(FakeCommunicator, "shrink", shrink)

    with pytest.raises(RuntimeError, match=r"^32 repairs in a row have failed$"):
        run_world(1, lambda member: _Player(ALONE, member.rank, member)._repair(0, 30))
    assert len(tries) == 2


class Mpi:
    """What a rank finds when it loads MPI: a world, or an error in its place."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.world: object = None
        loaded: Any = SimpleNamespace(join_world=self._join)
        name = "holdfast.runtime.exchange.mpi_communicator"
        monkeypatch.setitem(sys.modules, name, loaded)
        monkeypatch.setattr(rank_file, "_library", lambda: "Open MPI v5.0.9")

    def _join(self, *, shrinkable: bool) -> object:
        assert shrinkable
        if isinstance(self.world, BaseException):
            raise self.world
        return self.world

    def play(self, trial: Trial, world: object) -> None:
        self.world = world
        rank_file._play(self.directory, trial)


@pytest.fixture
def mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mpi:
    return Mpi(tmp_path, monkeypatch)


def test_report_of_a_rank_is_the_only_file_and_the_trial_reads_it(mpi: Mpi) -> None:
    run_world(1, lambda member: mpi.play(ALONE, member))

    assert [path.name for path in mpi.directory.iterdir()] == ["rank-0.json"]
    reports = _read_reports(mpi.directory)
    assert reports == {0: RankReport((0,), STEPS)}


def test_rank_in_a_world_of_another_size_names_the_mpi_that_it_has_loaded(mpi: Mpi) -> None:
    """Each rank is rank 0 of a world of its own, so its process id tells it from others."""
    run_world(1, lambda member: mpi.play(PAIR, member))

    reports = _read_reports(mpi.directory)
    words = "mpi4py uses Open MPI v5.0.9, which is not the MPI of this mpiexec"
    assert reports == {-os.getpid(): RankReport(failure=words)}
    assert judge(PAIR, reports, "").failure == words


@pytest.mark.parametrize(
    ("error", "failure", "wrong"),
    [
        (RuntimeError("cannot load\nlibmpi.so"), "RuntimeError: cannot load libmpi.so", ""),
        (SystemExit(3), "SystemExit: 3", ""),
        (WrongResult("a sum"), "", "a sum"),
    ],
    ids=["error", "exit", "wrong result"],
)
def test_report_is_written_whatever_mpi_does(
    mpi: Mpi, error: BaseException, failure: str, wrong: str
) -> None:
    mpi.play(PAIR, error)

    reports = _read_reports(mpi.directory)
    (report,) = reports.values()
    assert (report.wrong, report.failure) == (wrong, failure)
