"""The head's part of saves: who is told what, when hosts and their writers tell something."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.recovery.event import CheckpointCommitted, WorkerExited
from holdfast.recovery.saves import (
    CommitSave,
    PartHeld,
    RemoveSave,
    SaveCommitted,
    SaveRemoved,
    SaveTicket,
    ShareWritten,
    WorkFailed,
    WriteShare,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.launch_saves import FailedSaves, LaunchSaves
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving.save_messages import Hurry, PlanSaves
from holdfast.runtime.system.worker_status import WorkerStatus

LAUNCH = 4
TICKET = SaveTicket(LAUNCH, LAUNCH, 30, 1, hosts=2)
END = WorkerExited(WorkerId(0), "killed")


class Launch:
    """Two hosts, a worker of this launch, and one of the launch before."""

    def __init__(self) -> None:
        self.head, self.other = (SimpleNamespace(name=name, posted=[]) for name in ("", "b"))
        for host in (self.head, self.other):
            host.post = host.posted.append
        self.told: list[Any] = []
        self.pages = {generation: WorkerStatus.create() for generation in (LAUNCH, LAUNCH - 1)}
        workers: Any = [SimpleNamespace(generation=g, page=page) for g, page in self.pages.items()]
        hosts: Any = [self.head, self.other]
        self.saves: Any = LaunchSaves(
            LAUNCH, self.told.append, lambda: hosts, lambda: workers, FailedSaves()
        )

    def hold(self) -> None:
        """Let both hosts hold their parts."""
        for share, host in enumerate([self.head, self.other]):
            cursor = None if share else "{}"
            held = PartHeld(TICKET, share, frozenset({"d"}), 1.0, cursor)
            self.saves.hear(host, held)

    @property
    def answered(self) -> list[int]:
        """The newest save that was answered, by launch."""
        return [max(page.durable_save, page.failed_save) for page in self.pages.values()]


@pytest.fixture
def launch() -> Iterator[Launch]:
    launch = Launch()
    yield launch
    for page in launch.pages.values():
        page.close()


def test_hosts_write_their_shares_the_first_one_commits_and_the_launch_hears_of_it(
    launch: Launch,
) -> None:
    launch.hold()
    for share, host in enumerate([launch.head, launch.other]):
        assert host.posted == [WriteShare(TICKET, share, host.name)]
        launch.saves.hear(host, ShareWritten(TICKET, share, (str(share),)))
    commit = launch.head.posted[-1]
    assert isinstance(commit, CommitSave)
    assert commit.records == (("0",), ("1",))

    launch.saves.hear(launch.head, SaveCommitted(TICKET))

    assert launch.answered == [1, 0]
    assert launch.pages[LAUNCH].durable_save == 1
    assert launch.told == []


@pytest.mark.parametrize("is_expected", [False, True])
def test_failure_is_told_unless_a_loss_explains_it(launch: Launch, *, is_expected: bool) -> None:
    launch.hold()
    launch.saves.hear(launch.head, ShareWritten(TICKET, 0, ()))
    if is_expected:
        launch.saves.lose_host(launch.other)
    else:
        launch.saves.hear(launch.other, WorkFailed(TICKET, 1, "bad block"))
    assert launch.head.posted[-1] == RemoveSave(TICKET)

    launch.saves.hear(launch.head, SaveRemoved(TICKET))

    assert (launch.answered, launch.pages[LAUNCH].failed_save) == ([1, 0], 1)
    if is_expected:
        assert launch.told == []
        return
    records, notice = launch.told
    assert isinstance(records, Records)
    (event,) = records.events
    assert (event.name, event.fields["step"], event.fields["reason"], records.source) == (
        "checkpoint_failed", 30, "bad block", "snapshot writer",
    )  # fmt: skip
    assert notice == Notice("the checkpoint of step 30 failed: bad block")


@pytest.mark.parametrize(
    ("origin", "generation", "is_passed_on"),
    [("other", LAUNCH, True), ("head", LAUNCH, False), ("other", LAUNCH - 1, False)],
)
def test_writer_of_the_head_has_the_plan_of_the_first_host(
    launch: Launch, origin: str, generation: int, *, is_passed_on: bool
) -> None:
    plan = PlanSaves(generation, "L", "{}", 0, 2)

    launch.saves.plan(getattr(launch, origin), plan)

    assert launch.head.posted == [plan] * is_passed_on
    assert launch.told == [plan] * (generation == LAUNCH)
    assert launch.other.posted == []


@pytest.mark.parametrize("is_urgent", [False, True])
def test_end_of_the_last_worker_is_told_when_what_is_in_memory_is_durable(
    launch: Launch, *, is_urgent: bool
) -> None:
    launch.hold()
    launch.saves.settle(END, is_urgent=is_urgent)
    assert launch.saves.is_settling
    assert all((Hurry() in host.posted) is is_urgent for host in (launch.head, launch.other))
    for share, host in enumerate([launch.head, launch.other]):
        launch.saves.hear(host, ShareWritten(TICKET, share, ()))
    assert launch.told == []

    launch.saves.hear(launch.head, SaveCommitted(TICKET))

    assert launch.told == [CheckpointCommitted(END.worker, 30), END]
    assert not launch.saves.is_settling


def test_reason_is_told_in_full_once_until_there_is_another_or_a_success() -> None:
    failed = FailedSaves()
    full = "cannot allocate /run/.tmp-000000000{0}-g1-a{1}/shard: No space left on device (ENOSPC)"

    told = [failed.sentence(10 * n, full.format(10 * n, n)) for n in (1, 2)]
    told.append(failed.sentence(30, "it is read-only"))
    told += [failed.succeeded(35) or "", failed.succeeded(36) or "nothing"]
    told.append(failed.sentence(40, "it is read-only"))

    assert told == [
        f"the checkpoint of step 10 failed: {full.format(10, 1)}",
        "the checkpoint of step 20 failed for the same reason",
        "the checkpoint of step 30 failed: it is read-only",
        "checkpoints are saved again, from step 35 on",
        "nothing",
        "the checkpoint of step 40 failed: it is read-only",
    ]
