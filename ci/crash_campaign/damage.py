"""Committed checkpoints are spoilt in seeded ways: never restored, or exactly what was saved.

Two steps of a run lie in memory.  Each case writes them anew, damages them once or more
often, and restores.  The restored state is compared with the saved one.  The refused steps
are compared with the steps that were really changed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from job import RUN_ID, WRITERS, open_store, same, save_step, scratch, state_of
from tally import Tally, Wrong

from holdfast.checkpoint.format.names import MANIFEST_NAME, STORE_NAME, shard_name, step_name
from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.store.reader import restore_newest
from holdfast.checkpoint.store.save import save

OLD, NEW = 100, 200
CASES = 10_000
_SHORT_CASES = 2_000
_BLOCK_BYTES = 4096
Files = dict[str, bytes]
"""A run directory's files by their paths below ``checkpoints``."""


def run(seed: int, *, is_short: bool, only: int | None) -> list[Tally]:
    """Run the part; ``only`` replays the case of that number."""
    tally = Tally("damage")
    with scratch() as root:
        campaign = _Campaign(root, seed, tally)
        count = _SHORT_CASES if is_short else CASES
        for case in [only] if only is not None else range(count):
            campaign.run(case)
    return [tally]


class _Campaign:
    """The files of two steps, in memory and as each case makes them."""

    def __init__(self, root: Path, seed: int, tally: Tally) -> None:
        self._run_dir = root / "run"
        self._seed = seed
        self._tally = tally
        store = open_store(root / "run")
        for step in (OLD, NEW):
            save_step(store, seed, step)
        self._pristine = read_files(store.directory)
        foreign = open_store(root / "foreign")
        for step in (OLD, NEW):
            state = state_of(seed + 1, step)
            save(foreign, state, header=Header("foreign", 1, step), writers=WRITERS)
        self._foreign = read_files(foreign.directory)
        self._states = {step: state_of(seed, step) for step in (OLD, NEW)}

    def run(self, case: int) -> None:
        """Damage, restore, complain."""
        choose = random.Random(f"{self._seed}/{case}")
        files = dict(self._pristine)
        names = []
        for _ in range(choose.choice((1, 1, 1, 1, 2, 3))):
            damage = choose.choice(DAMAGES)
            damage(files, choose, self._foreign)
            names.append(damage.__name__)
        self._write(files)
        what = " and ".join(names)
        self._tally.cases += 1
        self._tally.note(names[0])
        self._judge(case, what, files)

    def _judge(self, case: int, what: str, files: Files) -> None:
        restored, rejections = restore_newest(open_store(self._run_dir), run_id=RUN_ID)
        found = restored.manifest.step if restored else 0
        complain = self._tally.complain
        if restored and not (found in self._states and same(restored.state, self._states[found])):
            complain(Wrong.SILENT, case, f"{what}: step {found} was restored with other bytes")
        reasons = {rejection.step: rejection.reason for rejection in rejections}
        if any(step > found and not reasons.get(step) for step in visible_steps(files)):
            complain(Wrong.SILENT, case, f"{what}: step {found}, no reason for newer ones")
        whole = [step for step in (OLD, NEW) if self._is_untouched(files, step)]
        if whole and found < max(whole):
            complain(Wrong.LOST, case, f"{what}: step {max(whole)} is whole, got {found}")

    def _is_untouched(self, files: Files, step: int) -> bool:
        folder = step_name(step) + "/"
        return all(
            files.get(path) == data
            for path, data in self._pristine.items()
            if path.startswith(folder)
        )

    def _write(self, files: Files) -> None:
        folder = self._run_dir / STORE_NAME
        shutil.rmtree(folder)
        for path, data in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def read_files(folder: Path) -> Files:
    """Return all files below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def visible_steps(files: Files) -> set[int]:
    """Return the steps that a reader sees."""
    return {int(path.split("/")[0][5:]) for path in files if path.startswith("step-")}


def flip_bit(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Flip one bit."""
    path = _any_file(files, choose)
    data = bytearray(files[path])
    if data:
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    files[path] = bytes(data)


def truncate(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Cut a file short."""
    path = _any_file(files, choose)
    files[path] = files[path][: choose.randrange(len(files[path]) + 1)]


def zero_block(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Replace a block by zeros."""
    path = _any_file(files, choose)
    data = bytearray(files[path])
    start = choose.randrange(0, len(data) + 1, _BLOCK_BYTES)
    block = data[start : start + _BLOCK_BYTES]
    data[start : start + len(block)] = bytes(len(block))
    files[path] = bytes(data)


def extend(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Append zeros or noise."""
    path = _any_file(files, choose)
    files[path] += choose.choice((bytes, choose.randbytes))(choose.randint(1, 2 * _BLOCK_BYTES))


def swap(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Exchange the contents of two files."""
    first, second = _any_file(files, choose), _any_file(files, choose)
    files[first], files[second] = files[second], files[first]


def duplicate(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Put a file's contents onto another one, or beside it under a name of its own."""
    source = files[_any_file(files, choose)]
    path = _any_file(files, choose)
    files[choose.choice((path, f"{path}.copy", _other_shard_name(path, choose)))] = source


def rename(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Give a file a name that another shard or none has."""
    path = _any_file(files, choose)
    files[_other_shard_name(path, choose)] = files.pop(path)


def remove(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Remove a file."""
    if len(files) > 1:
        del files[_any_file(files, choose)]


def take_from_other_step(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Put the other step's file of the same name there."""
    path = _any_file(files, choose)
    folder, name = path.split("/")
    other = step_name(OLD if folder == step_name(NEW) else NEW)
    files[path] = files.get(f"{other}/{name}", b"")


def take_from_other_run(files: Files, choose: random.Random, foreign: Files) -> None:
    """Put another run's file of the same name there."""
    path = _any_file(files, choose)
    files[path] = foreign.get(path, b"")


def take_whole_step(files: Files, choose: random.Random, foreign: Files) -> None:
    """Put a whole step of another run, or of another number, where a step was."""
    source, origin = choose.choice(((foreign, NEW), (foreign, OLD), (dict(files), OLD)))
    target = step_name(choose.choice((NEW, NEW + 100)))
    for path in [path for path in files if path.startswith(target)]:
        del files[path]
    for path, data in source.items():
        if path.startswith(step_name(origin)):
            files[f"{target}/{path.split('/')[1]}"] = data


DAMAGES: tuple[Callable[[Files, random.Random, Files], None], ...] = (
    *(flip_bit, flip_bit, flip_bit, truncate, zero_block, zero_block, extend, swap, duplicate),
    *(rename, remove, take_from_other_step, take_from_other_run, take_whole_step),
)


def _any_file(files: Files, choose: random.Random) -> str:
    """Choose a file, mostly of the newest step, as often a manifest as any one shard."""
    newest = [path for path in files if path.startswith(step_name(NEW))]
    return choose.choice(newest if newest and choose.random() < 0.8 else sorted(files))


def _other_shard_name(path: str, choose: random.Random) -> str:
    folder = path.split("/", maxsplit=1)[0]
    names = [shard_name(choose.randrange(6), choose.choice((WRITERS, 4))), MANIFEST_NAME, "x.h5"]
    return f"{folder}/{choose.choice(names)}"
