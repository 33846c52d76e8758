"""Who owns a run directory, in words, and how its owner is asked for a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import NotSaved
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.channel import Listener
from holdfast.runtime.system.signals import SAVE_SIGNAL
from holdfast.runtime.tools.save_request import LeaseHolder, Life, find_life

NOBODY = (1 << 22) + 1
"""Linux gives no process so high a number."""


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "my run")
    directory.prepare()
    return directory


@pytest.fixture
def lease(directory: RunDirectory) -> Iterator[Lease]:
    """The lease, held by this process."""
    lease = directory.acquire_lease()
    yield lease
    lease.release()


def write_lease(run: RunDirectory, pid: int, **fields: Any) -> None:
    owner = {"host": os.uname().nodename, "pid": pid, **fields}
    run.lease_path.write_text(json.dumps(owner))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_supervisor_that_holds_the_lease_needs_no_words(
    directory: RunDirectory, lease: Lease
) -> None:
    assert find_life(directory) == (Life.SUPERVISED, "")


def test_job_whose_supervisor_has_ended_is_gone(directory: RunDirectory) -> None:
    write_lease(directory, NOBODY)

    assert find_life(directory) == (
        Life.GONE,
        f"no supervisor runs in {directory.path}; start the job with `holdfast run`",
    )


@pytest.mark.parametrize("takes_orders", [True, False])
def test_job_that_has_said_its_end_is_neither_lost_nor_alive(
    directory: RunDirectory, *, takes_orders: bool
) -> None:
    """Its journal may have lost it, on a full disk; `holdfast repair` takes no orders."""
    lease = directory.acquire_lease(takes_orders=takes_orders)
    lease.end()
    lease.release()

    assert find_life(directory)[0] is Life.ENDED


def test_script_without_a_supervisor_is_alone_while_it_holds_the_lease(
    directory: RunDirectory,
) -> None:
    lease = directory.acquire_lease(takes_orders=False)
    held = find_life(directory)
    lease.release()

    assert held == (
        Life.ALONE,
        f"{directory.path} belongs to pid {os.getpid()}, which takes no orders; "
        "only a job of `holdfast run` does",
    )


def test_ranks_that_have_lost_the_first_one_are_not_called_gone(directory: RunDirectory) -> None:
    """The others of an MPI job that nobody supervises may go on: the lease names only one."""
    write_lease(directory, NOBODY, takes_orders=False)

    assert find_life(directory)[0] is Life.UNKNOWN


def test_command_that_takes_a_job_over_can_be_pasted(
    directory: RunDirectory, tmp_path: Path
) -> None:
    listener = Listener(tmp_path / "agent.sock")
    write_lease(directory, NOBODY, agent=str(listener.path))

    life, words = find_life(directory)
    listener.close()

    assert life is Life.ORPHANED
    assert f"take it over with `holdfast attach '{directory.path}'`, then ask again" in words


def test_socket_that_nobody_listens_at_is_no_agent(directory: RunDirectory, tmp_path: Path) -> None:
    write_lease(directory, NOBODY, agent=str(tmp_path / "agent.sock"))

    assert find_life(directory)[0] is Life.GONE


def test_lease_of_another_host_is_told_with_both_names(directory: RunDirectory) -> None:
    write_lease(directory, os.getpid(), host="elsewhere")

    assert find_life(directory) == (
        Life.UNKNOWN,
        f"{directory.path} belongs to host elsewhere, this is {os.uname().nodename}; ask there",
    )


def test_copied_lease_does_not_make_its_process_the_owner_of_the_copy(
    directory: RunDirectory, lease: Lease, tmp_path: Path
) -> None:
    copy = RunDirectory(tmp_path / "copy")
    copy.prepare()
    copy.lease_path.write_bytes(directory.lease_path.read_bytes())

    assert find_life(directory)[0] is Life.SUPERVISED
    assert find_life(copy) == (
        Life.ELSEWHERE,
        f"{copy.path} was moved or copied, and its job (pid {os.getpid()}) works in "
        f"{directory.path}; ask there",
    )
    lease.release()
    assert find_life(copy)[0] is Life.GONE


def test_directory_that_was_moved_names_the_one_its_run_goes_on_in(
    directory: RunDirectory, lease: Lease, tmp_path: Path
) -> None:
    run = RunRecord("run", FORMAT, 0.0, microbatches=4, seed=0, threads=1)
    directory.create_record(run)
    moved = RunDirectory(directory.path.rename(tmp_path / "moved"))
    write_lease(moved, NOBODY, directory=str(directory.path))
    before = find_life(moved)[0]
    directory.prepare()
    directory.create_record(dataclasses.replace(run, run_id="another run"))
    beside_another_run = find_life(moved)[0]
    directory.record_path.unlink()

    directory.create_record(run)

    assert (before, beside_another_run) == (Life.GONE, Life.GONE)
    assert find_life(moved) == (
        Life.ELSEWHERE,
        f"{moved.path} was moved or copied from {directory.path}, which holds its run as well; "
        "ask there",
    )


@pytest.mark.parametrize("takes_orders", [True, False])
def test_search_leaves_no_descriptor_open(directory: RunDirectory, *, takes_orders: bool) -> None:
    lease = directory.acquire_lease(takes_orders=takes_orders)
    before = open_descriptors()

    find_life(directory)
    while_held = open_descriptors()
    lease.release()
    find_life(directory)  # the process lives, and holds the lease no more

    assert (while_held, open_descriptors()) == (before, before - 1)


def test_holder_listens_once_it_has_set_up_its_signal_and_gets_the_order(
    directory: RunDirectory, lease: Lease
) -> None:
    orders: list[int] = []

    with LeaseHolder.find(directory) as holder:
        deaf = holder.is_listening
        before = signal.signal(SAVE_SIGNAL, lambda number, _: orders.append(number))
        try:
            hears = holder.is_listening
            holder.ask_to_save()
        finally:
            signal.signal(SAVE_SIGNAL, before)

    assert (deaf, hears) == (False, True)
    assert orders == [SAVE_SIGNAL]


def test_holder_that_runs_has_neither_ended_nor_stopped(
    directory: RunDirectory, lease: Lease
) -> None:
    with LeaseHolder.find(directory) as holder:
        assert not holder.has_ended(0.0)
        assert holder.stopped_pid is None


@pytest.mark.parametrize(
    "owner", [{}, {"host": "h"}, {"pid": 1}, {"host": "h", "pid": None}, [1], "x"], ids=str
)
def test_lease_that_names_no_process_is_nobodys(directory: RunDirectory, owner: object) -> None:
    directory.lease_path.write_text(json.dumps(owner))

    with pytest.raises(NotSaved, match=r"no supervisor runs in .*; start the job with"):
        LeaseHolder.find(directory)
