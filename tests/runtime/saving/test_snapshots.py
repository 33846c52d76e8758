"""Snapshots on their way from a worker's memory to a checkpoint, without MPI."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs import without_faults, worker_config

from holdfast.checkpoint.disk.filesystem import LocalFileSystem
from holdfast.checkpoint.format.digest import DigestKind
from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.checkpoint.format.layout import ShardLayout, specs_of
from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.format.signature import Signature
from holdfast.checkpoint.store.reader import restore_newest
from holdfast.checkpoint.store.save import save
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep import mend as repair
from holdfast.checkpoint.upkeep.verification import verify_step
from holdfast.runtime.exchange.local_communicator import LocalCommunicator
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.saving import snapshot_place
from holdfast.runtime.saving.shard_writers import PendingShard, Shards
from holdfast.runtime.saving.snapshot import SavePlan, Snapshot
from holdfast.runtime.saving.snapshot_place import SnapshotMemory, SnapshotPlace, take_place
from holdfast.runtime.saving.snapshot_writer import SnapshotWriter
from holdfast.runtime.system.channel import FDS, Channel, Message, pair
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.watch.host_limits import HostLimits
from holdfast.runtime.watch.usage import Resource, Usage
from holdfast.runtime.worker.context import WorkerContext, journal_of

STATE = {"a": np.arange(9000, dtype=np.float32), "b": np.arange(5), "c": np.array(True)}
WRITERS = 2


def plan_of(step: int = 30, attempt: int = 1, writers: int = WRITERS) -> SavePlan:
    layout = ShardLayout(specs_of(STATE), writers)
    return SavePlan(Header("run", 7, step), attempt, layout, {"step": step}, {"threads": 1})


class Worker:
    """One worker's end: what it would hand to its agent, and the page with the answers."""

    def __init__(self, run_dir: Path, rank: int = 0, key_file: KeyFile | None = None) -> None:
        config = worker_config(
            rank,
            (0, 1),
            run_dir=run_dir,
            run_id="run",
            generation=7,
            microbatches=2,
            key_file=key_file,
        )
        self.rank = rank
        self.sent: list[Message] = []
        self.page, self._journal = HeartbeatPage.create(), journal_of(config)
        injector = without_faults(config)
        context = WorkerContext(
            config,
            LocalCommunicator(),
            self._journal,
            self.page,
            injector,
            lambda report: None,
            send_snapshot=self._send,
        )
        self._thread = ThreadPoolExecutor(1)
        self.shards = Shards(context, context.open_store(), self._thread)

    def begin(
        self, plan: SavePlan, digest: str = "00", seconds: tuple[int, ...] = ()
    ) -> PendingShard:
        shard = self.shards.begin(plan, (self.rank, *seconds), STATE)
        shard.hand_over(STATE, digest)
        return shard

    def close(self) -> None:
        self._thread.shutdown()
        for message in self.sent:
            os.close(message[FDS][0])
        self.page.close()
        self._journal.close()

    def _send(self, message: dict[str, Any], fds: Any) -> None:
        wire = json.loads(json.dumps(message))
        self.sent.append({**wire, "launch": 7, FDS: [os.dup(fd) for fd in fds]})


class Writer:
    """A snapshot writer in a thread, and the agent's end of its connection."""

    def __init__(self) -> None:
        self.channel, theirs = pair()
        self._thread = threading.Thread(target=self._run, args=(theirs,))
        self._thread.start()

    def write(self, worker: Worker, which: int = -1) -> Message:
        """Hand one of a worker's snapshots over, the newest if not told; return the answer."""
        message = worker.sent[which]
        self.channel.send({k: v for k, v in message.items() if k != FDS}, message[FDS])
        return self._answer()

    def settle(self) -> int | None:
        self.channel.send({"kind": "settle"})
        answer = self._answer()
        assert answer["kind"] == "settled"
        step: int | None = answer["step"]
        return step

    def mend(self, step: int) -> Message:
        self.channel.send({"kind": "mend", "step": step})
        return self._answer()

    def kept(self) -> int | None:
        self.channel.send({"kind": "keeps"})
        step: int | None = self._answer()["step"]
        return step

    def close(self) -> None:
        self.channel.close()
        self._thread.join()

    def _answer(self) -> Message:
        answer = self.channel.receive()
        assert answer is not None
        return answer

    @staticmethod
    def _run(channel: Channel) -> None:
        SnapshotWriter(channel).run()
        channel.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    both = [Worker(tmp_path, rank) for rank in range(WRITERS)]
    yield both
    for worker in both:
        worker.close()


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.close()


def restored_step(run_dir: Path) -> int | None:
    restored, rejections = restore_newest(CheckpointStore(run_dir), run_id="run")
    assert rejections == ()
    if restored is None:
        return None
    for name, tensor in STATE.items():
        assert restored.state[name].tobytes() == tensor.tobytes()
    return restored.manifest.step


def flip_a_bit(message: Message) -> None:
    """Change one bit of a snapshot's first tensor in memory."""
    (fd,) = message[FDS]
    offset = message["record"]["pieces"][0]["offset"] + 17
    (byte,) = os.pread(fd, 1, offset)
    os.pwrite(fd, bytes([byte ^ 16]), offset)


def test_snapshot_survives_its_way_as_json(workers: list[Worker], tmp_path: Path) -> None:
    workers[1].begin(plan_of())

    snapshot = Snapshot.of(workers[1].sent[0])

    assert snapshot.run_dir == tmp_path
    assert snapshot.plan == plan_of()
    assert snapshot.record.index == 1


def test_two_buffers_take_turns_and_others_see_what_is_in_them() -> None:
    memory = SnapshotMemory(5000)
    descriptors = []
    for turn in range(4):
        fd, contents = memory.next()
        descriptors.append(fd)
        contents[:] = bytes([turn]) * 5000
        assert os.pread(fd, 6000, 0) == bytes([turn]) * 5000
    memory.close()

    assert descriptors[0] != descriptors[1]
    assert descriptors[:2] == descriptors[2:]


def test_complete_snapshots_of_dead_workers_become_a_checkpoint(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    for worker in workers:
        worker.begin(plan_of())
        assert writer.write(worker)["kind"] == "durable"
    assert restored_step(tmp_path) is None

    assert writer.settle() == 30

    assert restored_step(tmp_path) == 30
    (record,) = [r for r in read_journal(tmp_path / "journal.jsonl") if r["event"] == "checkpoint"]
    assert (record["step"], record["orphaned"]) == (30, True)
    assert writer.settle() is None


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return KeyFile.of(path)


@pytest.fixture
def signing(tmp_path: Path, key_file: KeyFile) -> Iterator[list[Worker]]:
    (tmp_path / "run").mkdir()
    both = [Worker(tmp_path / "run", rank, key_file) for rank in range(WRITERS)]
    yield both
    for worker in both:
        worker.close()


def test_checkpoint_of_dead_workers_is_signed_like_their_own(
    signing: list[Worker], writer: Writer, tmp_path: Path, key_file: KeyFile
) -> None:
    for worker in signing:
        worker.begin(plan_of())
        assert writer.write(worker)["kind"] == "durable"

    assert writer.settle() == 30

    verdict = verify_step(CheckpointStore(tmp_path / "run", key=key_file.read()), 30)
    assert (verdict.is_valid, verdict.signature) == (True, Signature.VERIFIED)
    secret = Path(key_file.path).read_bytes()
    assert secret.hex() not in json.dumps([{**m, FDS: None} for m in signing[0].sent])


@pytest.mark.parametrize("lost", ["MANIFEST.json", "shard-00000-of-00002.h5"])
def test_signed_checkpoint_that_is_mended_from_memory_is_signed_again(
    signing: list[Worker], writer: Writer, tmp_path: Path, key_file: KeyFile, lost: str
) -> None:
    for worker in signing:
        worker.begin(plan_of())
        writer.write(worker)
    assert writer.settle() == 30
    store = CheckpointStore(tmp_path / "run", key=key_file.read())
    before = (store.directory / "step-000000000030" / "MANIFEST.json").read_bytes()
    (store.directory / "step-000000000030" / lost).unlink()

    assert writer.mend(30)["reason"] is None

    assert verify_step(store, 30).is_valid
    assert (store.directory / "step-000000000030" / "MANIFEST.json").read_bytes() == before
    assert writer.kept() == 30


def test_key_that_has_been_replaced_fails_the_save(
    signing: list[Worker], writer: Writer, tmp_path: Path, key_file: KeyFile
) -> None:
    Path(key_file.path).write_bytes(bytes(40))
    signing[0].begin(plan_of())
    begun = open_memory()

    answer = writer.write(signing[0])

    assert answer["kind"] == "failed"
    assert f"not {key_file.key_id}" in answer["reason"]
    (record,) = read_journal(tmp_path / "run" / "journal.jsonl")
    assert record["reason"] == answer["reason"]
    assert open_memory() == begun


def test_snapshot_of_one_worker_alone_is_not_committed(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[0].begin(plan_of())
    writer.write(workers[0])

    assert writer.settle() is None
    assert restored_step(tmp_path) is None


def test_shards_of_two_attempts_do_not_make_one_checkpoint(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[0].begin(plan_of(attempt=1))
    writer.write(workers[0])
    workers[1].begin(plan_of(attempt=2))
    writer.write(workers[1])

    assert writer.settle() is None
    assert restored_step(tmp_path) is None


def test_shards_of_states_that_differ_do_not_make_one_checkpoint(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    """Their workers died before they could compare them."""
    for worker in workers:
        worker.begin(plan_of(), digest=f"{worker.rank:02x}")
        assert writer.write(worker)["kind"] == "durable"

    assert writer.settle() is None
    assert restored_step(tmp_path) is None


def test_step_that_the_workers_have_committed_is_left_alone(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    records = []
    for worker in workers:
        records.append(worker.begin(plan_of()).record)
        writer.write(worker)
    manifest = plan_of().manifest(records)
    CheckpointStore(tmp_path).staging(*plan_of().key).commit(manifest)

    assert writer.settle() == 30
    assert restored_step(tmp_path) == 30


def test_older_save_of_the_step_that_is_damaged_is_not_taken_for_theirs(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    """The job has gone back behind the damaged step, and has come to it again."""
    save(CheckpointStore(tmp_path), STATE, header=Header("run", 6, 30))
    (shard,) = tmp_path.glob("checkpoints/step-*/shard-*")
    shard.write_bytes(b"rubbish")
    for worker in workers:
        worker.begin(plan_of())
        writer.write(worker)

    assert writer.settle() == 30
    assert restored_step(tmp_path) == 30


@pytest.mark.parametrize("begun", [b"", b"{}\n"])
def test_manifest_that_a_dead_coordinator_has_begun_is_no_hindrance(
    workers: list[Worker], writer: Writer, tmp_path: Path, begun: bytes
) -> None:
    for worker in workers:
        worker.begin(plan_of())
        writer.write(worker)
    staging = CheckpointStore(tmp_path).staging(*plan_of().key)
    (staging.path / "MANIFEST.json").write_bytes(begun)

    assert writer.settle() == 30
    assert restored_step(tmp_path) == 30


def test_snapshot_of_an_older_save_that_comes_late_changes_nothing(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    for worker in workers:
        worker.begin(plan_of(step=40, attempt=2))
        writer.write(worker)
    workers[0].begin(plan_of(step=30, attempt=1))
    writer.write(workers[0])

    assert writer.settle() == 40
    assert restored_step(tmp_path) == 40


def open_memory() -> int:
    """Return how many descriptors of memory for snapshots this process has."""
    gc.collect()
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum("holdfast-snapshot" in str(link.readlink()) for link in links if link.exists())


def test_memory_for_one_buffer_is_given_back_if_there_is_none_for_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, reserve = open_memory(), os.posix_fallocate
    reserved: list[int] = []

    def reserve_once(fd: int, offset: int, size: int) -> None:
        if reserved:
            raise OSError(errno.ENOMEM, "no memory")
        reserved.append(fd)
        reserve(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", reserve_once)

    with pytest.raises(OSError, match="no memory"):
        SnapshotMemory(5000)

    assert (len(reserved), open_memory()) == (1, begun)


@pytest.mark.parametrize(("free", "is_taken"), [(2 * 2 * 48, True), (2 * 2 * 48 - 1, False)])
def test_memory_that_the_host_has_not_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, free: int, is_taken: bool
) -> None:
    """All workers take theirs at once, and a limit of a container kills and does not refuse."""
    gone = Usage(Resource.MEMORY, "cgroup /job", 1000, 1000 + free)
    monkeypatch.setattr(HostLimits, "memory", lambda self: [gone])
    layout = ShardLayout(specs_of({"a": np.zeros(6), "b": np.zeros(0)}), 2)
    assert layout.nbytes == 48

    place = take_place(layout, (0, 1), "run", DigestKind.XXH3_128)

    assert (place is not None) is is_taken
    assert ("cgroup /job has 0 MiB left" in caplog.text) is not is_taken
    if place is not None:
        place.close()


def test_memory_of_a_world_that_has_shrunk_is_given_back_before_more_is_taken(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = open_memory()
    found: list[int] = []

    def take(*arguments: Any) -> SnapshotPlace | None:
        found.append(open_memory() - begun)
        return take_place(*arguments)

    monkeypatch.setattr("holdfast.runtime.saving.shard_writers.take_place", take)
    workers[0].begin(plan_of())
    workers[0].begin(plan_of(step=40, attempt=2, writers=1))

    assert found == [0, 1], "the snapshot that the agent has"


def test_memory_of_older_saves_is_given_back(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    """Only the newest complete save and the one in hand are held."""
    begun = open_memory()
    held = []
    for step in range(1, 8):
        for worker in workers:
            worker.begin(plan_of(step=step, attempt=step))
            writer.write(worker)
            worker.page.answer_save(step, is_durable=True)
            os.close(worker.sent.pop()[FDS][0])
        held.append(open_memory())
    workers[0].begin(plan_of(step=1, attempt=8))
    late = {**workers[0].sent[-1], "attempt": 1}
    workers[0].sent[-1] = late
    writer.write(workers[0])

    assert begun < held[0]
    assert set(held) == {held[0]}
    assert open_memory() == held[0] + 1, "the one that the test has"


def test_memory_is_taken_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old kernel cannot map pages ahead: they are touched one by one."""
    monkeypatch.setattr("holdfast.runtime.saving.snapshot_place._POPULATE_WRITE", -1)
    memory = SnapshotMemory(3 * 4096 + 5)

    fd, contents = memory.next()

    assert bytes(contents) == bytes(3 * 4096 + 5)
    assert os.fstat(fd).st_blocks * 512 >= len(contents)
    memory.close()


def test_bit_that_flips_in_a_snapshot_fails_the_save(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[0].begin(plan_of())
    flip_a_bit(workers[0].sent[-1])

    answer = writer.write(workers[0])

    assert answer["kind"] == "failed"
    assert "tensor 'a' have changed in the memory of the snapshot" in answer["reason"]
    assert restored_step(tmp_path) is None


def test_second_copy_is_written_where_the_first_has_changed(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[0].begin(plan_of())
    workers[1].begin(plan_of(), seconds=(0,))
    flip_a_bit(workers[0].sent[-1])

    assert [writer.write(workers[1], which)["kind"] for which in (0, 1)] == ["held", "durable"]
    assert writer.write(workers[0])["kind"] == "durable"

    assert writer.settle() == 30
    assert restored_step(tmp_path) == 30
    told = [r for r in read_journal(tmp_path / "journal.jsonl") if r["event"] == "snapshot_damaged"]
    assert [record["shard"] for record in told] == [0]


def test_second_copy_of_another_state_is_not_written(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[0].begin(plan_of(), digest="00")
    workers[1].begin(plan_of(), digest="01", seconds=(0,))
    flip_a_bit(workers[0].sent[-1])
    writer.write(workers[1], 0)

    assert writer.write(workers[0])["kind"] == "failed"


def test_second_copy_that_has_changed_too_is_not_written(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[0].begin(plan_of())
    workers[1].begin(plan_of(), seconds=(0,))
    for message in (workers[0].sent[0], workers[1].sent[0]):
        flip_a_bit(message)
    writer.write(workers[1], 0)

    assert writer.write(workers[0])["kind"] == "failed"
    assert writer.settle() is None


def test_worker_that_died_before_its_snapshot_was_whole_is_stood_in_for(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[1].begin(plan_of(), seconds=(0,))
    for which in (0, 1):
        writer.write(workers[1], which)

    assert writer.settle() == 30

    assert restored_step(tmp_path) == 30


def test_save_that_the_workers_had_given_up_is_made_from_memory(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    """One shard had failed, so they removed what was staged; then all died."""
    for worker in workers:
        worker.begin(plan_of())
        writer.write(worker)
    CheckpointStore(tmp_path).staging(*plan_of().key).abandon()

    assert writer.settle() == 30

    assert restored_step(tmp_path) == 30


def test_shard_that_a_dead_worker_has_begun_itself_is_made_from_its_second_copy(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    """It had no buffer free, and was killed while its own thread was writing."""
    workers[1].begin(plan_of(), seconds=(0,))
    for which in (0, 1):
        writer.write(workers[1], which)
    staging = CheckpointStore(tmp_path).staging(*plan_of().key)
    (staging.path / "shard-00000-of-00002.h5").write_bytes(b"half of ")

    assert writer.settle() == 30

    assert restored_step(tmp_path) == 30


def test_second_copies_of_an_older_save_complete_no_newer_one(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[1].begin(plan_of(step=40, attempt=2))
    writer.write(workers[1])
    workers[1].begin(plan_of(step=30, attempt=1), seconds=(0,))
    writer.write(workers[1], 1)

    assert writer.settle() is None
    assert restored_step(tmp_path) is None


def test_second_copy_that_cannot_be_held_fails_no_checkpoint(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    """A process that waits for a checkpoint counts the failed ones in the journal."""
    for worker in workers:
        worker.begin(plan_of(), seconds=(1 - worker.rank,))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), workers[0].sent[0][FDS][0])

    kinds = [writer.write(worker, which)["kind"] for worker in workers for which in (0, 1)]

    assert kinds == ["failed", "durable", "held", "durable"]
    events = [record["event"] for record in read_journal(tmp_path / "journal.jsonl")]
    assert events == ["second_copy_failed"]


def test_without_memory_for_second_copies_there_are_none(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[int] = []

    def take(size: int) -> SnapshotMemory:
        taken.append(size)
        if len(taken) > 1:
            raise OSError(12, f"no {size} bytes")
        return SnapshotMemory(size)

    monkeypatch.setattr(snapshot_place, "SnapshotMemory", take)

    workers[0].begin(plan_of(), seconds=(1,))

    assert [message["shard"] for message in workers[0].sent] == [0]
    assert "no memory for a second copy" in caplog.text


def test_damage_on_the_disk_is_mended_from_memory(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    for worker in workers:
        worker.begin(plan_of())
        writer.write(worker)
    assert writer.kept() == 30
    writer.settle()
    assert writer.kept() == 30
    for shard in tmp_path.glob("checkpoints/step-*/shard-*"):
        shard.write_bytes(b"rubbish")

    answer = writer.mend(30)

    assert answer["reason"] is None
    assert len(answer["result"]["faults"]) > 2
    assert restored_step(tmp_path) == 30
    assert writer.mend(30)["result"]["faults"] == []


def test_images_of_the_last_whole_save_are_kept_beside_the_next(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    for worker in workers:
        worker.begin(plan_of(step=30, attempt=1))
        writer.write(worker)
    records = [Snapshot.of(worker.sent[0]).record for worker in workers]
    CheckpointStore(tmp_path).staging(30, 7, 1).commit(plan_of().manifest(records))
    workers[0].begin(plan_of(step=40, attempt=2))
    writer.write(workers[0])
    assert writer.settle() is None
    for shard in tmp_path.glob("checkpoints/step-*/shard-*"):
        shard.write_bytes(b"rubbish")

    assert writer.mend(40)["reason"] == "there are no snapshots of it in memory"
    assert writer.mend(30)["reason"] is None
    assert restored_step(tmp_path) == 30


def test_no_memory_to_mend_with_costs_nothing_that_is_kept(
    workers: list[Worker], writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> bytearray:
        raise MemoryError

    for worker in workers:
        worker.begin(plan_of())
        writer.write(worker)
    writer.settle()
    shutil.rmtree(tmp_path / "checkpoints")

    with monkeypatch.context() as patched:
        patched.setattr(repair, "bytearray", refuse, raising=False)
        assert "no memory for shard 0" in writer.mend(30)["reason"]

    assert writer.mend(30)["reason"] is None
    assert restored_step(tmp_path) == 30


def test_what_is_kept_is_never_what_workers_write_over(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    """Two buffers take turns: the third save goes to where the first was."""
    for step in (30, 40, 50):
        for worker in workers:
            worker.begin(plan_of(step=step, attempt=step))
            worker.page.answer_save(step, is_durable=True)
            if step < 50:
                writer.write(worker)
    found = writer.kept()

    assert found == 40
    assert writer.mend(40)["reason"] is None
    assert restored_step(tmp_path) == 40


def test_save_with_a_damaged_snapshot_does_not_replace_what_is_kept(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    for step in (30, 40):
        for worker in workers:
            worker.begin(plan_of(step=step, attempt=step))
            worker.page.answer_save(step, is_durable=True)
    for worker, which in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if (worker, which) == (0, 1):
            flip_a_bit(workers[0].sent[1])
        writer.write(workers[worker], which)

    assert writer.settle() is None

    assert writer.kept() == 30
    assert writer.mend(30)["reason"] is None
    assert restored_step(tmp_path) == 30


def test_save_that_is_found_damaged_when_it_is_settled_is_kept_no_longer(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[1].begin(plan_of(), seconds=(0,))
    for which in (0, 1):
        writer.write(workers[1], which)
    assert writer.kept() == 30
    flip_a_bit(workers[1].sent[0])

    assert writer.settle() is None

    assert writer.kept() is None
    assert restored_step(tmp_path) is None


def test_one_copy_of_what_is_kept_is_enough(workers: list[Worker], writer: Writer) -> None:
    for worker in workers:
        worker.begin(plan_of(), seconds=(1 - worker.rank,))
        for which in (0, 1):
            writer.write(worker, which)
    begun = open_memory()

    assert writer.settle() == 30

    assert writer.kept() == 30
    # The writer has two descriptors of each image, its own and that of its mapping.
    assert begun - open_memory() == 2 * WRITERS


def test_run_directory_that_is_gone_fails_the_save_and_not_the_writer(
    workers: list[Worker], writer: Writer, tmp_path: Path
) -> None:
    workers[0].begin(plan_of())
    workers[0].sent[-1]["run_dir"] = str(tmp_path / "gone" / "run")

    answer = writer.write(workers[0])

    assert answer["kind"] == "failed"
    assert "gone" in answer["reason"]
    workers[0].begin(plan_of(attempt=2))
    assert writer.write(workers[0])["kind"] == "durable"


def test_file_system_that_guarantees_less_is_told_of_once(
    workers: list[Worker], writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalFileSystem, handle: int, size_bytes: int) -> None:
        raise OSError(errno.ENOTSUP, "no reservations here")

    monkeypatch.setattr(LocalFileSystem, "allocate", refuse)

    for step in (1, 2):
        for worker in workers:
            worker.begin(plan_of(step=step, attempt=step))
            assert writer.write(worker)["kind"] == "durable"

    told = [r for r in read_journal(tmp_path / "journal.jsonl") if "downgrade" in r["event"]]
    assert [record["reason"] for record in told] == [
        "space cannot be reserved ahead: a full disk shows late"
    ]


def test_shard_is_done_when_the_page_says_so(workers: list[Worker]) -> None:
    shard = workers[0].begin(plan_of())
    assert not shard.is_done

    workers[0].page.answer_save(1, is_durable=True)

    assert shard.is_done
    assert shard.failure is None
    shard.wait(60.0)


def test_snapshot_that_was_not_written_is_a_failure(workers: list[Worker]) -> None:
    shard = workers[0].begin(plan_of())

    workers[0].page.answer_save(1, is_durable=False)

    assert shard.is_done
    assert "journal says why" in str(shard.failure)
    workers[0].page.answer_save(2, is_durable=True)
    assert shard.failure is not None


def test_snapshot_in_writing_is_never_written_over(workers: list[Worker], tmp_path: Path) -> None:
    """Both buffers wait for the disk: the third save is written from a copy by a thread."""
    worker = workers[0]
    shards = [worker.begin(plan_of(step=step, attempt=step)) for step in (1, 2, 3)]

    assert [message["attempt"] for message in worker.sent] == [1, 2]
    shards[2].wait(60.0)
    assert (shards[2].is_done, shards[2].failure) == (True, None)
    assert [shard.is_done for shard in shards[:2]] == [False, False]
    worker.page.answer_save(1, is_durable=True)
    worker.begin(plan_of(step=4, attempt=4))
    assert [message["attempt"] for message in worker.sent] == [1, 2, 4]


def test_without_memory_the_worker_writes_by_itself(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(size: int) -> SnapshotMemory:
        raise OSError(12, f"no {size} bytes")

    monkeypatch.setattr(snapshot_place, "SnapshotMemory", refuse)

    shard = workers[0].begin(plan_of())

    shard.wait(60.0)
    assert (shard.is_done, shard.failure, workers[0].sent) == (True, None, [])
    assert "the worker itself writes checkpoints" in caplog.text


def test_other_world_gets_memory_of_its_own(workers: list[Worker]) -> None:
    worker = workers[0]
    worker.begin(plan_of(attempt=1))
    worker.begin(plan_of(attempt=2, writers=1))

    sizes = [message["record"]["size"] for message in worker.sent]
    assert sizes[0] < sizes[1]
    assert os.fstat(worker.sent[1][FDS][0]).st_size == sizes[1]
