"""All workers restore one step together: each reads its part, and a bad byte is bad for all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from resumed_run import Run

from holdfast.checkpoint.disk.filesystem import LocalFileSystem
from holdfast.recovery.order import SampleOrder
from holdfast.runtime.errors import RecoveryImpossible, UsageError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    found = Run(tmp_path)
    monkeypatch.setattr(
        "holdfast.runtime.training.restoring._numerics_of", lambda _: found.numerics
    )
    return found


@pytest.mark.parametrize(("ranks", "writers"), [(1, 3), (3, 1), (4, 4), (3, 8)])
def test_everyone_gets_the_newest_state(run: Run, ranks: int, writers: int) -> None:
    run.save(10, 1.0, writers)
    run.save(20, 2.0, writers)

    assert run.restore(ranks) == [(20, 2.0)] * ranks
    assert run.reasons() == []


def test_each_worker_reads_its_part_of_the_shards(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run.save(10, 1.0, writers=4)
    manifest = (directory / "MANIFEST.json").stat().st_size
    run.count(LocalFileSystem.read, monkeypatch)

    run.restore(ranks=4)

    shards = sorted(path.stat().st_size + manifest for path in directory.glob("*.h5"))
    assert sorted(run.bytes_read.values()) == shards


def test_byte_that_one_finds_wrong_sends_all_to_the_older_step(run: Run) -> None:
    run.save(10, 1.0, writers=4)
    directory = run.save(20, 2.0, writers=4)
    shard = sorted(directory.glob("*.h5"))[2]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    assert run.restore(ranks=4) == [(10, 1.0)] * 4
    (reason,) = run.reasons()
    assert "in shard 2 have a wrong digest" in reason
    (notice,) = {notice for notice in run.notices if "was rejected" in notice}
    assert f"`holdfast repair {run.directory} --from COPY`, or remove {directory}" in notice


def test_run_without_checkpoints_starts_fresh(run: Run) -> None:
    assert run.restore(ranks=2) == [None, None]


def test_run_whose_checkpoints_are_all_damaged_is_refused_by_all(run: Run) -> None:
    directory = run.save(10, 1.0, writers=2)
    (directory / "MANIFEST.json").write_bytes(b"{}\n")

    with pytest.raises(RecoveryImpossible, match="none of the 1 checkpoints"):
        run.restore(ranks=2)


def test_state_of_another_model_is_refused_before_it_is_read(run: Run) -> None:
    run.save(10, 1.0, writers=2)

    with pytest.raises(UsageError, match=r"has weights \(\d+,\); .* weights \(7,\); begin"):
        run.restore(ranks=2, floats=7)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"samples": 80}, "with samples 64, and the script has samples 80"),
        ({"is_shuffled": False}, "with shuffle=True, and the script has shuffle=False"),
    ],
)
def test_other_samples_are_refused_with_both_ways_out(
    run: Run, changed: dict[str, int], said: str
) -> None:
    run.job = dataclasses.replace(run.job, order=SampleOrder(0, 64, 8, 2))
    run.save(10, 1.0, writers=2)
    order = dataclasses.replace(SampleOrder(0, 64, 8, 2), **changed)
    run.job = dataclasses.replace(run.job, order=order)

    with pytest.raises(UsageError, match=f"{said}.*--fresh, or choose another --run-dir"):
        run.restore(ranks=2)


def test_order_that_only_the_checkpoint_has_is_refused(run: Run) -> None:
    run.job = dataclasses.replace(run.job, order=SampleOrder(0, 64, 8, 2, is_shuffled=False))
    run.save(10, 1.0, writers=2)
    run.job = dataclasses.replace(run.job, order=SampleOrder(0, 64, 8, 2))

    with pytest.raises(UsageError, match="with shuffle=False, and the script has shuffle=True"):
        run.restore(ranks=2)
