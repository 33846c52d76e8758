"""What a worker says in a vote about the checkpoint in flight, and how many shards it has."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from configs import journal_of, without_faults, worker_config
from host_saves import RUN, begin_run, state_of
from hypothesis import given
from hypothesis import strategies as st
from local_communicator import LocalCommunicator
from simulation import STEPS, Launch, LazyExecutor, SimulatedJob, wait_for_nothing

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.event import CheckpointCommitted
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.saves import SaveTicket, WorkFailed
from holdfast.recovery.step import Bit, Outcome
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.data.samples import ArrayData
from holdfast.runtime.errors import StoppedEarly
from holdfast.runtime.exchange.membership import Communicator, Membership
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.saving.agent_saver import AgentSaver, PendingSave
from holdfast.runtime.saving.plan import SaveRequest
from holdfast.runtime.saving.save_memory import BUFFERS, SaveMemory
from holdfast.runtime.saving.save_messages import AskMemory, PartCopied
from holdfast.runtime.saving.saver import (
    LARGEST_FILE_BYTES,
    MAX_FAILURES,
    MOST_THREADS,
    WORTH_A_FILE_BYTES,
    Saver,
    shard_count,
)
from holdfast.runtime.system.channel import FDS, MessageKinds
from holdfast.runtime.system.worker_status import RequestFlag, WorkerStatus
from holdfast.runtime.training.training_job import TrainingRequest, describe_job
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords

BOUND_S = 60.0
MIB = 2**20


class FailingSave(PendingSave):
    """A save that fails as soon as it was looked at a number of times."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    @property
    def is_done(self) -> bool:
        return self._has_failed()

    @property
    def failure(self) -> BaseException | None:
        return OSError("the disk is full") if self._has_failed() else None

    def _has_failed(self) -> bool:
        self._looks -= 1
        return self._looks < 0


class Way:
    """Begins the saves that a test gives it; an error is raised instead, and the last one stays."""

    def __init__(self, *saves: FailingSave | Exception) -> None:
        self.saves = [*saves]

    def prepare(self, *_arguments: object, **_named: object) -> None: ...

    def keep_only(self, attempt: int) -> None: ...

    def close(self) -> None: ...

    def begin(self, request: SaveRequest, state: Tensors) -> PendingSave:
        found = self.saves[0]
        del self.saves[: len(self.saves) > 1]
        if isinstance(found, Exception):
            raise found
        return found


class SavingWorker:
    """One worker of a world, and what its agent hears of it and gives it."""

    def __init__(
        self, config: WorkerConfig, world: tuple[int, ...] = (0,), way: Way | None = None
    ) -> None:
        begin_run(config.options.run_dir, config.record.run_id)
        self.told: list[dict[str, Any]] = []
        self.page, self._journal = WorkerStatus.create(), journal_of(config)
        communicator: Communicator = LocalCommunicator()
        context = WorkerContext(
            config,
            communicator,
            self._journal,
            self.page,
            without_faults(config),
            self._hear,
            self._give,
        )
        self.lacks = False
        """Whether its messages meet a lack of descriptors."""
        self.memory = SaveMemory(lambda: ())
        self.way = way or Way()
        self.membership = Membership(
            config.worker, World(1, tuple(map(WorkerId, world)), 1), communicator, lambda: 0.0
        )
        samples = ArrayData(np.zeros((4, 1), np.float32), np.zeros(4, np.float32))
        request = TrainingRequest(samples, None, global_batch=2, epochs=1)
        job = describe_job(request, config, Numerics.here(threads=1))
        records = LoopRecords(context, self.membership)
        self.saver = Saver(
            context, self.membership, job.work_plan, job.save_terms, records, cast(Any, way)
        )

    @property
    def kinds(self) -> list[str]:
        return [told["kind"] for told in self.told if told["kind"] != CheckpointCommitted.__name__]

    @property
    def tickets(self) -> list[SaveTicket]:
        """The saves of which it has copied its part."""
        kinds = MessageKinds[PartCopied](PartCopied)
        return [kinds.decode(told).ticket for told in self.told if told in kinds]

    def close(self) -> None:
        self.saver.close()
        self._journal.close()
        self.page.close()
        self.memory.close()

    def _hear(self, told: dict[str, Any], fds: Sequence[int] = ()) -> None:
        if self.lacks:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.told.append(told)

    def _give(self, question: dict[str, Any]) -> dict[str, Any]:
        self.told.append(question)
        asked = MessageKinds[AskMemory](AskMemory).decode(question)
        buffers, _ = self.memory.buffers(1, asked)
        return {FDS: [os.dup(fd) for fd in buffers.fds]}


Make = Callable[..., SavingWorker]


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[Make]:
    """Return what makes a worker whose saves are these."""
    made: list[SavingWorker] = []

    def make(*saves: FailingSave | Exception) -> SavingWorker:
        made.append(SavingWorker(worker_config(run_dir=tmp_path), way=Way(*saves)))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[SavingWorker]:
    """Return the last of three workers, which lives on another host than the first two."""
    config = worker_config(2, (0, 1, 2), run_dir=tmp_path, run_id=RUN, hosts=("a", "a", "b"))
    worker = SavingWorker(config, (0, 1, 2))
    yield worker
    worker.close()


def begin(saver: Saver) -> None:
    """Begin a save in the next world, or in the same one."""
    saver.prepare(lambda: state_of(1))
    saver.begin(Cursor.start(1), lambda: state_of(1))
    saver.before_sum()


def test_worker_of_another_host_saves_its_part_of_the_share_of_that_host(
    far: SavingWorker,
) -> None:
    begin(far.saver)

    assert far.kinds == ["AskMemory", "PlanSaves", "PartCopied"]
    assert (far.told[1]["share"], far.told[1]["hosts"]) == (1, 2)
    assert (far.told[2]["share"], far.tickets) == (1, [SaveTicket(1, 1, 0, 1, hosts=2)])
    assert far.saver.bits() == Bit.INTACT
    far.page.answer_save(1, is_durable=True)
    assert far.saver.bits() == Bit.SETTLED | Bit.INTACT
    far.saver.hear(_agreed(far.saver.bits()))
    assert (far.saver.is_busy, far.saver.saved_step) == (False, 0)


def test_worker_that_is_left_alone_saves_all_in_memory_of_its_own(far: SavingWorker) -> None:
    """What its host holds of the world before is not answered, and nobody waits for it here."""
    begin(far.saver)
    far.told.clear()

    far.membership.world = far.membership.world.shrunk_to([WorkerId(2)])
    far.saver.world_changed()
    assert far.saver.has_lost(Cursor.start(1))
    begin(far.saver)

    assert far.kinds == ["AskMemory", "PlanSaves", "PartCopied"]
    assert (far.told[1]["share"], far.told[1]["hosts"]) == (0, 1)
    generation = far.membership.world.generation
    assert far.tickets == [SaveTicket(1, generation, 0, 2, hosts=1)]
    assert far.saver.bits() == Bit.INTACT


def test_save_after_a_durable_one_takes_the_same_memory_and_one_after_a_failure_the_other(
    tmp_path: Path,
) -> None:
    """What the disk could not take stays in memory, for the end of all workers."""
    worker = SavingWorker(worker_config(run_dir=tmp_path, run_id=RUN))
    for step, is_durable in enumerate((True, True, False, True, True)):
        cursor = replace(Cursor.start(1), step=step)
        worker.saver.begin(cursor, lambda: state_of(1))
        worker.saver.before_sum()
        worker.page.answer_save(worker.tickets[-1].attempt, is_durable=is_durable)
        worker.saver.hear(_agreed(worker.saver.bits()))
        assert not worker.saver.is_busy

    assert [ticket.attempt % BUFFERS for ticket in worker.tickets] == [1, 1, 1, 0, 0]
    (buffers,) = worker.memory.kept
    assert os.fstat(buffers.fds[1]).st_blocks == 0
    worker.close()


@pytest.mark.parametrize("looks", range(5))
def test_save_that_fails_while_it_is_looked_at_is_never_said_to_be_whole(
    saving: Make, looks: int
) -> None:
    saver = saving(FailingSave(looks)).saver
    saver.begin(Cursor.start(1), lambda: {"a": np.zeros(3)})

    bits = saver.bits()

    assert bits != Bit.SETTLED | Bit.INTACT


def test_failure_that_not_all_have_heard_of_ends_no_save(saving: Make) -> None:
    """Its memory may still be read, and all must begin the next one together."""
    saver = saving(FailingSave(looks=0)).saver
    saver.begin(Cursor.start(1), lambda: {"a": np.zeros(3)})

    saver.hear(_agreed(saver.bits() & Bit.INTACT))

    assert saver.is_busy


class DigestedSave(FailingSave):
    """A save whose state is digested until the agent sees that no peer can help with that."""

    def __init__(self, page: WorkerStatus) -> None:
        super().__init__(looks=1_000_000)
        self._page = page
        self.has_begun = threading.Event()
        self.is_seen_to_need_no_peer = False

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        self.has_begun.wait(BOUND_S)
        deadline = time.monotonic() + 10.0
        while self._page.turn[1] and time.monotonic() < deadline:
            time.sleep(0.001)
        self.is_seen_to_need_no_peer = not self._page.turn[1]


def test_worker_that_digests_a_large_state_is_not_said_to_wait_for_its_peers(
    saving: Make,
) -> None:
    worker = saving(FailingSave(looks=0))
    saver, page = worker.saver, worker.page
    save = DigestedSave(page)
    worker.way.saves = [save]
    page.begin_turn(waits_for_peers=True)
    saver.begin(Cursor.start(1), lambda: {"a": np.zeros(3)})
    assert page.turn[1]

    save.has_begun.set()
    saver.before_sum()

    assert save.is_seen_to_need_no_peer
    assert page.turn[1]


def test_request_of_a_user_outlives_the_death_that_cuts_off_its_save(
    saving: Make,
) -> None:
    saver = saving(FailingSave(looks=9)).saver
    saver.want(replace(_agreed(Bit(0)), is_save_wanted=True))
    saver.begin(Cursor.start(1), lambda: {"a": np.zeros(3)})
    assert saver.serves_requests
    saver.world_changed()
    saver.begin(Cursor.start(1), lambda: {"a": np.zeros(3)})

    assert not saver.serves_requests, "it may be there already, from before the next request"


def test_failure_is_told_and_the_last_step_is_tried_a_few_times(
    saving: Make,
) -> None:
    saver = saving(*(FailingSave(looks=0) for _ in range(MAX_FAILURES))).saver
    for _ in range(MAX_FAILURES):
        saver.give_up_if_hopeless(Cursor.start(1))
        saver.begin(Cursor.start(1), lambda: {"a": np.zeros(3)})
        saver.hear(_agreed(saver.bits()))

    with pytest.raises(StoppedEarly, match="could not be written"):
        saver.give_up_if_hopeless(Cursor.start(1))


def _agreed(save: Bit) -> Outcome:
    return Outcome(
        is_yes=True,
        is_finite=True,
        is_save_wanted=False,
        is_stop_wanted=False,
        save=save,
    )


@pytest.mark.parametrize("lacks", [False, True])
@pytest.mark.parametrize(
    ("error", "reason"), [(OSError("no memory"), "no memory"), (MemoryError(), "MemoryError")]
)
def test_worker_that_cannot_copy_fails_the_save_and_trains_on(
    saving: Make, tmp_path: Path, error: Exception, reason: str, *, lacks: bool
) -> None:
    """The head tells the reason, and one that cannot be told stands in the journal."""
    worker, state = saving(error, FailingSave(looks=9)), {"a": np.zeros(3)}
    saver, worker.lacks = worker.saver, lacks
    assert saver.begin(Cursor.start(1), lambda: state)
    assert saver.bits() == Bit.SETTLED
    worker.lacks = False
    saver.hear(_agreed(saver.bits()))

    assert not saver.is_busy
    failures = MessageKinds[WorkFailed](WorkFailed)
    told = [failures.decode(told).reason for told in worker.told if told in failures]
    journal = (tmp_path / "journal.jsonl").read_text().splitlines()
    failed = [r["reason"] for r in map(json.loads, journal) if r["event"] == "checkpoint_failed"]
    assert (told, failed) == (([], [reason]) if lacks else ([reason], []))
    assert saver.begin(Cursor.start(1), lambda: state)


def ask_within_first_copy(patch: pytest.MonkeyPatch, asked: tuple[int, ...]) -> None:
    """Let the agent ask these ranks once, while they copy the state of the first save."""
    begin = AgentSaver.begin
    waiting = set(asked)

    def asking_begin(way: AgentSaver, request: SaveRequest, state: Tensors) -> PendingSave:
        if request.part.part in waiting:
            waiting.remove(request.part.part)
            way._context.page.ask(RequestFlag.SAVE)
        return begin(way, request, state)

    patch.setattr(AgentSaver, "begin", asking_begin)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize(("workers", "asked"), [(1, (0,)), (3, (2,)), (3, (0, 1, 2))])
def test_request_that_comes_during_the_copy_leads_to_another_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, asked: tuple[int, ...]
) -> None:
    """The save in hand was begun before it, so it is no answer."""
    wait_for_nothing(monkeypatch)
    monkeypatch.setattr(LazyExecutor, "patience", (0,))
    ask_within_first_copy(monkeypatch, asked)
    job = SimulatedJob(tmp_path / "run")

    endings = job.launch(
        Launch(workers, workers, 4, asks=RequestFlag.SAVE, asks_at_step=1, save_every=100)
    )

    assert len(set(endings)) == 1, "all workers have taken part in the same saves"
    first, second, last = (record["step"] for record in job.journal("checkpoint"))
    assert first < second < last == STEPS, "one for each request, and the last one"


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, 1),
        (1, 1),
        (64 * MIB, 1),
        (64 * MIB + 1, 2),
        (256 * MIB, 4),
        (16 * 1024 * MIB, 4),
        (16 * 1024 * MIB + 1, 5),
        (100 * 1024 * MIB, 25),
    ],
)
def test_larger_state_has_more_shards(nbytes: int, expected: int) -> None:
    assert shard_count(nbytes, 1) == expected
    assert shard_count(nbytes, 3, 7) == 7, "the user has the last word"


@given(st.integers(0, 2**45), st.integers(1, 100))
def test_file_is_worth_its_name_and_never_too_large(nbytes: int, hosts: int) -> None:
    count = shard_count(nbytes, hosts)

    assert count >= 1
    assert nbytes / count <= LARGEST_FILE_BYTES
    assert count < hosts or count % hosts == 0, "all hosts have as many"
    if count > hosts:
        assert nbytes / count > WORTH_A_FILE_BYTES / 4
    elif count > 1:
        assert nbytes / count > WORTH_A_FILE_BYTES / 2
    if count > MOST_THREADS * hosts:
        assert nbytes / (count - hosts) > LARGEST_FILE_BYTES / 2
