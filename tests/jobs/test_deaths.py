"""Workers die in every way at every site, and the bytes are those of the undisturbed run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from extended import extended, shortened
from workload import (
    EVEN,
    LONG,
    SLICED,
    UNEVEN,
    Undisturbed,
    Workload,
    assert_struck,
    assert_whole,
    request_of,
)

from holdfast.testing import JobRun, start_job

pytestmark = pytest.mark.mpi

SHORT_SILENCE = ("--heartbeat-timeout", "5")
"""As short as a worker that gets little of a busy machine can keep."""
BEFORE_FIRST_SAVE = "step=3 site=compute", "step=3 site=repair", "step=4 site=vote"
AROUND_FIRST_SAVE = "step=3 site=reduce", "step=4 site=apply", "step=5 site=save"


def _train(
    workload: Workload,
    run_dir: Path,
    faults: Sequence[str],
    workers: int = 4,
    options: Sequence[str] = (),
) -> JobRun:
    request = request_of(workload, run_dir, workers=workers, faults=faults, options=options)
    with start_job(request) as running:
        return running.wait()


@pytest.mark.parametrize("first", shortened(range(4), here=[0]))
@pytest.mark.parametrize("addresses", [BEFORE_FIRST_SAVE, AROUND_FIRST_SAVE], ids=["early", "save"])
def test_each_worker_is_killed_at_each_site(
    tmp_path: Path, undisturbed: Undisturbed, addresses: Sequence[str], first: int
) -> None:
    """Three victims a job; over the four jobs of a kind each worker dies at each address."""
    faults = [
        f"kill worker={(first + index) % 4} {address}" for index, address in enumerate(addresses)
    ]

    job = _train(UNEVEN, tmp_path, faults)

    assert_whole(job, UNEVEN, undisturbed(UNEVEN))
    assert_struck(job, faults)
    assert job.report.relaunches == ()


# The other kinds strike in other tests here.
@pytest.mark.parametrize("kind", shortened(["exit", "raise", "segfault"], here=["raise"]))
def test_every_kind_of_death_is_one_to_the_survivors(
    tmp_path: Path, undisturbed: Undisturbed, kind: str
) -> None:
    faults = [f"{kind} worker={index} {address}" for index, address in enumerate(AROUND_FIRST_SAVE)]

    job = _train(EVEN, tmp_path, faults)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert_struck(job, faults)
    assert job.report.relaunches == ()


STANDING = {
    "early": (BEFORE_FIRST_SAVE, ("stop", "gil", "stop")),
    "save": (AROUND_FIRST_SAVE, ("gil", "stop", "gil")),
    "early-stop": (BEFORE_FIRST_SAVE, ("stop",) * 3),
    "early-gil": (BEFORE_FIRST_SAVE, ("gil",) * 3),
    "save-stop": (AROUND_FIRST_SAVE, ("stop",) * 3),
    "save-gil": (AROUND_FIRST_SAVE, ("gil",) * 3),
}
"""Both kinds in one job; the extended cases have each kind at each address.

A worker stands still in a save in test_lease.py, too.
"""


@pytest.mark.parametrize("case", shortened(STANDING, here=["early"]))
def test_workers_that_stand_still_are_fenced(
    tmp_path: Path, undisturbed: Undisturbed, case: str
) -> None:
    victims = enumerate(zip(*STANDING[case], strict=True))
    faults = [f"{kind} worker={worker} {address}" for worker, (address, kind) in victims]

    job = _train(EVEN, tmp_path, faults, options=SHORT_SILENCE)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert_struck(job, faults)
    assert all(failure.fenced for failure in job.report.failures)
    assert job.report.relaunches == ()


@dataclass(frozen=True)
class Together:
    """Deaths that meet each other, or a moment of their own; ``survivors`` are the last ones."""

    name: str
    faults: Sequence[str]
    workload: Workload
    workers: int = 4
    survivors: tuple[int, ...] | None = None
    options: Sequence[str] = ()


_REDUCE = "step=3 site=reduce"
TOGETHER = (
    Together(
        "while slices are in the air",
        [
            *(f"kill worker=0 {_REDUCE}", f"exit worker=3 {_REDUCE} attempt=2"),
            "segfault worker=2 step=6 site=reduce",
        ],
        SLICED,
    ),
    # Open MPI's Allgatherv tells the survivors of success then, and has received nothing.
    Together(
        "while validation sums are gathered",
        ["kill worker=5 step=7 attempt=2", "kill worker=4 step=14 attempt=2"],
        SLICED,
        workers=6,
    ),
    Together(
        "two at once", ["kill worker=1 step=6", "kill worker=2 step=6"], UNEVEN, survivors=(0, 3)
    ),
    Together(
        "during a repair",
        [
            *("kill worker=1 step=6 site=vote", "kill worker=2 step=6 site=repair"),
            "raise worker=0 step=6 site=repair",
        ],
        UNEVEN,
        survivors=(3,),
    ),
    Together(
        "during the final checkpoint",
        [f"kill worker=0 step={EVEN.steps} site=save", f"exit worker=2 step={EVEN.steps}"],
        EVEN,
    ),
)
MANY = Together(
    "32 workers in threes",
    [
        f"kill worker={worker} step={step}"
        for step, workers in {3: (0, 7, 31), 7: (1, 2, 16), 11: (5, 20, 30)}.items()
        for worker in workers
    ],
    Workload(microbatches=40, samples=640, global_batch=80, epochs=2),
    workers=32,
    options=("--heartbeat-timeout", "30"),  # two cores for all of them
)


@pytest.mark.parametrize("case", [*TOGETHER, extended(MANY)], ids=lambda case: case.name)
def test_workers_die_together(tmp_path: Path, undisturbed: Undisturbed, case: Together) -> None:
    job = _train(case.workload, tmp_path, case.faults, case.workers, case.options)

    assert_whole(job, case.workload, undisturbed(case.workload))
    assert_struck(job, case.faults)
    assert job.report.checkpoints[-1].step == case.workload.steps
    if case.survivors is not None:
        assert job.report.recoveries[-1].survivors == case.survivors


@pytest.mark.extended  # ci/campaign.py
def test_random_faults_strike_in_all_launches_and_change_no_byte(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Two kills, a stop and a kill: all workers of the first launch, and more of the second."""
    faults = [f"random seed=395 count=4 steps={LONG.steps}"]

    job = _train(LONG, tmp_path, faults, workers=2, options=SHORT_SILENCE)

    assert_whole(job, LONG, undisturbed(LONG))
    assert [fault.kind for fault in job.report.faults] == ["kill", "kill", "stop", "kill"]
    assert len(job.report.relaunches) in (1, 2)
    assert "struck" not in job.stderr


def test_all_workers_die_and_the_job_is_relaunched_from_its_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The first step of another epoch cannot be reached before the checkpoint is committed."""
    faults = [f"kill worker={worker} step=200" for worker in range(3)]
    workload = Workload(microbatches=7, samples=173, global_batch=25, epochs=40)

    job = _train(workload, tmp_path, faults, workers=3)

    assert_whole(job, workload, undisturbed(workload))
    assert_struck(job, faults)
    assert len(job.report.relaunches) == 1
    assert (job.report.relaunches[0].restored_step or 0) > 0


def test_all_workers_die_before_any_checkpoint_and_the_job_begins_again(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    faults = ["kill worker=0 step=1", "exit worker=1 step=1"]

    job = _train(EVEN, tmp_path, faults, workers=2)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert_struck(job, faults)
    assert job.report.relaunches[0].restored_step is None
