"""What a committer tells of its disk, so that the agent can tell work from a disk that hangs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from committing_report import Told
from host_saves import Workers, plan_of

from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving import writer
from holdfast.runtime.saving.checkpoint_care import CheckpointCare
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.local_level import LocalTerms
from holdfast.runtime.saving.writer import WriterReport
from holdfast.runtime.system.channel import pair

BOUND_S = 60.0


def written(told: Told) -> int:
    """Return the bytes of all files that were begun."""
    steps = zip(told.being_written, told.being_written[1:], strict=False)
    return sum(max(0, after - before) for before, after in steps)


def test_last_save_tells_of_its_work_in_the_run_directory(tmp_path: Path) -> None:
    """A run directory that is slow and takes the step is no disk that hangs."""
    local = LocalTerms(tmp_path / "local", every_saves=100)
    workers, told = Workers(plan_of(tmp_path / "run", local=local)), Told()
    (tmp_path / "run").mkdir()
    committer = Committer(workers.plan, told)
    nbytes = committer.commit(workers.held(30, 1))
    assert nbytes <= written(told) < 2 * nbytes

    save = workers.held(40, 2)
    committer.commit(
        dataclasses.replace(save, ticket=dataclasses.replace(save.ticket, goes_through=True))
    )

    committer.close(BOUND_S)
    workers.close()
    assert CheckpointStore(tmp_path / "run").steps() == (40,)
    assert written(told) >= 2 * nbytes


def test_many_reads_are_told_once_a_second_and_each_file_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pair()
    now = [100.0]
    monkeypatch.setattr(writer.time, "monotonic", lambda: now[0])
    report = WriterReport(theirs)

    for change in (0, 0, 7, 0, 9, -7, 0):
        report.disk_moved(change)
    now[0] += 1.0
    report.disk_moved(0)
    report.disk_moved(0)
    theirs.send({"kind": "end"})

    found = []
    while (message := ours.receive()) is not None and message["kind"] == "progress":
        found.append(message["bytes"])
    ours.close()
    theirs.close()
    assert found == [0, 7, 16, 9, 9]


def test_room_that_is_made_tells_of_its_reads(tmp_path: Path) -> None:
    """Nothing goes before a newer step was read back, at a bounded rate."""
    workers, told = Workers(plan_of(tmp_path)), Told()
    committer = Committer(workers.plan, Told())
    for number in range(1, 6):
        nbytes = committer.commit(workers.held(number))
    committer.close(BOUND_S)
    care = CheckpointCare(workers.plan, told)

    care.make_room(nbytes, StagingName(6, 7, 1))

    care.close(BOUND_S)
    workers.close()
    assert len(told.being_written) > 5
