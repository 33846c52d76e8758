"""Jobs over several hosts, however their workers are placed, have the bytes of one worker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import Cluster, why_not
from extended import extended, shortened
from host_jobs import HostJob, assert_whole
from secure_shell import start_ssh
from secure_shell import why_not as no_ssh
from workload import EVEN, Undisturbed, Workload, request_of

from holdfast.runtime.options.option import read_hosts
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.process]

_SCRIPTS = Path(__file__).parents[1] / "jobs" / "scripts"
_PATIENT = ("--heartbeat-timeout", "20")


def _train(
    cluster: Cluster, folder: Path, workload: Workload, hosts: str, rsh: str | None = None
) -> JobRun:
    workers = sum(slots.slots for slots in read_hosts(hosts))
    request = request_of(workload, folder / "run", workers=workers, options=_PATIENT)
    with HostJob(cluster, request, hosts, rsh=rsh) as job:
        return job.wait()


def _assert_whole(job: JobRun, sha256: str) -> None:
    assert_whole(job, sha256)
    assert not job.report.failures


@pytest.mark.parametrize(
    "hosts",
    shortened(["a:2,b:2", "a:1,b:2,c:1", "b:2,c:2", "a:4", "a:0,b:3,c:1"], ["a:1,b:2,c:1"]),
)
def test_placement_changes_no_byte(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, hosts: str
) -> None:
    _assert_whole(_train(cluster, tmp_path, EVEN, hosts), undisturbed(EVEN))


def test_ssh_reaches_the_hosts(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    if reason := no_ssh():
        pytest.skip(reason)
    job = _train(cluster, tmp_path, EVEN, "a:1,b:2,c:1", rsh=start_ssh(cluster))
    _assert_whole(job, undisturbed(EVEN))


@pytest.mark.extended
def test_a_host_that_was_lost_twice_is_taken_again_when_that_is_asked_for(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    (first,) = _train(cluster, tmp_path, replace(EVEN, epochs=1), "a:1,b:1").events("launch")
    lost = {**first, "event": "host_lost", "host": "b", "reason": "as in a test", "workers": []}
    with RunDirectory(tmp_path / "run").journal_path.open("a") as journal:
        journal.write(f"{json.dumps(lost)}\n" * 2)

    without = _train(cluster, tmp_path, replace(EVEN, epochs=2), "a:1,b:1")
    assert "--try-lost-hosts takes it again" in without.stderr
    request = request_of(EVEN, tmp_path / "run", workers=2, options=(*_PATIENT, "--try-lost-hosts"))
    with HostJob(cluster, request, "a:1,b:1") as again:
        job = again.wait()
    assert [len(launch["workers"]) for launch in job.events("launch")] == [2, 1, 2]
    assert job.sha256 == undisturbed(EVEN)


@pytest.mark.extended  # a run goes on with other hosts above
@pytest.mark.parametrize("count", shortened([1, 2, 3, 4], [3]))
def test_a_run_that_four_hosts_lost_goes_on_with_any_number_of_them(
    tmp_path: Path, undisturbed: Undisturbed, count: int
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    gates = ("--gates", str(tmp_path), "--gate-steps", "10")
    workload = replace(EVEN, save_every=3, pause_ms=1)
    request = request_of(workload, tmp_path / "run", workers=4, options=_PATIENT)
    with Cluster(tmp_path, "abcd") as cluster:
        gated = replace(request, argv=[*request.argv, *gates])
        with HostJob(cluster, gated, "a:1,b:1,c:1,d:1") as job:
            job.wait_for("checkpoint")
            for host in cluster.names:  # the head first, so nobody tells of the others
                cluster.kill(host)
        for host in cluster.names:
            cluster.restart(host)
        hosts = ",".join(f"{host}:{4 // count}" for host in cluster.names[:count])
        resumed = replace(request, workers=4 // count * count)
        with HostJob(cluster, resumed, hosts) as job:
            _assert_whole(done := job.wait(), undisturbed(workload))
    assert done.events("restored")


@pytest.mark.extended  # the tests beside it have the placements
@pytest.mark.tensorflow
@pytest.mark.parametrize("hosts", ["a:1,b:2", extended("a:2,b:2"), extended("b:2,c:2")])
def test_fit_of_a_pipeline_with_callbacks_has_the_bytes_of_one_worker(
    cluster: Cluster, tmp_path: Path, hosts: str
) -> None:
    def request(name: str, workers: int) -> JobRequest:
        folder = tmp_path / name
        folder.mkdir()
        return JobRequest(
            script=_SCRIPTS / "pipelines" / "from_dataset.py",
            argv=[str(folder)],
            run_dir=folder / "run",
            workers=workers,
            microbatches=4,
            options=("--threads", "1", *_PATIENT),
        )

    with start_job(request("one", 1)) as running:
        alone = running.wait()
    workers = sum(slots.slots for slots in read_hosts(hosts))
    with HostJob(cluster, request("many", workers), hosts) as many:
        job = many.wait()

    assert alone.exit_code == 0, alone.stderr
    assert alone.sha256 is not None
    _assert_whole(job, alone.sha256)
    assert [line for line in job.stdout.splitlines() if '"loss"' in line] == [
        line for line in alone.stdout.splitlines() if '"loss"' in line
    ]
    logs = [(tmp_path / name / "log.csv").read_text() for name in ("one", "many")]
    assert logs[0].count("\n") == 4
    assert logs[0] == logs[1]
    assert (tmp_path / "many" / "best.keras").stat().st_size > 0
