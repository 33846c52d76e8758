"""Memory that is still being written for an earlier save is not copied into."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from agents import Agent, Host
from host_saves import LAUNCH, STEP, state_of
from host_writer import RunningWriter

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.image import ShardImage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving import own_way
from holdfast.runtime.saving.agent_way import AgentWay
from holdfast.runtime.saving.memory_check import MemoryCheck
from holdfast.runtime.saving.own_way import MemoryInUse, OwnWay, PendingSave
from holdfast.runtime.saving.plan import SaveRequest

BOUND_S = 60.0


class SlowDisk:
    """A disk whose writes wait until it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_writing, self._go = threading.Event(), threading.Event()
        plain = LocalFileSystem.write

        def write(files: LocalFileSystem, *words: Any) -> int:
            self.is_writing.set()
            self._go.wait(BOUND_S)
            return plain(files, *words)

        patch.setattr(LocalFileSystem, "write", write)

    def wait(self) -> None:
        assert self.is_writing.wait(BOUND_S)

    def go(self) -> None:
        self._go.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    found = SlowDisk(monkeypatch)
    yield found
    found.go()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "run").mkdir()
    found = Host(tmp_path / "run")
    yield found
    found.close()


def begun(way: AgentWay | OwnWay, step: int, attempt: int) -> PendingSave:
    request = SaveRequest(LAUNCH, step, attempt, 0, 1, {"epoch": step}, 0.0)
    return way.begin(request, state_of(step))


def copied(agent: Agent, step: int, attempt: int) -> dict[str, Any]:
    begun(agent.way, step, attempt).hand_over(state_of(step), "00")
    return cast(dict[str, Any], agent.copied[-1])


def assert_whole(run_dir: Path, *steps: int) -> None:
    store = CheckpointStore(run_dir)
    assert store.steps() == steps
    for step in steps:
        store.scan(step).verify()


def test_worker_does_not_copy_over_a_save_that_takes_longer_than_it_waits(
    host: Host, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_way, "FREE_WITHIN_S", 0.01)
    host.buffers = 1
    agent, writer = host.agent(), RunningWriter()
    agent.way.prepare(host.plan, 0, 1, generation=LAUNCH)
    first = copied(agent, STEP, 1)
    writer.use(host.memories[host.plan.layout_id])
    writer.tell(first)
    disk.wait()

    for attempt in (2, 3):
        with pytest.raises(MemoryInUse, match="is still being written to the disk after"):
            begun(agent.way, STEP + 1, attempt)
    disk.go()

    assert writer.answer()["kind"] == "saved"
    assert_whole(host.run_dir, STEP)
    agent.page.answer_save(1, is_durable=True)
    writer.tell(copied(agent, STEP + 1, 4))  # nobody will ever answer attempts 2 and 3
    assert writer.answer()["kind"] == "saved"
    assert_whole(host.run_dir, STEP + 1, STEP)
    writer.close()


def test_worker_without_an_agent_does_not_copy_over_a_save_that_hangs(
    host: Host, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_way, "FREE_WITHIN_S", 0.01)
    agent = host.agent()
    way = OwnWay(agent.way._context)
    way.prepare(host.plan, 0, 1, generation=LAUNCH)
    saves = []
    for attempt in (1, 2):
        save = begun(way, STEP + attempt, attempt)
        save.hand_over(state_of(STEP + attempt), "00")
        save.compared()
        saves.append(save)
    disk.wait()

    for attempt in (3, 4):
        with pytest.raises(MemoryInUse, match="is still being written to the disk"):
            begun(way, STEP + attempt, attempt)
    disk.go()

    for save in saves:
        save.wait(BOUND_S)
        assert (save.is_done, save.failure) == (True, None)
    assert_whole(host.run_dir, STEP + 2, STEP + 1)
    way.close()


def test_worker_without_an_agent_waits_for_its_memory(host: Host, disk: SlowDisk) -> None:
    """Survivors of deaths save again at once, and their last save must not fail for it."""
    agent = host.agent()
    way = OwnWay(agent.way._context)
    way.prepare(host.plan, 0, 1, generation=LAUNCH)
    let_go = threading.Timer(0.05, disk.go)
    let_go.start()

    for attempt in (1, 2, 3):
        save = begun(way, STEP + attempt, attempt)
        save.hand_over(state_of(STEP + attempt), "00")
        save.compared()

    save.wait(BOUND_S)
    assert (save.is_done, save.failure) == (True, None)
    assert_whole(host.run_dir, STEP + 3, STEP + 2, STEP + 1)
    let_go.join()
    way.close()


@pytest.mark.parametrize("is_own", [False, True])
def test_lack_of_memory_for_digests_fails_the_save_and_not_the_worker(
    host: Host, monkeypatch: pytest.MonkeyPatch, *, is_own: bool
) -> None:
    def lack(*_: object) -> NoReturn:
        raise MemoryError

    agent = host.agent()
    way = OwnWay(agent.way._context) if is_own else agent.way
    way.prepare(host.plan, 0, 1, generation=LAUNCH)
    save = begun(way, STEP, 1)
    monkeypatch.setattr(ShardImage, "piece_digest", lack)
    page = SimpleNamespace(needing_no_peer=contextlib.nullcontext)
    member = SimpleNamespace(communicator=SimpleNamespace(size=1))
    check = MemoryCheck(cast(Any, SimpleNamespace(page=page)), cast(Any, member), cast(Any, None))
    check.take(STEP, state_of(STEP), then=save.hand_over)

    check.compare()
    save.compared()

    assert save.is_done
    assert isinstance(save.failure, MemoryError)
    assert agent.copied == []
    assert CheckpointStore(host.run_dir).steps() == ()
