"""Numerics that differ are told once, and refused by a job that is strict about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from configs import without_faults, worker_config
from fake_communicator import FakeCommunicator, run_world

from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.errors import UsageError
from holdfast.runtime.exchange.communicator import Communicator, LocalCommunicator
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.run.journal import Journal, read_journal
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.training.consistency import check_peers, check_resumed
from holdfast.runtime.worker.context import WorkerContext

LAUNCHED = (4, 5, 6, 7)
ALIVE = tuple(map(WorkerId, (4, 6, 7)))
"""Those that are left when a script trains for the second time."""
ONE = dataclasses.replace(Numerics.here(threads=1), instruction_set="AVX2")
OTHER = dataclasses.replace(ONE, instruction_set="AVX512_CORE", threads=2)
DIFFERENCES = "threads is 2, but {0} 1; instruction set is AVX512_CORE, but {0} AVX2"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.jsonl", run_id="run", source="test")
    yield journal
    journal.close()


class Job:
    """Workers that compare their numerics, and what they say."""

    def __init__(self, journal: Journal, *, is_strict: bool) -> None:
        self._journal = journal
        self._is_strict = is_strict
        self.said: list[str] = []

    def context(self, communicator: Communicator) -> WorkerContext:
        nothing: Any = None
        me, run_dir = ALIVE[communicator.rank], Path("/run")
        config = worker_config(me, LAUNCHED, run_dir=run_dir, strict=self._is_strict)
        return WorkerContext(
            config, communicator, self._journal, nothing, without_faults(config), self._hear
        )

    def compare(self, everyones: list[Numerics]) -> list[str | None]:
        """Return how the comparison ends for each worker."""

        def program(communicator: FakeCommunicator) -> str:
            rank, context = communicator.rank, self.context(communicator)
            world = World(2, ALIVE, len(ALIVE))
            membership = Membership(ALIVE[rank], world, communicator, clock=lambda: 0.0)
            ending = self._ending(lambda: check_peers(context, membership, everyones[rank]))
            communicator.leave()
            return ending

        return run_world(len(everyones), program)

    def resume(self, before: Numerics, now: Numerics) -> str:
        context = self.context(LocalCommunicator())
        return self._ending(lambda: check_resumed(context, before, now))

    def _ending(self, check: Callable[[], None]) -> str:
        try:
            check()
        except UsageError as error:
            return str(error)
        return "well"

    def _hear(self, report: dict[str, object]) -> None:
        self.said.append(str(report["text"]))


@pytest.fixture
def easy(journal: Journal) -> Job:
    return Job(journal, is_strict=False)


@pytest.fixture
def strict(journal: Journal) -> Job:
    return Job(journal, is_strict=True)


def recorded(folder: Path) -> list[list[str]]:
    records = read_journal(folder / "journal.jsonl")
    return [found["differences"] for found in records if found["event"] == "numerics_differ"]


@pytest.mark.usefixtures("one_core")
def test_equal_workers_say_nothing(strict: Job, tmp_path: Path) -> None:
    assert strict.compare([ONE] * 3) == ["well"] * 3

    assert (strict.said, recorded(tmp_path)) == ([], [])


@pytest.mark.usefixtures("one_core")
def test_worker_that_differs_is_named_beside_the_first_one(easy: Job, tmp_path: Path) -> None:
    assert easy.compare([ONE, ONE, OTHER]) == ["well"] * 3

    (said,) = set(easy.said)
    differences = DIFFERENCES.format("worker 4 has")
    assert said == (
        f"worker 7 has other numerics than worker 4: {differences}: its bytes may differ"
    )
    assert differences.split("; ") in recorded(tmp_path)


@pytest.mark.usefixtures("one_core")
def test_strict_job_is_refused_by_all_workers_alike(strict: Job) -> None:
    (first, *others) = strict.compare([ONE, OTHER, ONE])

    assert first is not None
    assert first.startswith("worker 6 has other numerics than worker 4: threads is 2, but")
    assert first.endswith("; make them the same, or run without --strict")
    assert others == [first] * 2
    assert strict.said == []


def test_run_that_goes_on_elsewhere_is_told_what_changed(easy: Job, tmp_path: Path) -> None:
    assert easy.resume(ONE, OTHER) == "well"

    differences = DIFFERENCES.format("the checkpoint was made with")
    assert easy.said == [
        f"the numerics of the run in /run have changed: {differences}: its bytes may differ"
    ]
    assert recorded(tmp_path) == [differences.split("; ")]


def test_run_that_goes_on_as_it_was_says_nothing(strict: Job, tmp_path: Path) -> None:
    assert strict.resume(ONE, ONE) == "well"

    assert (strict.said, recorded(tmp_path)) == ([], [])


def test_strict_run_does_not_go_on_elsewhere(strict: Job) -> None:
    ending = strict.resume(ONE, OTHER)

    assert ending.startswith("the numerics of the run in /run have changed: threads is 2, but the")
    assert ending.endswith("; make them the same, or run without --strict")
