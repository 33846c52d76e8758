"""Whole training loops on a pipeline that one worker reads, under deaths of readers and peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation import FEATURES, KILL, Ending, Launch, SimulatedJob, wait_for_nothing

from holdfast.recovery.fault import Fault, Site
from holdfast.recovery.world import WorkerId
from holdfast.runtime.data.feed import Feed, FeedTerms
from holdfast.runtime.data.source import forward
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.run.numerics import Numerics

pytestmark = pytest.mark.usefixtures("one_core")

SIZES, EPOCHS = (9, 4, 10), 2
STEPS = EPOCHS * len(SIZES)


class Drawn:
    """Batches of several sizes, drawn from a seed of their pass, and from ``also``."""

    name, advice, is_endless = "the test's pipeline", "leave it alone", False
    repeats = False
    batches: int | None = len(SIZES)

    def __init__(self, also: int = 0) -> None:
        self._also = also

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        return 0, self._pass(number)

    def leave(self, number: int, start: int) -> None: ...

    def array(self, leaf: Any) -> Any:
        return np.asarray(leaf)

    def _pass(self, number: int) -> Iterator[Any]:
        dice = np.random.default_rng([number, self._also])
        for size in SIZES:
            x = dice.normal(size=(size, FEATURES)).astype(np.float32)
            yield x, x.sum(axis=1).astype(np.float32)


def by_passes() -> tuple[Feed, Feed]:
    terms = FeedTerms(len(SIZES), is_validation=True)
    return Feed(Drawn(), FeedTerms(len(SIZES))), Feed(Drawn(), terms)


def only_read_on() -> tuple[Feed, Feed]:
    terms = FeedTerms(len(SIZES), is_validation=True)
    return Feed(forward(Drawn()), FeedTerms(len(SIZES))), Feed(forward(Drawn()), terms)


@pytest.fixture(scope="module")
def numerics() -> Numerics:
    return Numerics.here(threads=1)


@pytest.fixture(autouse=True)
def _waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_nothing(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, numerics: Numerics) -> Ending:
    with pytest.MonkeyPatch.context() as patch:
        wait_for_nothing(patch)
        job = SimulatedJob(tmp_path_factory.mktemp("one") / "run", numerics, by_passes)
        (ending,) = job.launch(Launch(1, 1, 5))
    assert ending is not None
    assert (ending.step, ending.is_complete) == (STEPS, True)
    return ending


@pytest.mark.parametrize("supply", [by_passes, only_read_on])
@pytest.mark.parametrize("workers", [2, 5])
def test_number_of_workers_changes_no_bit(
    tmp_path: Path, numerics: Numerics, undisturbed: Ending, workers: int, supply: Any
) -> None:
    job = SimulatedJob(tmp_path / "run", numerics, supply)

    assert job.launch(Launch(workers, workers, 5, seed=workers)) == [undisturbed] * workers


@pytest.mark.parametrize("supply", [by_passes, only_read_on])
@pytest.mark.parametrize("site", [Site.COMPUTE, Site.REDUCE, Site.APPLY, Site.SAVE])
def test_death_of_the_reader_at_each_step_changes_no_bit(
    tmp_path: Path, numerics: Numerics, undisturbed: Ending, site: Site, supply: Any
) -> None:
    for step in range(1, STEPS + 1):
        job = SimulatedJob(tmp_path / f"step-{step}", numerics, supply)
        faults = (Fault(KILL, WorkerId(0), step, site),)

        endings = job.launch(Launch(3, 3, 5, seed=step, faults=faults))

        alive = [ending for ending in endings if ending is not None]
        assert len(alive) >= 2
        assert alive == [undisturbed] * len(alive)


@pytest.mark.parametrize("supply", [by_passes, only_read_on])
def test_deaths_at_any_moment_and_a_relaunch_change_no_bit(
    tmp_path: Path, numerics: Numerics, undisturbed: Ending, supply: Any
) -> None:
    """The moments are those of the fake communicator: within a broadcast, a vote, a repair."""
    for seed in range(24):
        print("seed", seed)
        job = SimulatedJob(tmp_path / f"seed-{seed}", numerics, supply)
        dice = np.random.default_rng(seed)
        deaths = {rank: int(dice.integers(10, 260)) for rank in range(int(dice.integers(1, 4)))}
        endings = job.launch(Launch(3, 3, 5, seed=seed, deaths=deaths))
        alive = [ending for ending in endings if ending is not None]
        if not alive:
            alive = [end for end in job.launch(Launch(2, 2, 5, seed=seed)) if end is not None]
        assert alive == [undisturbed] * len(alive)
        assert alive


def test_relaunch_on_a_pipeline_that_has_changed_is_refused(
    tmp_path: Path, numerics: Numerics
) -> None:
    def changed() -> tuple[Feed, None]:
        return Feed(Drawn(also=1), FeedTerms(len(SIZES))), None

    def as_it_was() -> tuple[Feed, None]:
        return Feed(Drawn(), FeedTerms(len(SIZES))), None

    faults = tuple(Fault(KILL, WorkerId(worker), 6, Site.COMPUTE) for worker in (0, 1))
    job = SimulatedJob(tmp_path / "run", numerics, as_it_was)
    job.launch(Launch(2, 2, 5, seed=2, faults=faults, save_every=1))
    newest = job.journal("checkpoint")[-1]["step"]
    assert newest % len(SIZES)  # in the middle of a pass

    with pytest.raises(ProgramError, match=r"other samples when it was read again, .* of pass"):
        SimulatedJob(tmp_path / "run", numerics, changed).launch(Launch(1, 1, 5))
