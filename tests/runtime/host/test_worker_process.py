"""The process of a worker on its host: how it begins, what it is killed for, and its end."""

from __future__ import annotations

import os
import select
import subprocess
from array import array
from collections.abc import Iterator

import pytest
from configs import worker_config

from holdfast.recovery.event import WorkInHand
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import LetLeave
from holdfast.runtime.host.pool_process import LetBegin
from holdfast.runtime.host.worker_process import WorkerProcess
from holdfast.runtime.system.channel import FDS, Channel, to_message
from holdfast.runtime.system.worker_status import Phase

BOUND_S = 90.0


@pytest.fixture
def hosted() -> Iterator[WorkerProcess]:
    made = WorkerProcess(worker_config(7, (4, 7), generation=3))
    yield made
    made.close()
    made.page.close()
    os.close(made.stdout_fd)
    os.close(made.stderr_fd)


def _their_end(hosted: WorkerProcess) -> Channel:
    return Channel.adopt(os.dup(hosted.their_fds[0]))


@pytest.mark.parametrize(
    ("has_left", "limit", "status", "is_clean"),
    [
        (True, None, 0, True),
        (True, None, 1, False),
        (False, None, 0, False),
        (False, "leaving", -9, True),  # it has done its work
    ],
)
def test_end_is_clean_only_if_the_worker_has_left_and_then_ended_well_or_did_not_end(
    hosted: WorkerProcess, limit: str | None, status: int, *, has_left: bool, is_clean: bool
) -> None:
    hosted.has_left, hosted.limit = has_left, limit

    assert hosted.exit_event(status, "").is_clean is is_clean


def test_end_has_the_evidence_that_the_page_holds(hosted: WorkerProcess) -> None:
    hosted.page.phase = Phase.SAVING
    hosted.page.commit(40)
    hosted.page.begin_work(41, 2, array("q", [5, 17]).tobytes(), is_validation=False)

    event = hosted.exit_event(-9, "signal SIGKILL")

    assert (event.step, event.phase, event.generation) == (40, "saving", 3)
    assert event.samples == WorkInHand(41, 2, 2, (5, 17), is_validation=False)
    assert (event.limit, event.fenced, event.collateral) == (None, False, False)
    assert (event.stderr, event.core) == ((), None)


@pytest.mark.parametrize("limit", ["heartbeat", "stall", "failed", None])
def test_fenced_worker_is_no_victim_of_others_and_one_that_was_killed_with_them_is(
    hosted: WorkerProcess, limit: str | None
) -> None:
    hosted.kill("the first reason", limit)
    hosted.kill("guard lost")

    event = hosted.write_off()

    assert event.cause.startswith("the first reason; process None does not end")
    is_fenced = limit is not None
    assert (event.limit, event.fenced) == (limit or "unkillable", is_fenced)
    assert event.collateral is not is_fenced


def test_worker_begins_where_its_guard_stands_and_with_the_ranks_environment(
    hosted: WorkerProcess,
) -> None:
    read, write = os.pipe()

    begin = LetBegin(3, WorkerId(7), {"RANK": "1"}, "/work")
    hosted.let_begin(begin, (write,))

    worker = _their_end(hosted)
    (line,) = worker.drain()
    (connection,) = line.pop(FDS)
    assert line == to_message(begin)
    hosted.close()
    hosted.answer(LetLeave(3))  # one that is gone needs none
    os.write(connection, b"from the rank")
    os.close(connection)
    assert os.read(read, 100) + os.read(read, 100) == b"from the rank"  # no end is left open
    os.close(read)
    worker.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "why", "status", "cause"),
    [
        ("exit 0", None, 0, "exit 0 without leaving"),
        ("exit 7", None, 7, "exit 7"),
        ("kill -KILL $$", None, -9, "signal SIGKILL"),
        ("sleep 600", "guard lost", -9, "guard lost"),
    ],
    ids=["leaves nobody", "fails", "is killed by a stranger", "is killed by its agent"],
)
def test_end_of_a_process_is_told_with_its_cause(
    hosted: WorkerProcess, script: str, why: str | None, status: int, cause: str
) -> None:
    if why is not None:
        hosted.kill(why)  # before there is a process
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)

    end = hosted.join_process(process.pid)
    assert select.select([end], [], [], BOUND_S)[0]
    event = hosted.reap()

    process.returncode = status  # the agent has waited for it
    assert (event.cause, event.is_clean) == (cause, False)
    assert event.peak_bytes > 0
    assert isinstance(event.core, int)
