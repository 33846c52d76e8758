"""Seeded damage to committed checkpoints: never loaded, always with a reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor

WRITERS = 3
OLD, NEW = 100, 200
Damage = Callable[[Path, np.random.Generator], None]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory with two checkpoints of different states, for reading only."""
    run_dir = tmp_path_factory.mktemp("pristine")
    store = CheckpointStore(run_dir)
    for step in (OLD, NEW):
        random = np.random.default_rng(step)
        state: dict[str, Tensor] = {
            "kernel": random.normal(size=(61, 90)).astype(np.float32),
            "bias": random.normal(size=90).astype(np.float16),
            "steps": np.arange(700),
            "flag": np.array(True),
        }
        save(store, state, header=Header("run", 1, step), writers=WRITERS)
    return run_dir


def some_file(step: Path, random: np.random.Generator) -> Path:
    """Choose by size, but the small manifest as often as all shards together."""
    shards = sorted(step.glob("shard-*"))
    manifest = step / "MANIFEST.json"
    return manifest if random.random() < 0.5 else shards[random.integers(len(shards))]


def flip_bit(step: Path, random: np.random.Generator) -> None:
    path = some_file(step, random)
    data = bytearray(path.read_bytes())
    data[random.integers(len(data))] ^= 1 << int(random.integers(8))
    path.write_bytes(data)


def flip_bit_of_metadata(step: Path, random: np.random.Generator) -> None:
    path = sorted(step.glob("shard-*"))[random.integers(WRITERS)]
    data = bytearray(path.read_bytes())
    data[random.integers(2048)] ^= 1 << int(random.integers(8))
    path.write_bytes(data)


def truncate(step: Path, random: np.random.Generator) -> None:
    path = some_file(step, random)
    with path.open("r+b") as file:
        file.truncate(int(random.integers(path.stat().st_size)))


def extend(step: Path, random: np.random.Generator) -> None:
    with some_file(step, random).open("ab") as file:
        file.write(random.bytes(int(random.integers(1, 5000))))


def overwrite_block(step: Path, random: np.random.Generator) -> None:
    """Replace a block by zeros or noise; if it was just that, take noise."""
    path = some_file(step, random)
    data = bytearray(path.read_bytes())
    start = int(random.integers(len(data))) // 512 * 512
    stop = min(start + 512 * int(random.integers(1, 9)), len(data))
    is_zero = not any(data[start:stop])
    keep_zeros = random.random() < 0.7 and not is_zero
    data[start:stop] = bytes(stop - start) if keep_zeros else random.bytes(stop - start)
    path.write_bytes(data)


def swap_shards(step: Path, random: np.random.Generator) -> None:
    first, second = random.choice(sorted(map(str, step.glob("shard-*"))), 2, replace=False)
    aside = step / "aside"
    Path(first).rename(aside)
    Path(second).rename(first)
    aside.rename(second)


def duplicate_shard(step: Path, random: np.random.Generator) -> None:
    first, second = random.choice(sorted(map(str, step.glob("shard-*"))), 2, replace=False)
    shutil.copyfile(first, second)


def take_file_of_other_step(step: Path, random: np.random.Generator) -> None:
    path = some_file(step, random)
    shutil.copyfile(step.parent / f"step-{OLD:012d}" / path.name, path)


def remove_file(step: Path, random: np.random.Generator) -> None:
    some_file(step, random).unlink()


def rename_shard(step: Path, random: np.random.Generator) -> None:
    path = sorted(step.glob("shard-*"))[random.integers(WRITERS)]
    path.rename(step / path.name.replace("-of-00003", "-of-00004"))


def link_shard(step: Path, random: np.random.Generator) -> None:
    """A link to the very same bytes is refused too: no save makes links."""
    path = sorted(step.glob("shard-*"))[random.integers(WRITERS)]
    target = step.parent / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


SEEDS_OF_UNIT_TESTS = 40
DAMAGES = [
    (flip_bit, 400),
    (flip_bit_of_metadata, 150),
    (truncate, 60),
    (extend, 20),
    (overwrite_block, 80),
    (swap_shards, 6),
    (duplicate_shard, 6),
    (take_file_of_other_step, 20),
    (remove_file, 8),
    (rename_shard, 3),
    (link_shard, 3),
]


FEW = [
    pytest.param(damage, range(min(cases, SEEDS_OF_UNIT_TESTS)), id=damage.__name__)
    for damage, cases in DAMAGES
]
MANY = [
    pytest.param(
        damage,
        range(SEEDS_OF_UNIT_TESTS, cases),
        id=f"{damage.__name__}-many",
        marks=pytest.mark.extended,
    )
    for damage, cases in DAMAGES
    if cases > SEEDS_OF_UNIT_TESTS
]


@pytest.mark.parametrize(("damage", "seeds"), [*FEW, *MANY])
def test_damaged_checkpoint_is_never_loaded(
    pristine: Path, tmp_path: Path, damage: Damage, seeds: range
) -> None:
    for seed in seeds:
        run_dir = tmp_path / str(seed)
        shutil.copytree(pristine, run_dir)
        store = CheckpointStore(run_dir)
        damage(store.directory / f"step-{NEW:012d}", np.random.default_rng(seed))

        restored, rejections = restore_newest(store)

        assert [rejection.step for rejection in rejections] == [NEW], f"seed {seed}"
        assert rejections[0].reason
        assert restored is not None
        assert restored.manifest.step == OLD
        shutil.rmtree(run_dir)


def test_renamed_checkpoint_is_refused_as_that_of_another_step(
    pristine: Path, tmp_path: Path
) -> None:
    shutil.copytree(pristine, tmp_path / "run")
    store = CheckpointStore(tmp_path / "run")
    (store.directory / f"step-{NEW:012d}").rename(store.directory / "step-000000000300")

    with pytest.raises(CheckpointInvalid, match="its manifest is that of step 200"):
        restore(store, 300)
