"""A worker that does not come on is found, shown and fenced; the bytes stay.

A sample that it cannot take stops one worker; an event that MPI has lost stops all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from extended import shortened
from workload import EVEN, LONG, Undisturbed, assert_whole, request_of, run_job

from holdfast.testing import JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(170)]

SCRIPT = Path(__file__).parent / "scripts" / "looping.py"
POISON = 100
STALLS = ("--stall-timeout", "2")
SILENCES = ("--heartbeat-timeout", "3", "--stall-timeout", "never")


def _train(
    tmp_path: Path, mistake: str, *, options: Sequence[str], times: int = 1, workers: int = 3
) -> JobRun:
    plain = request_of(EVEN, tmp_path / "run", workers=workers, options=options)
    (tmp_path / "happened").mkdir()
    argv = ["--mistake", mistake, "--poison", str(POISON), "--times", str(times)]
    argv += ["--happened", str(tmp_path / "happened"), *plain.argv]
    return run_job(replace(plain, script=SCRIPT, argv=argv))


@dataclass(frozen=True)
class Case:
    """A mistake, the limit that finds it, and the function that must be shown."""

    mistake: str
    options: Sequence[str]
    limit: str
    function: str


LOOP = Case("loop", STALLS, "stall", "loop_for_ever")
CASES = (
    LOOP,
    Case("match", SILENCES, "heartbeat", "match_for_ever"),
    Case("stop", SILENCES, "heartbeat", "stop_for_ever"),
)


# Who is stopped is fenced in test_deaths.py, too.
@pytest.mark.parametrize("case", shortened(CASES, here=CASES[:2]), ids=lambda case: case.mistake)
def test_worker_that_does_not_come_on_is_fenced_and_its_stack_is_kept(
    tmp_path: Path, undisturbed: Undisturbed, case: Case
) -> None:
    job = _train(tmp_path, case.mistake, options=case.options)

    assert_whole(job, EVEN, undisturbed(EVEN))
    (failure,) = job.report.failures
    assert (failure.limit, failure.fenced) == (case.limit, True)
    if case is LOOP:
        assert_told_before(job)
    if case.mistake != "stop":
        assert f"{case.function} ({SCRIPT}:" in failure.stacks
        assert f", in {case.function} (looping.py:" in job.stderr
    assert failure.samples is not None
    assert POISON in failure.samples.ids
    assert job.report.relaunches == ()


def assert_told_before(job: JobRun) -> None:
    """The stall was told before the worker was fenced."""
    (suspected,) = job.report.suspected
    (failure,) = job.report.failures
    assert suspected.worker == failure.worker
    assert "loop_for_ever" in suspected.stacks
    assert "and all others wait for it: it is killed after 2 s" in job.stderr


def test_last_lines_of_a_worker_that_crashes_are_kept(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    job = _train(tmp_path, "crash", options=[])

    assert_whole(job, EVEN, undisturbed(EVEN))
    (failure,) = job.report.failures
    assert failure.cause == "signal SIGSEGV"
    assert failure.limit is None
    assert "about to read memory that is not there" in failure.stderr
    assert failure.samples is not None
    assert POISON in failure.samples.ids


def test_deaths_of_one_cause_are_counted_when_the_budget_is_spent(tmp_path: Path) -> None:
    job = _train(tmp_path, "crash", options=["--max-restarts", "1"], times=99)

    assert job.exit_code == 70, job.stderr
    (counted,) = job.report.death_counts
    assert counted.endswith(" deaths: signal SIGSEGV")
    assert counted in job.stderr
    for failure in job.report.failures:
        assert failure.collateral or (failure.samples is not None and POISON in failure.samples.ids)
    assert job.leftovers == ()


@pytest.mark.extended  # tests/recovery/test_stall.py has what waits for all
def test_launch_in_which_mpi_has_lost_an_event_is_ended_and_relaunched(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    options = ["--heartbeat-timeout", "2"]
    plain = request_of(LONG, tmp_path / "run", workers=3, options=options)
    argv = [str(tmp_path / "happened"), *plain.argv]
    job = run_job(replace(plain, script=SCRIPT.with_name("lost_event.py"), argv=argv))

    assert_whole(job, LONG, undisturbed(LONG))
    (stalled,) = job.events("stalled")
    assert stalled["workers"] == [0, 1, 2]
    assert "have waited for each other inside MPI" in job.stderr
    assert len(job.report.relaunches) == 1
