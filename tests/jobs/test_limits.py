"""Jobs that come to a limit of their host: it is told before, and named as the cause."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cgroups import enter, memory_cgroup
from workload import LONG, PreparedJob, Undisturbed, Workload, assert_whole, request_of, run_job

from holdfast.runtime.commands.reported_run import describe_failure, describe_troubles
from holdfast.testing import JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]

HUNGRY = Path(__file__).parent / "scripts" / "hungry.py"
MIB = 1 << 20

SLOW = Workload(
    microbatches=4, samples=160, global_batch=40, epochs=85, save_every=100_000, pause_ms=120
)
"""Takes 40 seconds at least, and saves at its end only."""


def _feast(workload: Workload, place: Path, group: Path, *, from_step: int, mib: int) -> JobRun:
    """Run a job in ``group``, one worker of which eats ``mib`` at each step."""
    request = request_of(workload, place / "run", workers=3)
    eats = ["--from-step", str(from_step), "--mib-a-step", str(mib)]
    eats += ["--eater", str(place / "eater")]
    fields = asdict(request) | {"script": HUNGRY, "argv": [*workload.argv, *eats]}
    return run_job(PreparedJob(**fields, preparation=enter(group)))


def test_death_by_the_oom_killer_is_named_with_figures_and_survived(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with memory_cgroup(500 * MIB) as group:
        job = _feast(LONG, tmp_path, group, from_step=20, mib=64)

    (failure,) = job.report.failures
    assert failure.cause.startswith("out of memory: killed by the kernel's OOM killer, it had ")
    assert f"the cgroup {group} has 500 MiB" in failure.cause
    assert f"worker {failure.worker} died after step {failure.step} (out of memory:" in job.stderr
    assert failure.cause in describe_failure(failure)
    assert job.report.relaunches == ()
    assert_whole(job, LONG, undisturbed(LONG))


@pytest.mark.extended
def test_memory_that_fills_up_is_told_and_saved_before_it_kills(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The looks are those of tests/runtime/host/test_limits.py; the death is named as above."""
    with memory_cgroup(400 * MIB) as group:
        job = _feast(SLOW, tmp_path, group, from_step=3, mib=1)

    (failure,) = job.events("failure")
    told = job.events("pressure")
    saved = job.events("checkpoint")
    assert "OOM killer" in failure["cause"]
    assert {record["resource"] for record in told} == {"memory"}
    assert told[0]["place"] == f"the cgroup {group}"
    assert told[0]["limit"] == 400 * MIB
    assert told[0]["now"] < saved[0]["now"] < failure["now"]
    assert saved[0]["step"] < failure["step"]
    assert told[0]["text"] in job.stderr
    assert told[0]["text"] in describe_troubles(job.report)
    assert_whole(job, SLOW, undisturbed(replace(SLOW, pause_ms=0)))
