"""What is known of a worker, wherever it lives: what it has told, its guard, and its end."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import Down, KillWorker
from holdfast.runtime.host.hosted_worker import (
    GuardHello,
    GuardLink,
    HostedWorker,
    describe,
    short_report,
)
from holdfast.runtime.run.progress import LaunchReport, StepReport, WorkerReport
from holdfast.runtime.system.channel import pair
from holdfast.runtime.system.worker_status import HaltedSaveEnded, HaltOrder, Phase, WorkerStatus

WORD = StepReport(
    now=9.5, step=31, steps=600, epoch=1, epochs=10, step_of_epoch=31, steps_per_epoch=60,
    metrics={"loss": 0.5}, next_save_step=100,
)  # fmt: skip
FARTHEST_FIRST = (
    Phase.LEAVING, Phase.FAILED, Phase.CONCLUDING, Phase.REPAIRING, Phase.SAVING, Phase.TRAINING,
    Phase.COMPILING, Phase.RESTORING, Phase.JOINING, Phase.STARTING,
)  # fmt: skip


class FakeHost:
    """The worker's host, which keeps what it is told."""

    name = ""
    unheard_s = leased_s = 0.0

    def __init__(self) -> None:
        self.told: list[Down] = []

    def post(self, message: Down, fds: Sequence[int] = ()) -> None:
        self.told.append(message)

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        return WorkerStatus.mirror()


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def hosted(host: FakeHost) -> Iterator[HostedWorker]:
    made = HostedWorker(WorkerId(7), 3, host)
    yield made
    made.close()


def test_word_on_an_order_to_a_halted_worker_that_was_replaced_is_not_kept(
    hosted: HostedWorker,
) -> None:
    hosted.page.order_halted(HaltOrder(5))

    hosted.note(HaltedSaveEnded(hosted.worker, 4, ""))
    assert hosted.halt_failure is None
    hosted.note(HaltedSaveEnded(hosted.worker, 5, "the disk is full"))

    assert hosted.halt_failure == "the disk is full"


class FakeGuard(GuardLink):
    """A guard whose end is noted."""

    def __init__(self) -> None:
        ours, self.theirs = pair()
        super().__init__(ours, None)
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True


def test_guard_dies_after_its_worker_has_been_killed_on_its_host(
    hosted: HostedWorker, host: FakeHost
) -> None:
    """MPI would else tell of the death of a worker that still sends."""
    guard = FakeGuard()
    hosted.guard = guard

    hosted.kill("fenced", "stall")
    hosted.kill("another reason")
    assert host.told == [
        KillWorker(3, WorkerId(7), "fenced", "stall"),
        KillWorker(3, WorkerId(7), "another reason"),
    ]
    assert hosted.is_condemned
    assert not guard.is_killed

    hosted.was_killed("fenced")

    assert guard.is_killed
    guard.theirs.close()


def test_rank_is_taken_from_the_guard_on_unless_no_process_will_ever_run(
    hosted: HostedWorker,
) -> None:
    ours, theirs = pair()
    assert not hosted.occupies_a_rank

    hosted.guard = GuardLink(ours, None)
    assert hosted.occupies_a_rank
    hosted.kill("killed with its launch")

    assert not hosted.occupies_a_rank
    hosted.pid = 4711  # it was forked meanwhile, and takes its rank until it has ended
    assert hosted.occupies_a_rank
    theirs.close()


def test_guard_that_is_turned_away_keeps_no_connection_open() -> None:
    read, write = os.pipe()

    GuardHello(0, 1, "/", {}, (write,)).close()

    assert os.read(read, 1) == b""
    os.close(read)


@pytest.fixture
def both(host: FakeHost) -> Iterator[list[HostedWorker]]:
    both = [HostedWorker(WorkerId(worker), 3, host, "node2") for worker in range(2)]
    yield both
    for one in both:
        one.close()


def test_worker_is_described_by_its_page_and_what_its_host_has_told(
    both: list[HostedWorker],
) -> None:
    one = both[1]
    one.page.phase, one.page.generation = Phase.SAVING, 3
    one.page.commit(7)
    one.pid, one.place = 4711, "stall (train.py:7)"
    one.resident_bytes, one.silent_s = 4096, 0.12345

    found = describe(one, 12.3456)

    where = "stall (train.py:7)"
    assert found == WorkerReport(1, 4711, "saving", 7, 3, 4096, 0.123, 12.346, where, "node2", {})
    assert (describe(one, None).standing_s, describe(one, None).where) == (None, "")
    assert describe(both[0], None) == WorkerReport(
        0, None, "starting", 0, 0, None, None, host="node2"
    )


def test_phase_of_a_host_is_that_of_the_worker_that_has_come_least_far(
    both: list[HostedWorker],
) -> None:
    """All phases are in the table, so a new one needs its place in the order."""
    assert set(FARTHEST_FIRST) == set(Phase)
    for far, near in pairwise(FARTHEST_FIRST):
        for phases in ((near, far), (far, near)):
            for one, phase in zip(both, phases, strict=True):
                one.page.phase = phase
            assert short_report(both).phase == near.label


def test_word_is_the_newest_by_its_moment_and_not_by_its_step_also_of_a_dead_worker(
    both: list[HostedWorker],
) -> None:
    """A relaunch takes the step back, and the page of the first launch may still be there."""
    pages = [one.page for one in both]
    both[1].pid = os.getpid()
    back = dataclasses.replace(WORD, now=20.0, step=16)
    assert short_report(both) == LaunchReport(None, 1, "starting")
    assert short_report([]) == LaunchReport()
    found = [short_report(both).progress]
    for content in (b"{}", back.encode()):
        pages[0].tell_progress(WORD.encode())
        pages[1].tell_progress(content)
        found.append(short_report(both).progress)

    assert found == [None, WORD, back]
