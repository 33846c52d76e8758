"""States that are large for their host: a tensor of 2.5 GiB, little memory, many tensors."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from cgroups import enter, memory_cgroup
from extended import extended
from workload import EVEN, PreparedJob, request_of, run_job

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]

WEIGHTY = Path(__file__).parents[1] / "scripts" / "disks" / "weighty.py"
MIB = 1 << 20


def weigh(
    run_dir: Path,
    *,
    argv: list[str],
    workers: int = 2,
    faults: tuple[str, ...] = (),
    preparation: str = "",
) -> JobRun:
    """Train workers whose state has the ballast that ``argv`` asks for."""
    options = ["--stall-timeout", "0"]
    request = request_of(EVEN, run_dir, workers=workers, faults=faults, options=options)
    fields = asdict(request) | {"script": WEIGHTY, "argv": [*EVEN.argv, *argv]}
    return run_job(PreparedJob(**fields, preparation=preparation), timeout_s=500.0)


def assert_saved(job: JobRun, run_dir: Path) -> None:
    assert job.exit_code == 0, job.stderr
    assert job.leftovers == ()
    store = CheckpointStore(run_dir)
    assert store.steps()[0] == EVEN.steps
    assert verify_step(store, EVEN.steps).reason is None


def ballast_of(mib: int) -> list[str]:
    return ["--state-mib", str(mib)]


@pytest.mark.extended  # test_save_memory.py has the buffers
@pytest.mark.parametrize(
    ("limit_mib", "words"),
    [
        pytest.param(650, "one save waits for the end of the one before", id="one buffer"),
        extended(
            450,
            "training waits while the first worker writes a checkpoint from its own memory",
            id="no buffer",
        ),
    ],
)
def test_job_whose_snapshots_do_not_fit_saves_all_the_same(
    tmp_path: Path, limit_mib: int, words: str
) -> None:
    """One worker, because two need more for their first broadcast than for snapshots."""
    ballast = ballast_of(200)
    with memory_cgroup(limit_mib * MIB) as group:
        job = weigh(tmp_path / "run", argv=ballast, workers=1, preparation=enter(group))

    assert_saved(job, tmp_path / "run")
    (told,) = [line for line in job.stderr.splitlines() if "do not fit" in line]
    assert words in told
    assert re.search(rf"two snapshots of 200 MiB do not fit: the cgroup {group} has \d+ MiB", told)
    assert not job.report.failures
    assert job.sha256 == weigh(tmp_path / "free", argv=ballast).sha256


@pytest.mark.extended
def test_tensor_of_more_than_2_gib_goes_through_a_death_and_a_relaunch(tmp_path: Path) -> None:
    """The bounds of messages are those of tests/runtime/exchange/test_communicator.py."""
    faults = ("kill worker=1 step=4", "kill worker=0 step=8", "kill worker=1 step=8")
    ballast = ballast_of(2560)

    struck = weigh(tmp_path / "struck", argv=ballast, faults=faults)

    assert_saved(struck, tmp_path / "struck")
    assert struck.report.relaunches
    assert struck.sha256 == weigh(tmp_path / "calm", argv=ballast).sha256


@pytest.mark.extended
def test_200_000_tensors_are_saved_and_restored(tmp_path: Path) -> None:
    """Plan, cursor and manifest are larger than a message may be."""
    faults = tuple(f"kill worker={worker} step=8" for worker in range(2))

    job = weigh(tmp_path / "run", argv=["--tensors", "200000"], faults=faults)

    assert_saved(job, tmp_path / "run")
    assert [record["step"] for record in job.events("restored")] == [5]
