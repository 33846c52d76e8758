"""A save in memory is used only as far as its records confirm it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from committing_report import StrikeResult
from host_saves import STEP, Workers, commit, plan_of, saved_steps

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import Committer


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(plan_of(tmp_path, shards=3))
    yield workers
    workers.close()


def is_whole(workers: Workers) -> bool:
    """Return whether what is in the second buffer is taken for the whole save of a step."""
    committer = Committer(workers.plan, StrikeResult(), has_maintenance=False)
    try:
        commit(committer, workers, workers.ticket(STEP, 1))
    except CheckpointError:
        assert CheckpointStore(workers.plan.config.options.run_dir).steps() == ()
        return False
    finally:
        committer.close(1.0)
    return saved_steps(workers.plan.config.options.run_dir) == (STEP,)


@pytest.mark.parametrize("seed", range(40))
def test_bit_anywhere_in_images_or_records_is_noticed(workers: Workers, seed: int) -> None:
    dice = random.Random(seed)
    shard = dice.randrange(3)
    ticket = workers.ticket(STEP, 1)
    workers.hold(ticket)
    memory, image_map = workers.view(1), workers.image_map
    packed, header = image_map.packed(memory, shard), workers.plan.header(ticket)
    size = image_map.record(packed, shard, header).size
    in_image = bool(seed % 2)
    start = image_map.bases[shard] if in_image else image_map.records[shard]
    place = start + dice.randrange(size if in_image else len(packed))
    memory[place] ^= 1 << dice.randrange(8)

    assert not is_whole(workers)


@pytest.mark.parametrize("shards", [(), (0,), (0, 1), (0, 1, 2)])
def test_shards_of_two_saves_in_one_buffer_make_no_save(
    workers: Workers, shards: tuple[int, ...]
) -> None:
    """All bytes and digests of each shard agree, but some are those of the next save."""
    workers.hold(workers.ticket(40, 1))
    memory, image_map = workers.view(1), workers.image_map
    later = bytes(memory)
    workers.hold(workers.ticket(STEP, 1))
    places = sorted([*image_map.bases.values(), *image_map.records.values(), image_map.size])
    for shard in shards:
        for start in (image_map.bases[shard], image_map.records[shard]):
            stop = places[places.index(start) + 1]
            memory[start:stop] = later[start:stop]

    assert is_whole(workers) is not bool(shards)


@pytest.mark.parametrize("seed", range(20))
def test_rubbish_for_records_is_an_error_of_the_save_and_nothing_else(
    workers: Workers, tmp_path: Path, seed: int
) -> None:
    ticket = workers.ticket(STEP, 1)
    workers.hold(ticket)
    memory, start = workers.view(1), workers.image_map.records[0]
    memory[start:] = random.Random(seed).randbytes(len(memory) - start)
    with pytest.raises(CheckpointError):
        commit(Committer(workers.plan, StrikeResult()), workers, ticket)
    assert CheckpointStore(tmp_path).names() == ()
