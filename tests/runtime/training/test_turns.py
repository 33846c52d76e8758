"""Updates in two turns under deaths: the run ends with the bytes of the undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation import KILL, STEPS, Ending, Launch, SimulatedJob, TurningReplica, wait_for_nothing

from holdfast.recovery.fault import Fault, Site
from holdfast.recovery.world import WorkerId
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.system.heartbeat import RequestFlag

pytestmark = pytest.mark.usefixtures("one_core")


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
        job = SimulatedJob(tmp_path_factory.mktemp("one") / "run", numerics)
        (ending,) = job.launch(Launch(1, 1, 5, replica=TurningReplica))
    assert ending is not None
    assert (ending.step, ending.is_complete) == (STEPS, True)
    return ending


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_number_of_workers_changes_no_bit(
    tmp_path: Path, numerics: Numerics, undisturbed: Ending, workers: int
) -> None:
    job = SimulatedJob(tmp_path / "run", numerics)

    endings = job.launch(Launch(workers, workers, 5, seed=workers, replica=TurningReplica))

    assert endings == [undisturbed] * workers
    assert [record["step"] for record in job.journal("epoch")] == [STEPS // 2, STEPS]


@pytest.mark.parametrize("moment", range(20, 220, 9))
def test_death_at_any_moment(
    tmp_path: Path, numerics: Numerics, undisturbed: Ending, moment: int
) -> None:
    """Also between two turns: a worker that lacks the first one gets it from another."""
    job = SimulatedJob(tmp_path / "run", numerics)
    terms = Launch(3, 3, 5, seed=moment, deaths={moment % 3: moment}, replica=TurningReplica)

    alive = [ending for ending in job.launch(terms) if ending is not None]

    assert alive
    assert alive == [undisturbed] * len(alive)


def test_resume_goes_on_from_a_whole_step(
    tmp_path: Path, numerics: Numerics, undisturbed: Ending
) -> None:
    job = SimulatedJob(tmp_path / "run", numerics)
    faults = tuple(Fault(KILL, WorkerId(worker), 4, Site.REDUCE) for worker in range(2))

    assert job.launch(Launch(2, 2, 5, faults=faults, replica=TurningReplica)) == [None, None]
    endings = job.launch(Launch(3, 3, 5, seed=1, replica=TurningReplica))

    assert endings == [undisturbed] * 3


def test_stop_comes_between_two_steps(
    tmp_path: Path, numerics: Numerics, undisturbed: Ending
) -> None:
    job = SimulatedJob(tmp_path / "run", numerics)
    asked = Launch(2, 2, 5, asks=RequestFlag.STOP, asks_at_step=3, replica=TurningReplica)

    stopped = job.launch(asked)
    endings = job.launch(Launch(2, 2, 5, seed=1, replica=TurningReplica))

    assert all(ending is not None and not ending.is_complete for ending in stopped)
    assert endings == [undisturbed] * 2
