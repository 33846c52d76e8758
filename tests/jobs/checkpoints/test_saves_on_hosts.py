"""Workers on the host of the first one save alone, and those of another host when it has none."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from extended import extended
from workload import EVEN, Undisturbed, assert_struck, assert_whole, request_of, run_job

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import JobRun

pytestmark = pytest.mark.mpi

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "on_hosts.py"


def train(run_dir: Path, on: str, faults: Sequence[str] = (), *options: str) -> JobRun:
    """Train ``EVEN``, its workers on the hosts that the letters of ``on`` name."""
    request = request_of(EVEN, run_dir, workers=len(on), faults=faults, options=options)
    request = dataclasses.replace(request, script=SCRIPT, argv=[*request.argv, "--on", on])
    job = run_job(request)
    store = CheckpointStore(run_dir)
    assert all(verify_step(store, step).is_valid for step in store.steps())
    assert store.steps()[0] == EVEN.steps
    return job


def copied(run_dir: Path) -> dict[int, dict[int, str]]:
    """Return which part of how many each worker has copied, by the step."""
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for path in run_dir.glob("copied-by-*"):
        worker = int(path.name.rpartition("-")[2])
        for line in path.read_text().splitlines():
            step, part = line.split()
            found[int(step)][worker] = part
    return found


@pytest.mark.parametrize(
    ("on", "parts"),
    [extended("aabb", {0: "0/2", 1: "1/2"}), ("abb", {0: "0/1"})],
)
def test_workers_of_the_first_host_alone_copy_and_all_know_when_it_is_durable(
    tmp_path: Path, undisturbed: Undisturbed, on: str, parts: dict[int, str]
) -> None:
    job = train(tmp_path, on)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert list(copied(tmp_path).values()) == [parts] * len(copied(tmp_path))
    saved = {record["step"] for record in job.journal if record["event"] == "checkpoint"}
    assert saved == set(copied(tmp_path))


def test_saves_move_with_the_first_worker_and_back_with_a_relaunch(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The workers of the first host die in the step after a save, and later all others do.

    Which later steps are saved depends on the disk: a save that is due in another one is skipped.
    """
    faults = [f"kill worker={worker} step=6 site=reduce" for worker in (0, 1)]
    faults += [f"kill worker={worker} step=12 site=reduce" for worker in (2, 3)]

    job = train(tmp_path, "aabb", faults)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert_struck(job, faults)
    assert len(job.report.relaunches) == 1
    parts = {worker: part for save in copied(tmp_path).values() for worker, part in save.items()}
    assert parts == {0: "0/2", 1: "1/2", 2: "0/2", 3: "1/2", 4: "0/2", 5: "1/2"}
    (restored,) = (record["step"] for record in job.journal if record["event"] == "restored")
    assert 5 <= restored < 12


def test_host_without_memory_for_a_save_is_waited_for_by_the_workers_of_the_other(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Its first worker writes from its own state, and no answer of a writer ever comes."""
    job = train(tmp_path, "aab", (), "--snapshot-memory", "1KB")

    assert_whole(job, EVEN, undisturbed(EVEN))
