"""``holdfast.testing`` makes the hosts of a job, and loses them at the moments of its faults."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from extended import shortened
from workload import EVEN, SCRIPT, Undisturbed, request_of

from holdfast.recovery.errors import FaultConflict, FaultSyntaxError
from holdfast.testing import JobRequest, JobRun, run_job, start_job, why_no_hosts

_STEP = 7
_OPTIONS = ("--heartbeat-timeout", "5")
_needs_hosts = pytest.mark.usefixtures("hosts_can_be_made")


@pytest.fixture
def hosts_can_be_made() -> None:
    """Skip the test where no hosts can be made."""
    reason = why_no_hosts()
    if reason is not None:
        pytest.skip(reason)


def _assert_whole(job: JobRun, sha256: str) -> None:
    assert job.exit_code == 0, job.stderr
    assert job.sha256 == sha256, job.stderr
    assert all(epoch.exact for epoch in job.report.epochs)
    assert job.leftovers == ()


def _place(job: JobRun, event: str, **fields: object) -> int:
    """Return where the first record of an event with these fields stands in the journal."""
    return next(
        number
        for number, record in enumerate(job.journal)
        if record["event"] == event and fields.items() <= record.items()
    )


@pytest.mark.mpi
@pytest.mark.process
@_needs_hosts
@pytest.mark.parametrize("kind", shortened(["lose", "cut", "freeze"], here=["lose"]))
def test_a_host_is_lost_at_a_step_and_no_byte_changes(
    tmp_path: Path, undisturbed: Undisturbed, kind: str
) -> None:
    job = run_job(
        SCRIPT,
        run_dir=tmp_path / "run",
        workers=3,
        hosts=3,
        microbatches=EVEN.microbatches,
        faults=[f"{kind} host=b step={_STEP}"],
        argv=EVEN.argv,
        options=_OPTIONS,
    )

    _assert_whole(job, undisturbed(EVEN))
    assert [record["host"] for record in job.events("host_lost")] == ["b"], job.stderr
    assert [failure.worker for failure in job.report.failures] == [1]
    assert len(job.events("launch")) == 1
    lost = _place(job, "host_lost", host="b")
    assert _place(job, "step", step=_STEP - 1) < lost < _place(job, "step", step=_STEP)


@pytest.mark.mpi
@pytest.mark.process
@_needs_hosts
def test_a_test_sees_and_strikes_the_processes_of_each_host(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    faults = [f"stop host=b step={_STEP}"]
    options = (*_OPTIONS, "--hosts", "a:1,b:2")  # otherwise a has two of three workers
    request = request_of(EVEN, tmp_path / "run", workers=3, faults=faults, options=options)

    with start_job(replace(request, hosts=2)) as running:
        running.wait_for("fault", host="b", kind="stop")
        names = set(running.processes().values())
        running.signal(signal.SIGKILL, "holdfast-host")
        job = running.wait()

    _assert_whole(job, undisturbed(EVEN))
    assert {"holdfast-agent", "holdfast-host"} <= names
    assert {"holdfast-w0", "holdfast-w1", "holdfast-w2"} <= names
    assert sorted({failure.worker for failure in job.report.failures}) == [1, 2]
    assert [record["host"] for record in job.events("host_lost")] == ["b"]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"hosts": 0}, "hosts must be a whole number from 1 to 26, got 0"),
        ({"hosts": 27, "workers": 27}, "hosts must be a whole number from 1 to 26, got 27"),
        ({"hosts": 3, "workers": 2}, "3 hosts need a worker each, and there are 2"),
        ({"faults": ["lose host=d step=3"]}, "'lose host=d step=3 .*' names no host.*: a, b, c"),
        ({"faults": ["kill host=d step=3"]}, "'kill host=d step=3 .*' names no host.*: a, b, c"),
        ({"faults": ["cut host=a step=3"]}, "'cut host=a .* which is on a: strike b or c"),
    ],
)
def test_a_job_that_hosts_cannot_have_is_refused(terms: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JobRequest(script="train.py", run_dir="run", **({"hosts": 3, "workers": 3} | terms))


def test_faults_of_hosts_are_read_before_a_host_is_made() -> None:
    for faults, error in (
        (["cut host=b"], FaultSyntaxError),
        (["cut host=b step=3", "freeze host=b step=3"], FaultConflict),
    ):
        with pytest.raises(error):
            JobRequest(script="train.py", run_dir="run", workers=3, hosts=3, faults=faults)


def test_a_machine_without_hosts_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert why_no_hosts() == "namespaces are made as root only"
    with pytest.raises(RuntimeError, match=r"no job over 2 hosts .* as root only"):
        run_job("train.py", run_dir=tmp_path / "run", workers=2, hosts=2)


def test_what_lies_in_a_folder_of_each_host_needs_a_folder_that_all_see(tmp_path: Path) -> None:
    script = Path("/dev/shm/train.py")
    message = "each host has a /dev/shm for itself, so /dev/shm/train.py cannot be there"
    with pytest.raises(ValueError, match=message):
        run_job(script, run_dir=tmp_path / "run", workers=2, hosts=2)
