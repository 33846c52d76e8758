"""An order to save finds its supervisor by the lease, and its answer in the journal."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import holdfast_code
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.errors import NotSaved
from holdfast.runtime.run.journal import Journal, Record
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.channel import Listener
from holdfast.runtime.system.signals import SAVE_SIGNAL
from holdfast.runtime.tools import save_request
from holdfast.runtime.tools.save_request import (
    LeaseHolder,
    Life,
    Saved,
    SaveWatch,
    find_life,
    life_of,
    order_save,
)

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
    "content",
    [None, "", "{}", "[1]", '"x"', '{"host": "h"}', '{"pid": 1}', '{"host": "h", "pid": null}'],
    ids=str,
)
def test_lease_that_names_no_process_is_nobodys(
    directory: RunDirectory, content: str | None
) -> None:
    if content is not None:
        directory.lease_path.write_text(content)

    with pytest.raises(NotSaved, match=r"no supervisor runs in .*; start the job with"):
        LeaseHolder.find(directory)


def record(event: str, now: float = 1.0, **fields: object) -> Record:
    return {"event": event, "now": now, **fields}


def checkpoint(step: int, began: float, now: float) -> Record:
    return record("checkpoint", now, step=step, seconds=now - began)


def watch_after(*records: Record) -> SaveWatch:
    watch = SaveWatch()
    for one in records:
        watch.saw(one)
    return watch


def watch_of(*records: Record, asked: float | None = None) -> SaveWatch:
    watch = SaveWatch()
    watch.saw(record("world"))
    if asked is not None:
        watch.asked(asked)
    for one in records:
        watch.saw(one)
    return watch


@pytest.mark.parametrize(
    ("event", "fields"),
    [("world", {}), ("step", {}), ("epoch", {}), ("checkpoint", {"step": 1, "seconds": 0.5})],
)
def test_any_sign_of_training_shows_workers_to_ask(event: str, fields: dict[str, float]) -> None:
    """The journal is read near its end, so the record of the world may lie further up."""
    assert watch_after(record("launch"), record(event, **fields)).needs_asking


@pytest.mark.parametrize("event", ["restored", "warning", "failure", "checkpoint_skipped"])
def test_other_events_show_no_workers(event: str) -> None:
    assert not watch_after(record("launch"), record(event, step=1)).needs_asking


@pytest.mark.parametrize("event", ["job_started", "launch", "job_ended"])
def test_workers_of_an_earlier_launch_are_not_asked(event: str) -> None:
    assert not watch_after(record("world"), record(event)).needs_asking


@pytest.mark.parametrize("event", ["job_started", "launch"])
def test_job_that_begins_is_not_over(event: str) -> None:
    ended = watch_after(record("world"), record("job_ended"))

    assert ended.is_over
    ended.saw(record(event))
    assert not ended.is_over


@pytest.mark.parametrize(("began", "is_saved"), [(1.75, False), (2.0, True), (2.25, True)])
def test_checkpoint_holds_the_step_only_if_it_began_at_the_order_or_later(
    began: float, *, is_saved: bool
) -> None:
    watch = watch_of(asked=2.0)

    watch.saw(checkpoint(5, began, 3.0))

    assert watch.saved == (Saved(5, 1.0) if is_saved else None)


def test_checkpoint_that_nobody_has_asked_for_is_no_answer() -> None:
    assert watch_after(record("world"), checkpoint(5, 1.0, 3.0)).saved is None


def test_last_checkpoint_of_a_job_serves_nobody_who_has_not_asked() -> None:
    watch = watch_after(
        record("world"), checkpoint(7, 1.0, 2.0), record("completed", step=7), record("job_ended")
    )

    assert (watch.saved, watch.is_over) == (None, True)


@pytest.mark.parametrize("event", ["completed", "stopped"])
def test_end_at_the_step_of_an_older_checkpoint_is_an_answer(event: str) -> None:
    watch = watch_after(record("world"), checkpoint(6, 0.5, 1.0), checkpoint(7, 1.0, 1.5))
    watch.asked(2.0)

    watch.saw(record(event, 4.0, step=7))
    watch.saw(record("job_ended", 5.0))

    assert watch.saved == Saved(7, 3.0)


WORKER, SUPERVISOR = "worker 0", "supervisor"


def ended_at(step: int, *, source: str = WORKER) -> Record:
    return record("completed", 2.0, step=step, source=source)


BEFORE = {
    "stopped job": [record("stopped", step=7), record("job_ended"), record("job_started")],
    "completed job": [ended_at(7), record("job_ended"), record("job_started")],
    "dead launch": [ended_at(7), record("launch")],
    "earlier training": [ended_at(7)],
    "earlier training of a slow supervisor": [
        ended_at(7, source=SUPERVISOR),
        ended_at(7),
        record("world"),
        ended_at(7, source=SUPERVISOR),
    ],
}


@pytest.mark.parametrize("before", BEFORE)
def test_end_at_its_last_checkpoint_is_that_of_the_training_that_was_asked(before: str) -> None:
    watch = watch_after(record("world"), checkpoint(7, 0.5, 1.0), *BEFORE[before])
    if before != "earlier training of a slow supervisor":
        watch.saw(record("world"))
    watch.asked(3.0)

    watch.saw(record("step", 4.0, step=8))
    watch.saw(record("job_ended", 5.0))

    assert (watch.saved, watch.is_over) == (None, True)


def test_job_that_stops_where_the_last_one_did_has_its_checkpoint() -> None:
    watch = watch_after(
        record("world"), checkpoint(7, 0.5, 1.0), record("stopped", step=7), record("job_ended")
    )
    for event in ("job_started", "launch", "world"):
        watch.saw(record(event))
    watch.asked(3.0)

    watch.saw(record("stopped", 4.0, step=7))
    watch.saw(record("job_ended", 5.0))

    assert watch.saved == Saved(7, 2.0)


@pytest.mark.parametrize(("drained", "saved"), [(7, Saved(7, 3.0)), (6, None)])
def test_last_step_of_the_local_directory_is_an_answer_once_it_has_drained(
    drained: int, saved: Saved | None
) -> None:
    local = [{**checkpoint(step, 0.5, 1.0), "place": "local directory"} for step in (6, 7)]
    watch = watch_after(record("world"), *local)
    watch.asked(2.0)

    watch.saw(record("drained", 3.0, step=drained))
    watch.saw(record("stopped", 4.0, step=7))
    watch.saw(record("job_ended", 5.0))

    assert watch.saved == saved


def test_end_without_any_checkpoint_is_no_answer() -> None:
    watch = watch_of(asked=2.0)

    watch.saw(record("job_ended", 5.0))

    assert (watch.saved, watch.is_over) == (None, True)


_EVENTS = st.sampled_from(["world", "step", "launch", "job_started", "checkpoint", "job_ended"])


@given(st.lists(_EVENTS, max_size=12), st.integers(0, 12))
def test_answer_is_never_older_than_the_order(events: list[str], asked_before: int) -> None:
    """Each record is a second after the one before, and each save takes one and a half."""
    watch, asked_at = SaveWatch(), asked_before - 0.25

    for now, event in enumerate(events):
        if now == asked_before:
            watch.asked(asked_at)
        watch.saw(record(event, float(now), step=now, seconds=1.5))

    begun = [now - 1.5 for now, event in enumerate(events) if event == "checkpoint"]
    assert (watch.saved is not None) == any(moment >= asked_at for moment in begun)
    assert watch.saved is None or watch.saved.seconds >= 0.0


def test_workers_are_asked_once_they_train() -> None:
    watch = SaveWatch()
    for event in ("job_started", "launch"):
        watch.saw(record(event))
        assert not watch.needs_asking
    watch.saw(record("world"))
    assert watch.needs_asking
    watch.asked(2.0)
    assert not watch.needs_asking


def test_checkpoint_of_the_local_directory_alone_is_no_answer() -> None:
    """It goes with its host."""
    local = {**checkpoint(6, began=3.5, now=4.0), "place": "local directory"}
    watch = watch_of(local, asked=2.0)
    assert watch.saved is None

    watch.saw(checkpoint(7, began=4.5, now=5.0))
    assert watch.saved == Saved(7, 3.0)


def test_new_launch_is_asked_again_and_the_first_order_counts() -> None:
    watch = watch_of(record("launch"), record("world"), asked=2.0)
    assert watch.needs_asking

    watch.asked(9.0)
    watch.saw(checkpoint(6, began=9.5, now=10.0))
    assert watch.saved == Saved(6, 8.0)


def test_failed_save_is_asked_for_again_but_not_for_ever() -> None:
    watch = watch_of(asked=2.0)
    for number in range(3):
        assert watch.failure is None
        watch.saw(record("checkpoint_failed", 3.0, reason=f"full {number}"))
        assert watch.needs_asking
        watch.asked(3.0)

    assert watch.failure == "full 2"


def test_failures_before_the_order_are_not_its_own() -> None:
    failed = record("checkpoint_failed", 1.5, reason="full")
    watch = watch_of(failed, failed, failed, failed)

    assert watch.failure is None


@pytest.mark.parametrize(("last_step", "saved"), [(7, Saved(7, 3.0)), (8, None)])
def test_end_of_the_job_serves_the_order_if_its_last_step_is_on_the_disk(
    last_step: int, saved: Saved | None
) -> None:
    watch = watch_of(
        checkpoint(7, began=1.0, now=2.5),
        record("stopped", 4.0, step=last_step),
        record("job_ended", 5.0),
        asked=2.0,
    )

    assert watch.is_over
    assert watch.saved == saved


def test_life_of_a_job_is_that_of_its_holder(directory: RunDirectory) -> None:
    assert life_of(directory) is Life.UNKNOWN
    lease = directory.acquire_lease()
    assert life_of(directory) is Life.SUPERVISED
    lease.release()
    assert life_of(directory) is Life.GONE
    write_lease(directory, os.getpid(), host="elsewhere")
    assert life_of(directory) is Life.UNKNOWN


def test_supervisor_that_is_stopped_is_named(
    directory: RunDirectory, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_request, "is_stopped", lambda pid: pid == os.getpid())
    with pytest.raises(NotSaved, match=rf"pid {os.getpid()}, is stopped; .*kill -CONT"):
        order_save(directory, timeout_s=0.1, is_waiting=True)


def test_job_without_a_journal_yet_is_waited_for(directory: RunDirectory, lease: Lease) -> None:
    with pytest.raises(NotSaved, match=r"not committed a checkpoint within 0\.1 s"):
        order_save(directory, timeout_s=0.1, is_waiting=True)


def test_full_disk_is_told_instead_of_a_wait_for_a_journal_that_cannot_tell(
    directory: RunDirectory, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_request, "_FULL_FOR_S", 0.0)
    monkeypatch.setattr(
        save_request.os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_bfree=0, f_blocks=9)
    )
    with pytest.raises(NotSaved, match=r"the file system of .*/my run is full, so neither"):
        order_save(directory, timeout_s=60.0, is_waiting=True)


PROGRAM = """
import os, signal, sys
from pathlib import Path
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Listener

directory = RunDirectory(Path(sys.argv[1]))
lease = directory.acquire_lease()
journal = Journal(directory.journal_path, run_id="r", source="supervisor")
asked = []
def save(*_):
    asked.append(1)
    if len(asked) == 1:
        journal.record("launch")
        journal.record("world")
    else:
        journal.record("checkpoint", step=41 + len(asked), seconds=0.0)
signal.signal(signal.SIGRTMIN, save)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
journal.record("job_started")
journal.record("world")
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def supervisor(directory: RunDirectory) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease, loses its workers at the first order, and saves then."""
    command = [sys.executable, "-c", PROGRAM, str(directory.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.process
def test_order_is_carried_out(
    directory: RunDirectory,
    supervisor: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert holdfast_code("save", directory.path) == 0
    assert capsys.readouterr().out.startswith("saved step 43 in ")


@pytest.mark.process
def test_order_without_waiting_only_asks(
    directory: RunDirectory, supervisor: subprocess.Popen[str]
) -> None:
    assert order_save(directory, timeout_s=90.0, is_waiting=False) is None


@pytest.mark.process
def test_end_of_the_supervisor_ends_the_waiting(
    directory: RunDirectory, supervisor: subprocess.Popen[str]
) -> None:
    journal = Journal(directory.journal_path, run_id="r", source="test")
    journal.record("launch")  # nobody trains: the order has to wait
    journal.close()
    with LeaseHolder.find(directory) as holder:
        assert holder.is_listening
        supervisor.send_signal(signal.SIGTERM)
        assert holder.has_ended(90.0)
        holder.ask_to_save()  # reaches nobody, and says nothing

    with pytest.raises(NotSaved):
        order_save(directory, timeout_s=90.0, is_waiting=True)


@pytest.mark.process
def test_waiting_has_a_bound(directory: RunDirectory, supervisor: subprocess.Popen[str]) -> None:
    journal = Journal(directory.journal_path, run_id="r", source="test")
    journal.record("launch")
    journal.close()

    with pytest.raises(NotSaved, match=r"not committed a checkpoint within 0\.1 s"):
        order_save(directory, timeout_s=0.1, is_waiting=True)


def test_command_says_that_no_job_runs(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.record_path.touch()

    assert holdfast_code("save", directory.path) == 75
    assert capsys.readouterr().err.startswith("holdfast: error: no supervisor runs in ")


def test_save_of_a_directory_that_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotSaved, match=r"/nosuch is no run: it is no directory"):
        order_save(RunDirectory(tmp_path / "nosuch"), timeout_s=1.0, is_waiting=True)
