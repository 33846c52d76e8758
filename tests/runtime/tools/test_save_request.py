from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.runtime.cli.main import main
from holdfast.runtime.errors import NotSaved
from holdfast.runtime.run.journal import Journal, Record
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Listener
from holdfast.runtime.tools import save_request
from holdfast.runtime.tools.save_request import (
    LeaseHolder,
    Life,
    Saved,
    SaveWatch,
    life_of,
    order_save,
)

WORLD = {"event": "world", "now": 1.0}
LAUNCH = {"event": "launch", "now": 1.0}


def checkpoint(step: int, began: float, now: float) -> Record:
    return {"event": "checkpoint", "step": step, "now": now, "seconds": now - began}


def watch_of(*records: Record, asked: float | None = None) -> SaveWatch:
    watch = SaveWatch()
    watch.saw(WORLD)
    if asked is not None:
        watch.asked(asked)
    for record in records:
        watch.saw(record)
    return watch


def test_workers_are_asked_once_they_train() -> None:
    watch = SaveWatch()
    for record in ({"event": "job_started", "now": 0.0}, LAUNCH):
        watch.saw(record)
        assert not watch.needs_asking
    watch.saw(WORLD)
    assert watch.needs_asking
    watch.asked(2.0)
    assert not watch.needs_asking


def test_checkpoint_counts_if_it_was_begun_after_the_order() -> None:
    watch = watch_of(checkpoint(5, began=1.0, now=3.0), asked=2.0)
    assert watch.saved is None

    watch.saw(checkpoint(6, began=3.5, now=4.0))
    assert watch.saved == Saved(6, 2.0)


def test_checkpoint_of_the_local_directory_alone_is_no_answer() -> None:
    """It goes with its host."""
    local = {**checkpoint(6, began=3.5, now=4.0), "place": "local directory"}
    watch = watch_of(local, asked=2.0)
    assert watch.saved is None

    watch.saw(checkpoint(7, began=4.5, now=5.0))
    assert watch.saved == Saved(7, 3.0)


def test_new_launch_is_asked_again_and_the_first_order_counts() -> None:
    watch = watch_of(LAUNCH, WORLD, asked=2.0)
    assert watch.needs_asking

    watch.asked(9.0)
    watch.saw(checkpoint(6, began=9.5, now=10.0))
    assert watch.saved == Saved(6, 8.0)


def test_failed_save_is_asked_for_again_but_not_for_ever() -> None:
    watch = watch_of(asked=2.0)
    for number in range(3):
        assert watch.failure is None
        watch.saw({"event": "checkpoint_failed", "reason": f"full {number}", "now": 3.0})
        assert watch.needs_asking
        watch.asked(3.0)

    assert watch.failure == "full 2"


def test_failures_before_the_order_are_not_its_own() -> None:
    failed = {"event": "checkpoint_failed", "reason": "full", "now": 1.5}
    watch = watch_of(failed, failed, failed, failed)

    assert watch.failure is None


@pytest.mark.parametrize(("last_step", "saved"), [(7, Saved(7, 3.0)), (8, None)])
def test_end_of_the_job_serves_the_order_if_its_last_step_is_on_the_disk(
    last_step: int, saved: Saved | None
) -> None:
    watch = watch_of(
        checkpoint(7, began=1.0, now=2.5),
        {"event": "stopped", "step": last_step, "now": 4.0},
        {"event": "job_ended", "now": 5.0},
        asked=2.0,
    )

    assert watch.is_over
    assert watch.saved == saved


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    return directory


def own(directory: RunDirectory, pid: int, host: str | None = None) -> None:
    owner = {"host": host or os.uname().nodename, "pid": pid}
    directory.lease_path.write_text(json.dumps(owner))


def test_nobody_holds_a_directory_without_a_lease(directory: RunDirectory) -> None:
    with pytest.raises(NotSaved, match=r"no supervisor runs in .*/run; start the job"):
        LeaseHolder.find(directory)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"host": "a", "pid": "x"}'])
def test_unreadable_lease_names_nobody(directory: RunDirectory, content: str) -> None:
    directory.lease_path.write_text(content)

    with pytest.raises(NotSaved, match="no supervisor"):
        LeaseHolder.find(directory)


def test_process_that_does_not_have_the_lease_open_is_somebody_else(
    directory: RunDirectory,
) -> None:
    own(directory, os.getpid())

    with pytest.raises(NotSaved, match="no supervisor"):
        LeaseHolder.find(directory)


def test_other_host_is_named(directory: RunDirectory) -> None:
    own(directory, os.getpid(), host="elsewhere")

    with pytest.raises(NotSaved, match="belongs to host elsewhere"):
        LeaseHolder.find(directory)


def test_holder_is_found_by_its_lease(directory: RunDirectory) -> None:
    lease = directory.acquire_lease()
    try:
        with LeaseHolder.find(directory) as holder:
            assert not holder.has_ended(0.0)
            assert not holder.is_listening
    finally:
        lease.release()


def test_holder_that_takes_no_orders_is_not_asked(directory: RunDirectory) -> None:
    lease = directory.acquire_lease(takes_orders=False)
    try:
        with pytest.raises(NotSaved, match=f"belongs to pid {os.getpid()}, which takes no orders"):
            LeaseHolder.find(directory)
    finally:
        lease.release()


def test_orphaned_job_is_told_with_the_command_that_takes_it_over(directory: RunDirectory) -> None:
    lease = directory.acquire_lease()
    socket = directory.path / "agent.sock"
    lease.name_agent(socket)
    lease.release()
    listener = Listener(socket)
    try:
        with pytest.raises(NotSaved, match=r"its supervisor is gone; .* `holdfast attach .*/run`"):
            LeaseHolder.find(directory)
        assert life_of(directory) is Life.ORPHANED
    finally:
        listener.close()
    assert life_of(directory) is Life.GONE


def test_life_of_a_job_is_that_of_its_holder(directory: RunDirectory) -> None:
    assert life_of(directory) is Life.UNKNOWN
    lease = directory.acquire_lease()
    assert life_of(directory) is Life.SUPERVISED
    lease.release()
    assert life_of(directory) is Life.GONE
    own(directory, os.getpid(), host="elsewhere")
    assert life_of(directory) is Life.UNKNOWN


def test_supervisor_that_is_stopped_is_named(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_request, "is_stopped", lambda pid: pid == os.getpid())
    lease = directory.acquire_lease()
    try:
        with pytest.raises(NotSaved, match=rf"pid {os.getpid()}, is stopped; .*kill -CONT"):
            order_save(directory, timeout_s=0.1, is_waiting=True)
    finally:
        lease.release()


def test_job_without_a_journal_yet_is_waited_for(directory: RunDirectory) -> None:
    lease = directory.acquire_lease()
    try:
        with pytest.raises(NotSaved, match=r"not committed a checkpoint within 0\.1 s"):
            order_save(directory, timeout_s=0.1, is_waiting=True)
    finally:
        lease.release()


def test_full_disk_is_told_instead_of_a_wait_for_a_journal_that_cannot_tell(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_request, "_FULL_FOR_S", 0.0)
    monkeypatch.setattr(
        save_request.os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_bfree=0, f_blocks=9)
    )
    lease = directory.acquire_lease()
    try:
        with pytest.raises(NotSaved, match=r"the file system of .*/run is full, so neither"):
            order_save(directory, timeout_s=60.0, is_waiting=True)
    finally:
        lease.release()


SUPERVISOR = """
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
    command = [sys.executable, "-c", SUPERVISOR, str(directory.path)]
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
    with pytest.raises(SystemExit) as caught:
        main(["save", str(directory.path)])

    assert caught.value.code == 0
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

    with pytest.raises(SystemExit) as caught:
        main(["save", str(directory.path)])

    assert caught.value.code == 75
    assert capsys.readouterr().err.startswith("holdfast: error: no supervisor runs in ")


def test_save_of_a_directory_that_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotSaved, match=r"/nosuch is no run: it is no directory"):
        order_save(RunDirectory(tmp_path / "nosuch"), timeout_s=1.0, is_waiting=True)
