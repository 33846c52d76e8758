"""A server whose answers get lost: its client asks again, and is told that the work is done.

A rename is answered by ENOENT or EEXIST then, and a removal by ENOENT.  Such a save is whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from extended import extended
from faults import Rule
from faulty_mount import FaultyMount, needs_a_server
from half_a_run import STORE, Begun
from workload import EVEN, Undisturbed, assert_whole, request_of, run_job

from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import JobRun

pytestmark = [pytest.mark.mpi, needs_a_server]

RECORD = "*/.RUN.json.draft*"


def _lost(call: str, error: str, paths: str = STORE) -> Rule:
    return Rule((call,), error=error, paths=paths, is_done=True)


ALL = tuple(
    _lost(call, error)
    for call, error in {
        "mkdir": "EEXIST", "rename": "ENOENT", "unlink": "ENOENT", "rmdir": "ENOENT"
    }.items()
)  # fmt: skip


def _train(run_dir: Path) -> JobRun:
    return run_job(request_of(EVEN, run_dir, workers=2))


def _assert_saved(faulty: FaultyMount, job: JobRun) -> None:
    """Each save that was done is told as done, and what is left verifies."""
    store = CheckpointStore(faulty.served / "run")
    assert job.events("checkpoint_failed") == []
    assert store.steps()[0] == EVEN.steps
    assert [store.scan(step).verify().step for step in store.steps()] == list(store.steps())
    assert [name for name in store.names() if not name.startswith("step-")] == []


@pytest.mark.extended  # tests/checkpoint has each lost answer
def test_job_whose_server_loses_every_answer_saves_and_prunes(
    faulty: FaultyMount, begun: Begun, undisturbed: Undisturbed
) -> None:
    run_dir = begun(faulty)
    faulty.set(*ALL)

    job = _train(run_dir)

    assert [faulty.struck(index) > 0 for index in range(len(ALL))] == [True] * len(ALL)
    assert_whole(job, EVEN, undisturbed(EVEN))
    _assert_saved(faulty, job)


@pytest.mark.parametrize(
    "rule",
    [
        *(extended(_lost("rename", error)) for error in ("EEXIST", "EIO", "ESTALE", "ENOTEMPTY")),
        *(
            extended(_lost("rename", error, RECORD))
            for error in ("EEXIST", "EIO", "ESTALE", "ENOENT")
        ),
    ],
    ids=lambda rule: f"{rule.calls[0]} {rule.error}",
)
def test_answer_that_is_lost_otherwise_changes_nothing(
    rule: Rule, faulty: FaultyMount, undisturbed: Undisturbed
) -> None:
    faulty.set(rule)

    job = _train(faulty.path / "run")

    assert faulty.struck() > 0
    assert_whole(job, EVEN, undisturbed(EVEN))
    _assert_saved(faulty, job)
