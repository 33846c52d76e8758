"""What an agent says of its workers: from their pages, whether they live or not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pytest

from holdfast.runtime.run.progress import (
    StepReport,
    WorkerReport,
    describe,
    newest_of,
    short_report,
    slowest_phase,
)
from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase

REPORT = StepReport(
    now=9.5, step=31, steps=600, epoch=1, epochs=10, step_of_epoch=31, steps_per_epoch=60
)
FARTHEST_FIRST = (
    Phase.LEAVING, Phase.FAILED, Phase.CONCLUDING, Phase.REPAIRING, Phase.SAVING, Phase.TRAINING,
    Phase.COMPILING, Phase.RESTORING, Phase.JOINING, Phase.STARTING,
)  # fmt: skip


@dataclasses.dataclass
class Hosted:
    worker: int
    page: HeartbeatPage
    pid: int | None = None
    place: str = ""


@pytest.fixture
def hosted() -> Iterator[list[Hosted]]:
    hosted = [Hosted(worker, HeartbeatPage.create()) for worker in range(2)]
    yield hosted
    for one in hosted:
        one.page.close()


def test_worker_is_described_by_its_page(hosted: list[Hosted]) -> None:
    one = hosted[1]
    one.page.phase, one.page.generation = Phase.SAVING, 3
    one.page.commit(7)
    one.pid = os.getpid()

    one.place = "stall (train.py:7)"

    fields = describe(one, 0.12345, 12.3456)

    assert (describe(one, 0.1)["standing_s"], describe(one, 0.1)["where"]) == (None, "")
    assert fields.pop("resident_bytes") > 1 << 20
    assert fields == {
        "worker": 1, "pid": os.getpid(), "phase": "saving", "step": 7, "generation": 3,
        "silent_s": 0.123, "standing_s": 12.346, "where": "stall (train.py:7)",
    }  # fmt: skip


def test_worker_without_a_process_has_neither_memory_nor_a_heartbeat(hosted: list[Hosted]) -> None:
    fields = describe(hosted[0], None)

    assert (fields["pid"], fields["resident_bytes"], fields["silent_s"]) == (None, None, None)
    assert (fields["phase"], fields["step"]) == ("starting", 0)


def test_worker_of_a_message_is_the_one_that_was_described(hosted: list[Hosted]) -> None:
    found = WorkerReport.of(describe(hosted[1], 2.0))

    assert found == WorkerReport(1, None, "starting", 0, 0, None, 2.0)


@pytest.mark.parametrize("fields", [None, {}, {"worker": 1}, [], "worker", 7], ids=repr)
def test_worker_that_makes_no_sense_is_none(fields: object) -> None:
    assert WorkerReport.of(fields) is None


def test_field_that_this_version_does_not_know_makes_a_worker_none(hosted: list[Hosted]) -> None:
    assert WorkerReport.of(describe(hosted[0], None) | {"colour": "blue"}) is None


@pytest.mark.parametrize(
    ("near", "far"),
    list(zip(FARTHEST_FIRST[1:], FARTHEST_FIRST, strict=False)),
    ids=[phase.label for phase in FARTHEST_FIRST[1:]],
)
def test_phase_of_a_host_is_that_of_the_worker_that_has_come_least_far(
    near: Phase, far: Phase, hosted: list[Hosted]
) -> None:
    """All phases are in the table, so a new one needs its place in the order."""
    assert set(FARTHEST_FIRST) == set(Phase)
    for pair in ((near, far), (far, near)):
        for one, phase in zip(hosted, pair, strict=True):
            one.page.phase = phase

        assert slowest_phase(hosted) == near.label


def test_word_of_a_worker_that_has_died_still_counts(hosted: list[Hosted]) -> None:
    hosted[0].page.tell_progress(REPORT.encode())
    hosted[0].pid, hosted[1].pid = None, os.getpid()

    report = short_report(hosted)

    assert (report["progress"], report["workers"]) == (REPORT.to_json(), 1)


def test_word_is_the_newest_by_its_moment_and_not_by_its_step(hosted: list[Hosted]) -> None:
    """A relaunch takes the step back, and the page of the first launch may still be there."""
    back = dataclasses.replace(REPORT, now=20.0, step=16)
    hosted[0].page.tell_progress(REPORT.encode())
    hosted[1].page.tell_progress(back.encode())

    assert newest_of(one.page for one in hosted) == back


def test_host_without_workers_says_as_much() -> None:
    assert short_report([]) == {"progress": None, "workers": 0, "phase": None}
