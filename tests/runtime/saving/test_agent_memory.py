"""Snapshots that outlived their workers: a step is mended from them, or read out of memory."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from resumed_run import Run, Weights

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import ImageFileSystem, ImageMap, share_of
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import Holders, MendResult, mend_step
from holdfast.checkpoint.signature import KeyFile
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.recovery.ledger import Cursor
from holdfast.runtime.system.own_process import sealed_memory
from holdfast.runtime.training.companion import Alone
from holdfast.runtime.training.job_state import JobState

STEP = 30


class Agent:
    """An agent that keeps the snapshots of one step, and answers as the real one does."""

    def __init__(self, run: Run, fill: float, writers: int) -> None:
        self._run = run
        state = JobState(Weights(fill), Alone()).tensors(Cursor.start(1))
        layout, header = ShardLayout(specs_of(state), writers), Header("run", 1, STEP)
        self._map = ImageMap.of(layout, run.store.digest_kind)
        share = ShareImage(self._map, share_of(self._map, 0, 1), "run")
        self.memory = memoryview(bytearray(self._map.size))
        share.copy(self.memory, state, header)
        share.describe(self.memory, state, header)
        self.fd = sealed_memory("holdfast-test", self._map.size)
        os.pwrite(self.fd, self.memory, 0)
        records = [self._map.record(self.memory, index, header) for index in range(writers)]
        self._images = {
            index: self._map.image(self.memory, index, record.size)
            for index, record in enumerate(records)
        }
        cursor = dict(run.job.identity) | {"step": STEP}
        self.manifest = Manifest.assemble(
            layout, records, header=header, cursor=cursor, numerics={}
        )
        self.has_room = True
        self.mended: list[MendResult] = []

    def flip(self, index: int) -> None:
        place = self._map.bases[index] + 5000
        (byte,) = os.pread(self.fd, 1, place)
        os.pwrite(self.fd, bytes([byte ^ 8]), place)

    def answer(self, question: dict[str, object]) -> dict[str, Any]:
        if question["kind"] in ("keeps", "open"):
            text = self.manifest.encode(self._run.store.key).decode()
            where = {"bases": self._map.bases, "pid": os.getpid(), "fd": self.fd}
            return {"step": STEP, "manifest": text, **where}
        here = self._run.store
        files = ImageFileSystem(here.directory, self.manifest, self._images, here.key)
        there = CheckpointStore(self._run.directory, files, here.key)
        try:
            if not self.has_room:
                raise CheckpointError("the disk is full")
            result = mend_step(Holders(self._run.store, there), STEP, run_id="run")
            self.mended.append(result)
        except CheckpointError as error:
            return {"result": None, "reason": str(error)}
        return {"result": dataclasses.asdict(result), "reason": None}

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture(params=["plain", "signed"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    key_file = None
    if request.param == "signed":
        path = tmp_path / "key"
        path.write_bytes(bytes(range(32)))
        path.chmod(0o600)
        key_file = KeyFile.of(path)
    found = Run(tmp_path / "run", key_file)
    monkeypatch.setattr(
        "holdfast.runtime.training.restoring._numerics_of", lambda _: found.numerics
    )
    return found


@pytest.fixture
def agent(run: Run) -> Iterator[Agent]:
    run.save(10, 1.0, writers=2)
    agent = Agent(run, 3.0, writers=4)
    run.ask_agent = agent.answer
    yield agent
    agent.close()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_step_that_only_memory_has_is_put_on_the_disk_and_restored(
    run: Run, agent: Agent, ranks: int
) -> None:
    assert run.restore(ranks) == [(STEP, 3.0)] * ranks
    assert run.store.steps() == (STEP, 10)
    assert [r["on_disk"] for r in run.journal("restored")] == [True]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_step_that_the_disk_cannot_take_is_read_from_memory(
    run: Run, agent: Agent, ranks: int
) -> None:
    agent.has_room = False

    assert run.restore(ranks) == [(STEP, 3.0)] * ranks
    assert run.store.steps() == (10,)
    assert [r["on_disk"] for r in run.journal("restored")] == [False]
    (failed,) = run.journal("mend_failed")
    assert failed["holder"] == "the host's writer"
    assert "the disk is full" in failed["reason"]


def test_damaged_step_is_mended_from_memory(run: Run, agent: Agent) -> None:
    directory = run.save(STEP, 3.0, writers=4)
    shard = sorted(directory.glob("*.h5"))[2]
    shard.write_bytes(shard.read_bytes()[:-1])

    assert run.restore(4) == [(STEP, 3.0)] * 4
    (mended,) = agent.mended
    assert mended.taken == 1


def test_memory_that_has_changed_sends_all_to_the_older_step(run: Run, agent: Agent) -> None:
    agent.has_room = False
    agent.flip(3)

    assert run.restore(4) == [(10, 1.0)] * 4
    (reason,) = run.reasons()
    assert "in shard 3 have a wrong digest" in reason


def test_memory_that_is_gone_sends_all_to_the_older_step(run: Run, agent: Agent) -> None:
    agent.has_room = False
    os.close(agent.fd)
    agent.fd = os.open(os.devnull, os.O_RDONLY)

    assert run.restore(2) == [(10, 1.0)] * 2
    (reason,) = run.reasons()
    assert "its snapshots cannot be mapped" in reason


def test_memory_that_has_changed_before_the_first_checkpoint_lets_all_start_over(
    run: Run, agent: Agent
) -> None:
    """Nothing was ever saved: there is nothing that starting over could give up."""
    shutil.rmtree(run.store.directory)
    agent.has_room = False
    agent.flip(3)

    assert run.restore(2) == [None, None]
    assert len(run.reasons()) == 1


def test_mend_that_a_dead_worker_has_asked_for_comes_to_its_end(run: Run, agent: Agent) -> None:
    """The agent's writer is still at it, and answers the next one that asks after it."""
    agent.has_room = False
    step = run.save(STEP, 3.0, writers=4)
    staged = step.rename(step.with_name(f".tmp-{STEP:012d}-g1-a1"))

    def finish_and_answer(question: dict[str, object]) -> dict[str, Any]:
        if not step.exists():
            staged.rename(step)
        return agent.answer(question)

    run.ask_agent = finish_and_answer

    assert run.restore(1) == [(STEP, 3.0)]
    assert [r["on_disk"] for r in run.journal("restored")] == [True]


def test_older_step_is_no_business_of_the_memory(run: Run, agent: Agent) -> None:
    """The user is not told that the memory lacks a step that it cannot have."""
    run.save(40, 4.0, writers=2)
    shutil.rmtree(run.store.directory / "step-000000000030", ignore_errors=True)

    assert run.restore(2) == [(40, 4.0)] * 2
    assert run.notices == []
