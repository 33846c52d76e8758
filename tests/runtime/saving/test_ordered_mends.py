"""With an agent the host's writer mends; what outlived the workers is read out of memory."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_saves import plan_of
from host_writer import RunningWriter
from mirrored_run import WRITERS, flip_a_byte, mirrored_run, shard, there
from resumed_run import Run, Weights

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import ImageFileSystem, ImageMap, share_of
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import Holders, MendResult, mend_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.recovery.ledger import Cursor
from holdfast.runtime.saving import ordered_mends
from holdfast.runtime.saving import writer as writer_module
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.mending import Mender
from holdfast.runtime.system.own_process import sealed_memory
from holdfast.runtime.training.callback_host import Alone
from holdfast.runtime.training.job_state import JobState

STEP = 30


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return mirrored_run(tmp_path, monkeypatch)


@pytest.fixture
def writer(run: Run) -> Iterator[RunningWriter]:
    """Return a writer that has no plan yet, as after the death of the one before."""
    writer = RunningWriter()
    asking = threading.Lock()

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        with asking:
            return writer.ask(**question)

    run.ask_agent = ask
    yield writer
    writer.close()


@pytest.mark.parametrize("ranks", [1, 3])
def test_writer_mends_before_any_plan_and_tells_it(
    run: Run, writer: RunningWriter, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    flip_a_byte(run.store, shard(1), 5000)
    changed_by: set[int | None] = set()
    rename = LocalFileSystem.rename_noreplace

    def noted(files: LocalFileSystem, source: Path, target: Path) -> None:
        changed_by.add(run.rank_of(threading.get_ident()))
        rename(files, source, target)

    monkeypatch.setattr(LocalFileSystem, "rename_noreplace", noted)

    assert run.restore(ranks) == [(20, 2.0)] * ranks

    (mended,) = writer.recorded("mended")
    assert (mended["taken"], mended["holder"]) == (1, str(run.second_holder))
    assert [text for text in writer.notices if "was mended" in text]
    assert changed_by == {None}, "no worker has changed a name"
    assert writer.being_written, "the agent knows that it works"


def test_step_that_only_the_mirror_has_is_put_in_place_by_the_writer(
    run: Run, writer: RunningWriter
) -> None:
    run.save(30, 3.0, WRITERS)
    (run.directory / "checkpoints/step-000000000030").rename(
        there(run).directory / "step-000000000030"
    )

    assert run.restore(2) == [(30, 3.0)] * 2
    assert [record["step"] for record in writer.recorded("mended")] == [30]


def test_what_the_writer_cannot_mend_it_tells_and_all_go_on_from_the_older_step(
    run: Run, writer: RunningWriter
) -> None:
    for store in (run.store, there(run)):
        flip_a_byte(store, shard(1), 5000)

    assert run.restore(2) == [(10, 1.0)] * 2
    (failed,) = writer.recorded("mend_failed")
    assert "neither holder has" in failed["reason"]


def test_writer_that_dies_while_it_mends_costs_one_step_and_a_line(
    run: Run, writer: RunningWriter
) -> None:
    flip_a_byte(run.store, shard(1), 5000)
    alive = run.ask_agent
    assert alive is not None

    def die(question: dict[str, Any]) -> dict[str, Any]:
        if question["kind"] != "mend":
            return alive(question)
        reason = "the process that writes snapshots has died"
        return {"kind": "mended", "step": None, "result": None, "reason": reason}

    run.ask_agent = die

    assert run.restore(2) == [(10, 1.0)] * 2
    (failed,) = run.journal("mend_failed")
    assert (failed["step"], failed["holder"]) == (20, "the host's writer")
    assert "has died" in failed["reason"]


def test_care_of_the_launch_before_ends_before_a_mend(
    run: Run, writer: RunningWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the staging of older generations, and a mend stages an old step."""
    done: list[str] = []
    close, mend = Committer.close, Mender.mend

    def closing(committer: Committer, within_s: float) -> None:
        close(committer, within_s)
        done.append("closed")

    def mending(mender: Mender, step: int) -> object:
        done.append("mends")
        return mend(mender, step)

    monkeypatch.setattr(Committer, "close", closing)
    monkeypatch.setattr(writer_module.Mender, "mend", mending)
    writer.plan(plan_of(run.directory))
    flip_a_byte(run.store, shard(1), 5000)

    assert run.restore(1) == [(20, 2.0)]

    assert done == ["closed", "mends"]


class Agent:
    """An agent that keeps the snapshots of one step, and answers as the real one does."""

    def __init__(self, memory_run: Run, fill: float, writers: int) -> None:
        self._run = memory_run
        state = JobState(Weights(fill), Alone()).tensors(Cursor.start(1))
        layout, header = ShardLayout(specs_of(state), writers), Header("run", 1, STEP)
        self._map = ImageMap.of(layout)
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
        cursor = dict(memory_run.job.identity) | {"step": STEP}
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
            text = self.manifest.encode().decode()
            where = {"bases": self._map.bases, "pid": os.getpid(), "fd": self.fd}
            return {"step": STEP, "manifest": text, **where}
        here = self._run.store
        files = ImageFileSystem(here.directory, self.manifest, self._images)
        there = CheckpointStore(self._run.directory, files)
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


@pytest.fixture
def memory_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    found = Run(tmp_path / "run")
    monkeypatch.setattr(
        "holdfast.runtime.training.restoring._numerics_of", lambda _: found.numerics
    )
    return found


@pytest.fixture
def agent(memory_run: Run) -> Iterator[Agent]:
    memory_run.save(10, 1.0, writers=2)
    agent = Agent(memory_run, 3.0, writers=4)
    memory_run.ask_agent = agent.answer
    yield agent
    agent.close()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_step_that_only_memory_has_is_put_on_the_disk_and_restored(
    memory_run: Run, agent: Agent, ranks: int
) -> None:
    assert memory_run.restore(ranks) == [(STEP, 3.0)] * ranks
    assert memory_run.store.steps() == (STEP, 10)
    assert [r["on_disk"] for r in memory_run.journal("restored")] == [True]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_step_that_the_disk_cannot_take_is_read_from_memory(
    memory_run: Run, agent: Agent, ranks: int
) -> None:
    agent.has_room = False

    assert memory_run.restore(ranks) == [(STEP, 3.0)] * ranks
    assert memory_run.store.steps() == (10,)
    assert [r["on_disk"] for r in memory_run.journal("restored")] == [False]
    (failed,) = memory_run.journal("mend_failed")
    assert failed["holder"] == "the host's writer"
    assert "the disk is full" in failed["reason"]


def other_agent(question: dict[str, object]) -> dict[str, Any]:
    """Answer as the agent of a host that keeps an older save, in memory of its own."""
    assert question["kind"] == "keeps", "its writer has not what is restored"
    return {"kind": "kept", "step": 10}


@pytest.mark.parametrize("hosts", ["aab", "abb", "abab"])
@pytest.mark.parametrize("has_room", [True, False], ids=["the disk takes it", "the disk is full"])
def test_memory_of_the_first_host_is_read_there_alone_and_all_restore_the_same(
    memory_run: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch, hosts: str, *, has_room: bool
) -> None:
    agent.has_room = has_room
    memory_run.hosts, memory_run.ask_other_agent = tuple(hosts), other_agent
    mapped_by: set[int | None] = set()
    mapped = ordered_mends._map

    def noting(step: int, path: Path) -> memoryview:
        mapped_by.add(memory_run.rank_of(threading.get_ident()))
        return mapped(step, path)

    monkeypatch.setattr(ordered_mends, "_map", noting)

    assert memory_run.restore(len(hosts)) == [(STEP, 3.0)] * len(hosts)

    near = {rank for rank, host in enumerate(hosts) if host == "a"}
    assert mapped_by == (set() if has_room else near)


def test_memory_of_the_first_host_that_has_changed_sends_those_of_all_hosts_to_the_older_step(
    memory_run: Run, agent: Agent
) -> None:
    agent.has_room = False
    agent.flip(3)
    memory_run.hosts, memory_run.ask_other_agent = tuple("aabb"), other_agent

    assert memory_run.restore(4) == [(10, 1.0)] * 4


def test_damaged_step_is_mended_from_memory(memory_run: Run, agent: Agent) -> None:
    directory = memory_run.save(STEP, 3.0, writers=4)
    shard = sorted(directory.glob("*.h5"))[2]
    shard.write_bytes(shard.read_bytes()[:-1])

    assert memory_run.restore(4) == [(STEP, 3.0)] * 4
    (mended,) = agent.mended
    assert mended.taken == 1


def test_memory_that_has_changed_sends_all_to_the_older_step(memory_run: Run, agent: Agent) -> None:
    agent.has_room = False
    agent.flip(3)

    assert memory_run.restore(4) == [(10, 1.0)] * 4
    (reason,) = memory_run.reasons()
    assert "in shard 3 have a wrong digest" in reason


def test_memory_that_is_gone_sends_all_to_the_older_step(memory_run: Run, agent: Agent) -> None:
    agent.has_room = False
    os.close(agent.fd)
    agent.fd = os.open(os.devnull, os.O_RDONLY)

    assert memory_run.restore(2) == [(10, 1.0)] * 2
    (reason,) = memory_run.reasons()
    assert "its snapshots cannot be mapped" in reason


def test_memory_that_has_changed_before_the_first_checkpoint_lets_all_start_over(
    memory_run: Run, agent: Agent
) -> None:
    """Nothing was ever saved: there is nothing that starting over could give up."""
    shutil.rmtree(memory_run.store.directory)
    agent.has_room = False
    agent.flip(3)

    assert memory_run.restore(2) == [None, None]
    assert len(memory_run.reasons()) == 1


def test_mend_that_a_dead_worker_has_asked_for_comes_to_its_end(
    memory_run: Run, agent: Agent
) -> None:
    """The agent's writer is still at it, and answers the next one that asks after it."""
    agent.has_room = False
    step = memory_run.save(STEP, 3.0, writers=4)
    staged = step.rename(step.with_name(f".tmp-{STEP:012d}-g1-a1"))

    def finish_and_answer(question: dict[str, object]) -> dict[str, Any]:
        if not step.exists():
            staged.rename(step)
        return agent.answer(question)

    memory_run.ask_agent = finish_and_answer

    assert memory_run.restore(1) == [(STEP, 3.0)]
    assert [r["on_disk"] for r in memory_run.journal("restored")] == [True]


def test_older_step_is_no_business_of_the_memory(memory_run: Run, agent: Agent) -> None:
    """The user is not told that the memory lacks a step that it cannot have."""
    memory_run.save(40, 4.0, writers=2)
    shutil.rmtree(memory_run.store.directory / "step-000000000030", ignore_errors=True)

    assert memory_run.restore(2) == [(40, 4.0)] * 2
    assert memory_run.notices == []
