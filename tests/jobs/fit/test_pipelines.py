"""Ordinary scripts on pipelines: a death and a relaunch within an epoch change no byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.testing import JobRequest, JobRun, run_job, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts" / "pipelines"
OPTIONS = ("--threads", "1", "--save-every", "3", "--heartbeat-timeout", "30")
SCRIPTS_OF = (
    "from_slices",
    "from_dataset",
    "from_py_dataset",
    "from_generator",
    "from_one_generator",
)
FAULTS = ("kill worker=0 step=2", "kill worker=1 step=8", "kill worker=2 step=8")
"""The first reader dies within the first epoch, and all others within the second."""


def check_struck(
    name: str, tmp_path: Path, workers: int, faults: Sequence[str]
) -> tuple[JobRun, JobRun]:
    """Return one worker's job and that of some, with a death a fault; their bytes are the same."""
    alone, struck = (
        run_job(
            SCRIPTS / f"{name}.py",
            run_dir=tmp_path / f"{count} workers",
            workers=count,
            microbatches=workers,
            options=OPTIONS,
            faults=of_run,
        )
        for count, of_run in ((1, ()), (workers, faults))
    )

    assert (alone.exit_code, struck.exit_code) == (0, 0), struck.stderr
    assert struck.sha256 == alone.sha256
    assert len(struck.events("failure")) == len(faults)
    return alone, struck


@pytest.mark.extended
@pytest.mark.parametrize("name", SCRIPTS_OF)
def test_death_and_relaunch_within_an_epoch_change_no_byte(name: str, tmp_path: Path) -> None:
    """Below, the readers of a file die."""
    alone, struck = check_struck(name, tmp_path, 3, FAULTS)

    history = next(line for line in alone.stdout.splitlines() if '"loss"' in line)
    assert history[history.index("{") :] in struck.stdout


def test_death_changes_no_byte_where_each_worker_makes_its_own_rows(tmp_path: Path) -> None:
    """The survivor makes the rows of both from the batch in hand on, within an epoch."""
    check_struck("from_slices", tmp_path, 2, ["kill worker=0 step=7"])


@pytest.mark.extended  # test_directories.py has who fills a cache, the test above the deaths
def test_cache_in_a_file_is_filled_through_deaths_of_its_readers(tmp_path: Path) -> None:
    """The first reader dies within the pass that fills it, the second one in the next pass."""
    request = JobRequest(
        script=SCRIPTS / "from_cache.py",
        run_dir="run",
        workers=2,
        microbatches=2,
        options=["--threads", "1", "--regrow", "never"],
        faults=["kill worker=0 step=3", "kill worker=1 step=12"],
        directory=tmp_path,
    )
    with start_job(request) as running:
        job = running.wait()

    assert job.exit_code == 0, job.stderr
    assert "losses [4.2013, 4.1896]" in job.stdout.splitlines()
    assert [len(job.events("failure")), len(job.report.relaunches)] == [2, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (tmp_path / "run" / ".private").exists()
