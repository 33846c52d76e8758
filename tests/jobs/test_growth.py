"""A job that has lost workers, or that a user scales, goes on with others that were prepared."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from commands import holdfast_code
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.testing import JobRequest, JobRun, RunningJob, start_job

pytestmark = pytest.mark.mpi

_SLOW = replace(LONG, pause_ms=60)
"""Long enough that another launch pays, on any machine."""


def gated(folder: Path, *gates: int, workers: int, options: tuple[str, ...] = ()) -> JobRequest:
    """Return a job whose workers wait after so many updates of their own."""
    plain = request_of(LONG, folder / "run", workers=workers, options=options)
    return replace(
        plain, argv=[*plain.argv, "--gates", str(folder), "--gate-steps", *map(str, gates)]
    )


def scale(folder: Path, workers: int) -> int:
    return holdfast_code("scale", folder / "run", workers)


def sizes(job: JobRun) -> list[int]:
    return [len(launch["workers"]) for launch in job.events("launch")]


def test_places_of_the_dead_are_filled_again_without_a_charge(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Four workers, then one, then four: nobody asks for it."""
    faults = [f"kill worker={worker} step=12" for worker in (0, 1, 3)]
    options = ["--regrow", "auto", "--max-restarts", "0"]
    request = request_of(_SLOW, tmp_path, workers=4, faults=faults, options=options)

    with start_job(request) as running:
        job = running.wait()

    assert_whole(job, _SLOW, undisturbed(_SLOW))
    assert sizes(job) == [4, 4]
    (growth,) = job.report.relaunches
    (stop,) = job.events("stopped")
    assert growth.is_renewal
    assert growth.restored_step == stop["step"]
    assert "1 of 4 workers are left: stopping with a checkpoint" in job.stderr


def test_user_scales_a_job_up_and_down(
    tmp_path: Path, undisturbed: Undisturbed, capsys: pytest.CaptureFixture[str]
) -> None:
    with start_job(gated(tmp_path, 60, 130, workers=2)) as running:
        running.wait_for("step", step=1)
        assert scale(tmp_path, 8) == 75
        refusal = "each step has 7 microbatches, so more than 7 workers would be idle"
        assert refusal in capsys.readouterr().err
        assert scale(tmp_path, 4) == 0
        running.wait_for("renewing")
        (tmp_path / "60").touch()
        running.wait_for("launch", relaunch=1)
        assert scale(tmp_path, 1) == 0
        running.wait_for("scale_asked", workers=1)
        (tmp_path / "130").touch()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert sizes(job) == [2, 4, 1]


def test_death_of_a_worker_that_is_prepared_costs_the_training_nothing(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with start_job(gated(tmp_path, 3, 60, workers=2)) as running:
        os.kill(prepared(running, tmp_path), signal.SIGKILL)
        running.wait_for("preparation_failed")
        (tmp_path / "3").touch()
        running.wait_for("renewing")
        (tmp_path / "60").touch()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert sizes(job) == [2, 3]
    assert not job.report.failures


def prepared(job: RunningJob, folder: Path) -> int:
    """Scale a job of two workers that trains; return a process of the launch that is prepared."""
    job.wait_for("world")
    assert scale(folder, 3) == 0
    while True:
        found = job.processes()
        assert found, job.stderr
        for pid, name in found.items():
            if name == "holdfast-w2":
                return pid


@pytest.mark.extended  # the tests beside it stop jobs, and drop launches
def test_job_that_stops_leaves_nothing_of_a_launch_that_is_prepared(tmp_path: Path) -> None:
    """No world has saved, so the prepared launch waits."""
    with start_job(gated(tmp_path, 3, workers=2)) as running:
        prepared(running, tmp_path)
        running.signal(signal.SIGTERM)
        (tmp_path / "3").touch()
        job = running.wait()

    assert job.exit_code == 75
    assert sizes(job) == [2]
    assert job.leftovers == ()


@pytest.mark.extended  # heads are killed in tests/jobs/test_attach.py
def test_head_that_takes_over_keeps_the_size_that_was_asked_for(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with start_job(gated(tmp_path, 60, 130, workers=2)) as running:
        running.wait_for("step", step=1)
        assert scale(tmp_path, 4) == 0
        running.wait_for("renewing")
        (tmp_path / "60").touch()
        running.wait_for("checkpoint", generation=3)
        running.signal(signal.SIGKILL, "holdfast-agent")
        (tmp_path / "130").touch()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert sizes(job) == [2, 4, 4]


def test_head_that_takes_over_uses_no_number_of_a_launch_that_was_prepared(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """It keeps the size that was asked for, too."""
    with start_job(gated(tmp_path, 3, 60, workers=2)) as running:
        prepared(running, tmp_path)
        running.signal(signal.SIGKILL, "holdfast-agent")
        running.wait_for("world", generation=6)
        (tmp_path / "3").touch()
        running.wait_for("renewing")
        (tmp_path / "60").touch()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert [launch["workers"] for launch in job.events("launch")] == [[0, 1], [5, 6], [7, 8, 9]]


def test_launch_reads_from_memory_what_the_one_before_has_saved(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The files on the disk are damaged meanwhile, and nobody finds it."""
    with start_job(gated(tmp_path, 8, workers=2)) as running:
        saved = running.wait_for("checkpoint", step=5)["step"]
        shards = sorted((tmp_path / "run" / "checkpoints").glob(f"step-*{saved}/*.h5"))
        whole = [shard.read_bytes() for shard in shards]
        for shard, contents in zip(shards, whole, strict=True):
            shard.write_bytes(bytes(len(contents)))
        for worker in (0, 1):
            running.signal(signal.SIGKILL, f"holdfast-w{worker}")
        restored = running.wait_for("restored")
        for shard, contents in zip(shards, whole, strict=True):
            shard.write_bytes(contents)
        (tmp_path / "8").touch()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert shards
    assert restored["step"] == saved
    assert not job.events("rejected")


STUBBORN = """
import runpy, sys, time
from pathlib import Path

script = {script!r}
sys.path.insert(0, str(Path(script).parent))
while True:
    try:
        runpy.run_path(script, run_name="__main__")
        break
    except BaseException:
        time.sleep(0.1)
"""


@pytest.mark.extended
def test_script_that_does_not_let_go_of_its_training_makes_room_all_the_same(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """It catches the stop, and tries to train again, for ever."""
    script = tmp_path / "stubborn.py"
    plain = gated(tmp_path, 60, workers=2)
    script.write_text(STUBBORN.format(script=str(plain.script)))

    with start_job(replace(plain, script=script)) as running:
        running.wait_for("checkpoint")
        assert scale(tmp_path, 3) == 0
        running.wait_for("renewing")
        (tmp_path / "60").touch()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert sizes(job) == [2, 3]
