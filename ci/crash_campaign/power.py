"""The power goes after every call that changes something, on real file systems.

Three steps are saved and pruned on an image of ext4 and of XFS.  After each call the image
is copied as it lies on the disk.  The copy is mounted, which recovers the journal; then a
state is restored from it and saved to it.  An unrelated file is synced before each copy in
round 1, and now and then in later rounds.  So the journal commits all names that have
changed by then: names without data.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from block_image import (
    EXT4,
    XFS,
    BlockImage,
    Kind,
    hide_mounts,
    mounted,
    new_image,
    removed,
    why_not,
)
from job import KEEP, open_store, save_images, save_step, scratch
from tally import Tally
from verdict import Verdict

from holdfast.checkpoint.disk.filesystem import LocalFileSystem
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.own_steps import OwnSteps
from holdfast.checkpoint.upkeep.retention import prune

STEPS = (10, 20, 30)
NEXT_STEP = 40
_CHANGES = (
    "mkdir", "create_exclusive", "allocate", "write", "fsync", "close",
    "fsync_directory", "rename_noreplace", "unlink", "rmdir",
)  # fmt: skip
_ROUNDS = 10
_SHORT_ROUNDS = 3
_SHORT_CASES = 30
_SYNCED_SHARE = 0.3
WAYS = (save_step, save_images)
_stops: list[int] = []


def run(seed: int, *, is_short: bool, only: int | None) -> list[Tally]:
    """Run the part on each file system; ``only`` replays the case of that number."""
    hide_mounts()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ask_to_stop)
    return [_run_kind(kind, seed, is_short=is_short, only=only) for kind in (EXT4, XFS)]


def _run_kind(kind: Kind, seed: int, *, is_short: bool, only: int | None) -> Tally:
    tally = Tally(f"power cut on {kind.name}")
    with scratch() as folder:
        tally.skipped = why_not(kind, folder)
    if tally.skipped:
        return tally
    changes = _count_changes(seed)
    cases = range(changes * (_SHORT_ROUNDS if is_short else _ROUNDS))
    chosen = {only} if only is not None else set(cases)
    if is_short and only is None:
        chosen = set(random.Random(seed).sample(cases, _SHORT_CASES))
    for number in sorted({case // changes for case in chosen}):
        with scratch() as folder:
            first = number * changes
            cuts = _Round(kind, folder, seed, tally)
            cuts.run({case - first for case in chosen}, number=number, first=first)
    return tally


class Watched(LocalFileSystem):
    """The local file system, which reports each change after it was made."""

    def __init__(self, after: Callable[[str], None]) -> None:
        super().__init__()
        self._after = after

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in _CHANGES:
            return found

        def call(*arguments: object) -> object:
            if _stops and name != "close":
                sys.exit(128 + _stops.pop())
            result = found(*arguments)
            self._after(f"{name} {arguments[0]}")
            return result

        return call


class _Round:
    """One job on one image, and the power cuts that it is spared."""

    def __init__(self, kind: Kind, folder: Path, seed: int, tally: Tally) -> None:
        self._kind, self._folder, self._seed, self._tally = kind, folder, seed, tally
        self._acknowledged = 0
        self._change = 0

    def run(self, chosen: set[int], *, number: int, first: int) -> None:
        """Run the job; cut the power after the changes whose numbers are ``chosen``."""
        choose = random.Random(f"{self._seed}/{number}")
        with new_image(self._kind, self._folder) as image:

            def after(what: str) -> None:
                if number == 1 or (number > 1 and choose.random() < _SYNCED_SHARE):
                    _sync_unrelated(image.mount_point)
                if self._change in chosen:
                    self._cut(image, first + self._change, f"after {what}")
                self._change += 1

            work(WAYS[number % 2], image.mount_point / "run", self._seed, after, self._acknowledge)

    def _acknowledge(self, step: int) -> None:
        self._acknowledged = step

    def _cut(self, image: BlockImage, case: int, what: str) -> None:
        # A name of its own: the loop device of the last copy may go later than its mount.
        copy = self._folder / f"copy-{case}.img"
        image.copy_to(copy)
        self._tally.cases += 1
        with removed(copy), mounted(copy, self._folder / "after", self._kind.options) as found:
            verdict = Verdict(self._tally, case, what, found.mount_point / "run", self._seed)
            step = verdict.restored_step(self._acknowledged)
            is_newer = step > self._acknowledged
            self._tally.note("newer than acknowledged" if is_newer else "as acknowledged")
            verdict.carries_on(NEXT_STEP)


def work(
    save: Callable[[CheckpointStore, int, int], None],
    run_dir: Path,
    seed: int,
    after: Callable[[str], None],
    acknowledge: Callable[[int], None],
) -> None:
    """Save and prune in the order of a job."""
    store = open_store(run_dir, Watched(after))
    for step in STEPS:
        save(store, seed, step)
        acknowledge(step)
        prune(OwnSteps(store), KEEP)


def _ask_to_stop(number: int, _frame: object) -> None:
    """Stop before the next change: a mount that is busy, or half unmounted, would stay."""
    _stops.append(number)


def _count_changes(seed: int) -> int:
    changes: list[str] = []
    with scratch() as folder:
        work(save_step, folder / "run", seed, changes.append, lambda _: None)
    return len(changes)


def _sync_unrelated(folder: Path) -> None:
    with (folder / "unrelated").open("ab") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
