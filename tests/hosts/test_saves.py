"""Each host holds and writes its shards of a save, and another one does for a host that is lost.

All hosts mount one run directory.  After each job every step of it verifies, byte for byte.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import Cluster
from extended import extended
from host_jobs import HostJob, Loss, assert_whole
from workload import LONG, Undisturbed, Workload, request_of

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import ExitCode
from holdfast.testing import JobRequest, JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.process]

_WORKLOAD = replace(LONG, epochs=3, pause_ms=5)
_GATE = 7
"""A save of step 5 is on its way when all workers come to the gate."""
_LATER = 16


@pytest.fixture
def sha256(undisturbed: Undisturbed) -> str:
    """The digest that each of these jobs must end with."""
    return undisturbed(_WORKLOAD)


@contextmanager
def _job(
    cluster: Cluster,
    folder: Path,
    hosts: str,
    *argv: str,
    faults: Sequence[str] = (),
    more: Sequence[str] = (),
    workload: Workload = _WORKLOAD,
) -> Iterator[HostJob]:
    options = ("--heartbeat-timeout", "5", *more)
    request = request_of(workload, folder / "run", workers=4, faults=faults, options=options)
    gates = ("--gates", str(folder), *argv)
    with HostJob(cluster, replace(request, argv=[*request.argv, *gates]), hosts) as job:
        yield job


def _saved(running: HostJob) -> list[int]:
    """Return the steps of the checkpoints so far, as they came."""
    return [record["step"] for record in running.journal if record["event"] == "checkpoint"]


def _bytes_written(cluster: Cluster, host: str) -> int:
    """Return how much the writer of a host has written, to files and to its agent."""
    words = cluster.processes(host)
    (writer,) = (pid for pid, command in words.items() if command.startswith("holdfast-writer"))
    fields = Path(f"/proc/{writer}/io").read_text().split()
    return int(fields[fields.index("wchar:") + 1])


def _has_memory(cluster: Cluster, host: str) -> bool:
    """Return whether the host has made memory for saves."""
    maps = [Path(f"/proc/{pid}/maps") for pid in cluster.processes(host)]
    return any("memfd:holdfast-save" in path.read_text() for path in maps if path.exists())


_FLOOD = """
import keras, numpy as np, time

class Flood(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            print(("%d " % batch) * 200)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = np.ones((64, 2), "f"), np.ones((64, 1), "f")
model.fit(*data, batch_size=4, epochs=9999, verbose=0, callbacks=[Flood()])
"""


@pytest.mark.extended
def test_order_to_stop_keeps_its_save_where_output_is_above_the_speed_of_the_link(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Megabytes wait to be shown; the worker on b speaks, and 4 Mbit/s are there for it."""
    (tmp_path / "flood.py").write_text(_FLOOD)
    request = JobRequest(script=tmp_path / "flood.py", run_dir=tmp_path / "run", microbatches=4)
    with HostJob(cluster, request, "a:0,b:1") as running:
        running.wait_for("step", step=3)
        cluster.shape(4_000_000)
        shown = cluster.directory / "job.stdout"
        running.wait_until(lambda: shown.stat().st_size > 4 << 20, "output")
        running.signal(signal.SIGTERM)
        job = running.wait()

    (stopped,) = job.events("stopped")
    assert job.exit_code == 75, job.stderr
    assert f"stopped at step {stopped['step']} with a checkpoint" in job.stderr
    assert _verified(tmp_path)[0] == stopped["step"]
    assert job.leftovers == ()


def _assert_whole(folder: Path, job: JobRun, sha256: str) -> None:
    assert_whole(job, sha256)
    assert _verified(folder)[0] == _WORKLOAD.steps
    assert not job.events("checkpoint_failed")
    assert not job.events("prune_failed")


def _verified(folder: Path) -> tuple[int, ...]:
    """Return the steps of the run, all of which verify."""
    store = CheckpointStore(folder / "run")
    assert all(verify_step(store, step).is_valid for step in store.steps())
    return store.steps()


def test_each_host_takes_memory_and_writes_its_shards(cluster: Cluster, tmp_path: Path) -> None:
    large = replace(_WORKLOAD, features=8000)  # a shard is larger than all messages of a writer
    gates, shards = ("--gate-steps", str(_GATE)), ("--shards", "4")
    with _job(cluster, tmp_path, "a:2,b:2", *gates, more=shards, workload=large) as running:
        running.wait_for("checkpoint", step=5)
        had_memory = [_has_memory(cluster, host) for host in "ab"]
        written = [_bytes_written(cluster, host) for host in "ab"]
        step = tmp_path / "run" / "checkpoints" / "step-000000000005"
        sizes = [path.stat().st_size for path in sorted(step.glob("shard-*"))]
        (tmp_path / str(_GATE)).touch()
        job = running.wait()

    assert job.exit_code == 0, job.stderr
    assert _verified(tmp_path)[0] == _WORKLOAD.steps
    assert had_memory == [True, True]
    assert len(sizes) == 4
    assert written[1] == sum(sizes[2:])
    assert sum(sizes[:2]) < written[0] < sum(sizes)


@pytest.mark.parametrize("hosts", [extended("a:2,b:2"), extended("a:0,b:2,c:2")])
def test_saves_move_when_the_host_of_the_first_worker_has_no_worker_any_more(
    cluster: Cluster, tmp_path: Path, sha256: str, hosts: str
) -> None:
    """Its agent and its writer live on, and hold the newest save in memory."""
    faults = [f"kill worker={worker} step={_GATE + 1} site=reduce" for worker in (0, 1)]
    gates = ("--gate-steps", str(_GATE), str(_LATER))
    first, second = [host for host in "abc" if f"{host}:2" in hosts]
    with _job(cluster, tmp_path, hosts, *gates, faults=faults) as running:
        running.wait_for("checkpoint", step=5)
        before = [_has_memory(cluster, host) for host in (first, second)]
        (tmp_path / str(_GATE)).touch()
        running.wait_until(lambda: _saved(running)[-1] > _GATE, "save of the other host")
        after = _has_memory(cluster, second)
        (tmp_path / str(_LATER)).touch()
        job = running.wait()

    _assert_whole(tmp_path, job, sha256)
    assert (before, after) == ([True, True], True)
    assert len(job.events("launch")) == 1


@pytest.mark.extended  # they move to another host in the next test
@pytest.mark.parametrize("loss", [Loss.POWER, Loss.CUT])
def test_saves_move_when_the_host_that_saves_is_lost(
    cluster: Cluster, tmp_path: Path, sha256: str, loss: Loss
) -> None:
    gates = ("--gate-steps", str(_GATE))
    with _job(cluster, tmp_path, "a:0,b:2,c:2", *gates) as running:
        running.wait_for("checkpoint", step=5)
        running.strike(loss, "b")
        (tmp_path / str(_GATE)).touch()
        job = running.wait()

    _assert_whole(tmp_path, job, sha256)
    assert len(job.events("launch")) == 1


def test_save_of_a_launch_that_died_whole_is_settled_by_the_host_that_holds_it(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """Those of the first host die before; the save that follows is of the second host."""
    faults = [f"kill worker={worker} step={_GATE + 1} site=reduce" for worker in (0, 1)]
    faults += [f"kill worker={worker} step={_LATER} site=reduce" for worker in (2, 3)]

    with _job(cluster, tmp_path, "a:2,b:2", faults=faults) as running:
        job = running.wait()

    _assert_whole(tmp_path, job, sha256)
    (restored,) = (record["step"] for record in job.events("restored"))
    assert _GATE < restored < _LATER


def test_host_without_memory_for_a_save_is_waited_for_by_the_workers_of_the_other(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """The first worker of each writes the shards of its host from its own state."""
    with _job(cluster, tmp_path, "a:2,b:2", more=("--snapshot-memory", "1KB")) as running:
        job = running.wait()

    _assert_whole(tmp_path, job, sha256)


@pytest.mark.extended  # a halt is planned over all hosts in test_halting.py
def test_workers_that_hang_on_both_hosts_are_saved_by_an_order_to_stop(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """They change nothing any more, and the run goes on from the step that they hold."""
    hang = ("--hang-after", str(_GATE))
    with _job(cluster, tmp_path, "a:2,b:2", *hang, "--trace", str(tmp_path / "trace")) as running:
        trace = tmp_path / "trace"
        running.wait_for("checkpoint", step=5)
        running.wait_until(
            lambda: len(trace.read_text().splitlines()) == 4 * _GATE, "workers that hang"
        )
        running.signal(signal.SIGTERM)
        stopped = running.wait()
    assert stopped.exit_code == 75, stopped.stderr
    assert f"saved step {_GATE}" in stopped.stderr
    assert _verified(tmp_path)[0] == _GATE

    (tmp_path / "gradient").touch()
    with _job(cluster, tmp_path, "a:2,b:2", *hang) as running:
        job = running.wait()

    _assert_whole(tmp_path, job, sha256)
    assert job.events("restored")[0]["step"] == _GATE


def test_save_whose_workers_and_one_host_are_lost_is_finished_from_memory(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """The disk refuses the save; then all workers die, and a host with their memory."""
    gates, store = ("--gate-steps", "3", str(_GATE)), tmp_path / "run" / "checkpoints"
    shards = ("--shards", "6")
    with _job(cluster, tmp_path, "a:1,b:1,c:2", *gates, more=shards) as running:
        running.wait_for("world", step=0)
        store.touch()  # no directory of checkpoints can be made
        (tmp_path / "3").touch()
        running.wait_for("checkpoint_failed", step=5)
        store.unlink()
        running.strike(Loss.POWER, "c")
        for host in "ab":
            for pid, command in cluster.processes(host).items():
                if command.startswith("holdfast-w") and command[10].isdigit():
                    os.kill(pid, signal.SIGKILL)
        (tmp_path / str(_GATE)).touch()
        job = running.wait()

    assert_whole(job, sha256)
    assert _verified(tmp_path)[0] == _WORKLOAD.steps
    assert job.events("restored")[0]["step"] == 5


def test_shards_of_all_hosts_are_in_the_second_place_and_are_taken_by_others(
    cluster: Cluster, tmp_path: Path, sha256: str
) -> None:
    """A run of the hosts a and b, whose directory is removed, goes on on b and c."""
    place = ("--copy-to", f"file://{tmp_path}/place")
    gates, shards = ("--gate-steps", str(_GATE)), ("--shards", "2")
    with _job(cluster, tmp_path, "a:2,b:2", *gates, more=(*shards, *place)) as running:
        running.wait_for("copied", step=5)
        running.signal(signal.SIGTERM)
        (tmp_path / str(_GATE)).touch()
        stopped = running.wait()
    shutil.rmtree(tmp_path / "run")
    with _job(cluster, tmp_path, "b:2,c:2", more=place) as running:
        job = running.wait()

    assert stopped.exit_code == ExitCode.STOPPED_EARLY, stopped.stderr
    assert f"took step {stopped.report.steps} from {place[1]}" in job.stderr
    assert_whole(job, sha256)
