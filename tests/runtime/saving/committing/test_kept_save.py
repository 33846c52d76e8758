"""The newest complete save stays in memory: a step is mended from it, or read out of it."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from host_saves import STEP, Workers, plan_of, saved_steps
from host_writer import Disk, RunningWriter, journal

from holdfast.checkpoint import repair
from holdfast.checkpoint.manifest import Manifest


def damage(run_dir: Path) -> None:
    for shard in run_dir.glob("checkpoints/step-*/shard-*"):
        shard.write_bytes(b"rubbish")


def test_damage_on_the_disk_is_mended_from_memory(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, STEP, 1)
    assert writer.settle() == STEP
    assert writer.kept() == STEP
    damage(tmp_path)

    writer.being_written.clear()
    answer = writer.mend(tmp_path, STEP)

    assert len(answer["result"]["faults"]) > 2
    assert 18_000 < max(writer.being_written) < 36_000, "the agent waits for a file, not for all"
    assert saved_steps(tmp_path) == (STEP,)
    assert writer.mend(tmp_path, STEP)["result"]["faults"] == []


def test_only_the_newest_save_is_kept(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, 30, 1)
    writer.save(workers, 40, 2)

    assert writer.kept() == 40
    assert writer.mend(tmp_path, 30)["result"] is None
    assert writer.mend(tmp_path, 50)["result"] is None


def test_last_whole_save_is_kept_beside_the_next(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, 30, 1)
    writer.tell(workers.copy(workers.ticket(40, 2), 0))
    assert writer.settle() == 30
    damage(tmp_path)

    assert writer.mend(tmp_path, 40)["result"] is None
    assert writer.mend(tmp_path, 30)["result"]
    assert saved_steps(tmp_path) == (30,)


def test_what_is_kept_is_never_what_workers_write_over(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """Two buffers take turns: the third save goes to where the first was."""
    writer.save(workers, 30, 1)
    writer.save(workers, 40, 2)
    workers.copy_all(workers.ticket(50, 3))
    damage(tmp_path)

    assert writer.kept() == 40
    assert writer.mend(tmp_path, 40)["result"]
    shutil.rmtree(tmp_path / "checkpoints" / "step-000000000030")
    assert saved_steps(tmp_path) == (40,)


def test_no_memory_to_mend_with_costs_nothing_that_is_kept(
    workers: Workers, writer: RunningWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> bytearray:
        raise MemoryError

    writer.save(workers, STEP, 1)
    shutil.rmtree(tmp_path / "checkpoints")

    with monkeypatch.context() as patched:
        patched.setattr(repair, "bytearray", refuse, raising=False)
        assert writer.mend(tmp_path, STEP)["result"] is None
    assert "no memory for shard 0" in journal(tmp_path, "mend_failed")[0]["reason"]

    assert writer.mend(tmp_path, STEP)["result"]
    assert saved_steps(tmp_path) == (STEP,)


def test_save_that_the_disk_refused_is_kept_and_may_be_read_from_memory(
    workers: Workers,
    writer: RunningWriter,
    tmp_path: Path,
    disk: Disk,
) -> None:
    disk.is_full = True
    assert writer.save(workers, STEP, 1)["kind"] == "unsaved"

    answer = writer.ask("open")

    assert (writer.kept(), answer["step"]) == (STEP, STEP)
    manifest = Manifest.decode(answer["manifest"].encode())
    assert (manifest.step, manifest.cursor["epoch"]) == (STEP, STEP)
    path = f"/proc/{answer['pid']}/fd/{answer['fd']}"
    with Path(path).open("rb") as memory:
        for shard in manifest.shards:
            base = answer["bases"][shard.index]
            image = workers.buffers[1][base : base + shard.size]
            memory.seek(base)
            assert memory.read(shard.size) == image
    assert writer.mend(tmp_path, STEP)["result"] is None
    assert "ENOSPC" in journal(tmp_path, "mend_failed")[0]["reason"]
    disk.is_full = False
    assert writer.mend(tmp_path, STEP)["result"]
    assert saved_steps(tmp_path) == (STEP,)


def test_nothing_is_kept_before_the_first_save(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    assert writer.kept() is None
    assert writer.ask("open") == {"kind": "opened", "step": None}
    assert writer.mend(tmp_path, STEP)["result"] is None


@pytest.mark.parametrize("flip", [Workers.flip_a_bit, Workers.flip_a_record])
def test_damaged_save_does_not_replace_what_is_kept(
    workers: Workers, writer: RunningWriter, tmp_path: Path, flip: Callable[[Workers, int], None]
) -> None:
    writer.save(workers, 30, 1)
    copied = workers.copy_all(workers.ticket(40, 2))
    flip(workers, 2)
    writer.tell(*copied)
    answer = writer.answer()
    assert (answer["kind"], answer["step"]) == ("unsaved", 40)

    assert writer.settle() == 30

    assert writer.kept() == 30
    assert writer.ask("open")["step"] == 30
    damage(tmp_path)
    assert writer.mend(tmp_path, 30)["result"]
    assert saved_steps(tmp_path) == (30,)


def test_save_that_is_found_damaged_when_it_is_settled_is_kept_no_longer(
    workers: Workers,
    writer: RunningWriter,
    tmp_path: Path,
    disk: Disk,
) -> None:
    disk.is_full = True
    writer.save(workers, STEP, 1)
    assert writer.kept() == STEP
    workers.flip_a_bit(1)
    disk.is_full = False

    assert writer.settle() is None

    assert writer.kept() is None
    assert saved_steps(tmp_path) == ()


def open_memory() -> int:
    """Return how many descriptors of memory for saves this process has."""
    gc.collect()
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum("holdfast-save" in str(link.readlink()) for link in links if link.exists())


def test_memory_of_older_stages_is_given_back(writer: RunningWriter, tmp_path: Path) -> None:
    """Only that of the present stage, and of the one whose save is kept, is held."""
    begun = open_memory()
    held = []
    for stage in range(1, 6):
        workers = Workers(plan_of(tmp_path, shards=stage))
        writer.use(workers)
        writer.save(workers, stage, stage)
        workers.close()
        held.append(open_memory() - begun)

    assert writer.kept() == 5
    assert held[1] == held[2] == held[3] == held[4]
    assert held[1] <= 2 * held[0]


def test_save_of_the_stage_before_is_kept_until_the_next_one_is_complete(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, 30, 1)
    other = Workers(plan_of(tmp_path, shards=3))
    writer.use(other)
    damage(tmp_path)

    assert writer.kept() == 30
    assert writer.mend(tmp_path, 30)["result"]
    assert saved_steps(tmp_path) == (30,)
    writer.save(other, 40, 2)
    assert writer.kept() == 40
    other.close()
