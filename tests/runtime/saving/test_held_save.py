"""A save in memory is used only as far as its records confirm it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from committing_report import StrikeResult
from host_saves import STEP, Workers, plan_of

from holdfast.checkpoint.errors import CheckpointError, SnapshotDamaged
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import Committer, HeldSave
from holdfast.runtime.saving.save_messages import SaveCopied

RECORD_BYTES = 40


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(plan_of(tmp_path, shards=3))
    yield workers
    workers.close()


def test_records_are_those_of_the_last_part_and_not_of_the_next_save(workers: Workers) -> None:
    save = workers.held(step=30, attempt=1)
    before = save.records
    workers.copy_all(workers.ticket(50, 3))

    assert save.records == before
    assert not save.is_whole
    with pytest.raises(SnapshotDamaged, match="changed in the memory of the snapshot"):
        save.records[0].check(save.image(save.records[0]))


@pytest.mark.parametrize("seed", range(40))
def test_bit_anywhere_in_images_or_records_is_noticed(workers: Workers, seed: int) -> None:
    dice = random.Random(seed)
    shard = dice.randrange(3)
    sizes = [record.size for record in workers.held().records]
    records = RECORD_BYTES * (1 + len(workers.image_map.pieces[shard]))
    in_image = bool(seed % 2)
    start = workers.image_map.bases[shard] if in_image else workers.image_map.records[shard]
    place = start + dice.randrange(sizes[shard] if in_image else records)
    memory = workers.buffers[1]
    memory[place] ^= 1 << dice.randrange(8)

    assert not is_whole(workers)


def is_whole(workers: Workers) -> bool:
    """Return whether what is in the second buffer is taken for a whole save."""
    try:
        return hold(workers).is_whole
    except SnapshotDamaged:
        return False


def hold(workers: Workers) -> HeldSave:
    """Return what is in the second buffer."""
    copied = SaveCopied(workers.ticket(STEP, 1), frozenset())
    return HeldSave.of(workers.plan, workers.image_map, copied, {}, workers.buffers[1])


@pytest.mark.parametrize("shards", [(), (0,), (0, 1), (0, 1, 2)])
def test_shards_of_two_saves_in_one_buffer_make_no_save(
    workers: Workers, shards: tuple[int, ...]
) -> None:
    """All bytes and digests of each shard agree, but some are those of the next save."""
    workers.held(step=40, attempt=1)
    later = bytes(workers.buffers[1])
    workers.held(step=STEP, attempt=1)
    image_map = workers.image_map
    ends = (*image_map.bases[1:], image_map.records[0])
    starts = (*image_map.bases, *image_map.records)
    for shard in shards:
        for number in (shard, len(image_map.bases) + shard):
            stop = (*ends, *image_map.records[1:], image_map.size)[number]
            workers.buffers[1][starts[number] : stop] = later[starts[number] : stop]

    assert is_whole(workers) is not bool(shards)


@pytest.mark.parametrize("seed", range(20))
def test_rubbish_for_records_is_an_error_of_the_save_and_nothing_else(
    workers: Workers, tmp_path: Path, seed: int
) -> None:
    workers.held()
    memory, start = workers.buffers[1], workers.image_map.records[0]
    memory[start:] = random.Random(seed).randbytes(len(memory) - start)
    with pytest.raises(CheckpointError):
        Committer(workers.plan, StrikeResult()).commit(hold(workers))
    assert CheckpointStore(tmp_path).names() == ()
