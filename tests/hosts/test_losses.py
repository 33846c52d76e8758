"""A job over several hosts loses one in every way, and ends with the bytes of one worker.

All workers wait at a gate while the test strikes, so that each loss meets the same step.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cluster import NETWORK, Cluster
from extended import extended, shortened
from host_jobs import HostJob, Loss, assert_whole
from host_keeper import port_of
from workload import LONG, Undisturbed, request_of

from holdfast.runtime.options.option import read_hosts
from holdfast.testing import JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.process]

_WORKLOAD = replace(LONG, epochs=6, pause_ms=5)
_GATE = 12
_OPTIONS = ("--heartbeat-timeout", "5")
_NOBODY = Loss.WATCHDOG_KILLED
_EACH = shortened(Loss, [Loss.KILL])


@pytest.fixture
def sha256(undisturbed: Undisturbed) -> str:
    """The digest that each of these jobs must end with."""
    return undisturbed(_WORKLOAD)


@dataclass(frozen=True)
class _Gated:
    """A job of two workers on each of three hosts, all of which wait at a gate."""

    job: HostJob
    gate: Path
    script: Path

    def open(self) -> None:
        self.gate.touch()


@contextmanager
def _at_gate(
    cluster: Cluster,
    folder: Path,
    hosts: str = "a:2,b:2,c:2",
    *,
    more: tuple[str, ...] = (),
    rsh: str | None = None,
    timeout_s: float = 5,
) -> Iterator[_Gated]:
    workers = sum(slots.slots for slots in read_hosts(hosts))
    options = ("--heartbeat-timeout", f"{timeout_s:g}")
    request = request_of(_WORKLOAD, folder / "run", workers=workers, options=options)
    trace = folder / "trace"
    gates = ("--gates", str(folder), "--gate-steps", str(_GATE), *more, "--trace", str(trace))
    with HostJob(cluster, replace(request, argv=[*request.argv, *gates]), hosts, rsh=rsh) as job:
        job.wait_until(lambda: _lines(trace) >= workers * (_GATE - 1), "workers at the gate")
        yield _Gated(job, folder / str(_GATE), Path(request.script))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _lost(job: JobRun) -> list[int]:
    return sorted({failure.worker for failure in job.report.failures})


@pytest.mark.parametrize("loss", _EACH)
def test_a_loss_on_one_host_changes_no_byte(
    cluster: Cluster, tmp_path: Path, sha256: str, loss: Loss
) -> None:
    with _at_gate(cluster, tmp_path) as gated:
        gated.job.strike(loss, "b")
        gated.open()
        gated.job.wait_end()
        if loss is Loss.FREEZE:  # what is frozen cannot end before
            gated.job.undo(loss, "b")
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert len(job.events("launch")) == 1, job.stderr
    assert _lost(job) == ([2, 3] if loss.takes_host else [] if loss is _NOBODY else [2])


def test_a_host_whose_shell_tells_late_makes_no_world_of_its_own(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """Its workers see the others go, and live until their lease ends."""
    with _at_gate(cluster, tmp_path, "a:2,b:2") as gated:
        cut_off = gated.job.workers("b")
        gated.job.strike(Loss.SHELL_LATE, "b")
        gated.job.wait_for("failure", worker=2)
        assert gated.job.workers("b") == cut_off
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert _lost(job) == [2, 3]
    assert job.events("recovery")
    _, world = job.events("world")
    applied = [at for updates in _applied(tmp_path / "trace", "b") for at in updates]
    assert len(applied) <= 2 * _GATE  # those of the first world
    assert max(applied) < world["now"]
    assert not job.events("checkpoint_failed")


@pytest.mark.extended  # tests/runtime/head/test_job_hosts.py waits without a host
def test_no_launch_begins_before_the_lease_of_a_host_with_the_whole_world_has_ended(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    with _at_gate(cluster, tmp_path, "b:2") as gated:
        gated.job.wait_for("checkpoint")  # it is written beside the training
        gated.job.strike(Loss.SHELL_LATE, "b")
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    one, other, *again = _applied(tmp_path / "trace", "b")
    assert max(*one, *other) < min(min(updates) for updates in again)
    assert "b may not know yet that it is lost" in job.stderr


def _applied(trace: Path, host: str) -> list[list[float]]:
    """Return when each worker of a host has applied its updates, the oldest worker first."""
    found: dict[str, list[float]] = {}
    for line in trace.read_text().splitlines():
        at, there, process = line.split()
        if there == host:
            found.setdefault(process, []).append(float(at))
    return list(found.values())


@pytest.mark.parametrize("loss", shortened([Loss.KILL, Loss.POWER, Loss.CUT], [Loss.KILL]))
def test_the_loss_of_two_hosts_at_once_changes_no_byte(
    cluster: Cluster, tmp_path: Path, sha256: str, loss: Loss
) -> None:
    with _at_gate(cluster, tmp_path) as gated:
        gated.job.strike(loss, "b")
        gated.job.strike(loss, "c")
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert set(_lost(job)) >= {2, 3, 4, 5}


@pytest.mark.extended  # ci/cluster cuts hosts off, and heals links
@pytest.mark.parametrize("loss", [Loss.CUT, Loss.FREEZE])
def test_a_host_that_comes_back_after_its_loss_disturbs_nobody(
    cluster: Cluster, tmp_path: Path, sha256: str, loss: Loss
) -> None:
    with _at_gate(cluster, tmp_path) as gated:
        gated.job.strike(loss, "b")
        gated.job.wait_for("failure", worker=2)
        if loss is Loss.CUT:  # what cannot hear its head has ended by itself
            assert cluster.wait_empty("b") == []
        gated.job.undo(loss, "b")
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert _lost(job) == [2, 3]


def test_of_two_hosts_that_lose_each_other_one_is_left_out_in_place(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """The head reaches both all the time, so nothing but the network between them tells."""
    with _at_gate(cluster, tmp_path, "a:1,b:1,c:2", timeout_s=3) as gated:
        cluster.part("b", "c")
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert len(job.events("launch")) == 1, job.stderr
    assert _lost(job) == [1]
    assert "host b was lost: b does not reach c on 10.77.0.0/24 (timed out)" in job.stderr


@pytest.mark.extended  # the test before has the way in which a host is left out
def test_host_whose_network_is_down_is_left_out_and_comes_back_with_it(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """The shell goes over another network, so the host answers its head all the time."""
    rsh = cluster.shell_past_the_network()
    with _at_gate(cluster, tmp_path, "a:1,b:2,c:1", more=("20",), rsh=rsh, timeout_s=3) as gated:
        gated.job.strike(Loss.CUT, "b")
        gated.open()
        gated.job.wait_for("host_lost", host="b")
        gated.job.wait_for("host_refused", host="b")
        gated.job.undo(Loss.CUT, "b")
        gated.job.wait_for("host_back", host="b")
        (tmp_path / "20").touch()
        job = gated.job.wait()
    assert_whole(job, sha256)
    (lost,) = job.events("host_lost")
    assert lost["reason"] == "b does not reach a, c on 10.77.0.0/24 (timed out)"


def _give_another_script(cluster: Cluster, host: str, gated: _Gated, folder: Path) -> None:
    other = folder / "other.py"
    other.write_text(f"{gated.script.read_text()}raise ValueError('mended on {host}')\n")
    cluster.run(host, ["mount", "--bind", str(other), str(gated.script)])


def test_a_host_with_another_script_runs_what_the_job_began_with_when_another_head_takes_over(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    with _at_gate(cluster, tmp_path, "a:2,b:2") as gated:
        gated.job.wait_for("checkpoint")  # it is written beside the training
        _give_another_script(cluster, "b", gated, tmp_path)
        gated.job.kill_head()
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert not job.events("host_refused")
    assert len(job.events("launch")[-1]["workers"]) == 4
    assert f"{gated.script} has changed since this job began: the job goes on with" in job.stderr


@pytest.mark.extended  # the tests beside it lose heads and hosts
def test_another_head_waits_for_no_host_that_was_lost_before(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    with _at_gate(cluster, tmp_path) as gated:
        gated.job.wait_for("checkpoint")  # it is written beside the training
        gated.job.strike(Loss.CUT, "b")
        gated.job.wait_for("host_lost", host="b")
        gated.job.kill_head()
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert [len(launch["workers"]) for launch in job.events("launch")] == [6, 4], job.stderr
    assert len(job.events("host_lost")) == 1, job.stderr


@pytest.mark.extended  # the tests beside it cut links
def test_a_head_whose_own_cable_is_pulled_says_so_and_trains_on_alone(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    with _at_gate(cluster, tmp_path, "a:2,b:2") as gated:
        in_keeper = ["nsenter", "--target", str(cluster.keeper), "--net"]
        subprocess.run([*in_keeper, "ip", "link", "set", port_of("a"), "down"], check=True)
        reason = str(gated.job.wait_for("host_lost", host="b")["reason"])
        gated.open()
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert reason.startswith(f"the link of a itself to {NETWORK} is down ("), reason
    assert f"host b was lost with its workers (2, 3): {reason}" in job.stderr


@pytest.mark.parametrize("dies", [extended(False), extended(True)], ids=["head lives", "head dies"])
def test_a_job_without_a_host_waits_for_one_to_come_back(
    cluster: Cluster, tmp_path: Path, sha256: str, *, dies: bool
) -> None:
    with _at_gate(cluster, tmp_path, "b:4") as gated:
        gated.job.wait_for("checkpoint")  # it is written beside the training
        gated.job.strike(Loss.CUT, "b")
        gated.open()
        gated.job.wait_for("host_lost", host="b")
        if dies:
            gated.job.kill_head()
            gated.job.wait_for("relaunch")
        gated.job.undo(Loss.CUT, "b")
        job = gated.job.wait()
    assert_whole(job, sha256)
    assert len(job.events("launch")) == 2
    assert dies or "waiting for b" in job.stderr


def test_a_lost_head_takes_all_along_and_the_next_job_goes_on(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    with _at_gate(cluster, tmp_path) as gated:
        gated.job.wait_for("checkpoint")  # it is written beside the training
        gated.job.strike(Loss.KILL, "a")
        for host in ("b", "c"):
            assert cluster.wait_empty(host) == []
        gated.job.undo(Loss.KILL, "a")
    gated.open()
    request = request_of(_WORKLOAD, tmp_path / "run", workers=4, options=_OPTIONS)
    with HostJob(cluster, request, "a:2,b:2") as second:
        job = second.wait()
    assert_whole(job, sha256)
    assert job.events("restored")


def test_nothing_but_mpiexec_listens_while_a_job_trains(cluster: Cluster, tmp_path: Path) -> None:
    with _at_gate(cluster, tmp_path, "a:1,b:1") as gated:
        for host in ("a", "b"):
            found = cluster.listening(host)
            assert {name for one in found for name in one.processes} <= {"prterun"}, (host, found)
        gated.open()
        assert gated.job.wait().exit_code == 0
