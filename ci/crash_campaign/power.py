"""The power goes at every call of a victim that changes something, on real file systems.

A victim works on an image of ext4 and of XFS.  Before each change, and at the end, the image
is copied as it lies on the disk.  The copy is mounted, which recovers the journal, and
judged by what the victim had acknowledged by then.  An unrelated file is synced before each
copy in round 1, and now and then in later rounds.  So the journal commits all names that
have changed by then: names without data.  In the last round one change fails, and the power goes at
the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator

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
from job import scratch
from supervision import KILL, PASS, Call, Say, run_victim
from supervision import why_not as why_not_held
from tally import Enough, Tally, Wrong
from victim import Aftermath, Victim

from holdfast.checkpoint.errors import CheckpointError

_ROUNDS = 4
_SHORT_CASES = 2
"""For each victim and file system, all in one round."""
_SYNCED_SHARE = 0.3
_FOLDER = "case"
_stops: list[int] = []


def run(seed: int, victim: Victim, *, is_short: bool, only: int | None) -> list[Tally]:
    """Strike one victim on each file system; ``only`` replays the case of that number."""
    hide_mounts()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _frame: _stops.append(found))
    kinds: tuple[Kind, ...] = (EXT4, XFS)
    if is_short:  # one has to do
        kinds = (random.Random(f"{seed}/{victim.name}").choice(kinds),)
    return [_run_kind(kind, victim, seed, is_short=is_short, only=only) for kind in kinds]


def _run_kind(kind: Kind, victim: Victim, seed: int, *, is_short: bool, only: int | None) -> Tally:
    tally = Tally(f"{kind.name}, {victim.name}", f"--part power --victim {victim.name}")
    with scratch() as folder:
        tally.skipped = why_not_held() or why_not(kind, folder)
    if tally.skipped:
        return tally
    changes = _count_changes(victim, seed)
    chosen = {only} if only is not None else set(range(changes * (_ROUNDS + 1)))
    if is_short and only is None:
        choose = random.Random(f"{seed}/{tally.part}")
        first = choose.randrange(_ROUNDS) * changes
        chosen = set(choose.sample(range(first, first + changes), min(_SHORT_CASES, changes)))
    with Enough.caught:
        for number in sorted({case // changes for case in chosen} - {_ROUNDS}):
            _Round(kind, victim, seed, tally).run(chosen, number, number * changes)
        for case in sorted(case for case in chosen if case // changes == _ROUNDS):
            _Round(kind, victim, seed, tally).run_with_failure(case % changes, case)
    return tally


class _Round:
    """One victim on one image, and the power cuts that it is spared."""

    def __init__(self, kind: Kind, victim: Victim, seed: int, tally: Tally) -> None:
        self._kind, self._victim, self._seed, self._tally = kind, victim, seed, tally
        self._words: list[str] = []

    def run(self, chosen: set[int], number: int, first: int) -> None:
        """Run the victim; cut the power before the changes whose numbers are ``chosen``."""
        choose = random.Random(f"{self._seed}/{number}")
        case = first

        def decide(image: BlockImage, call: Call) -> int:
            nonlocal case
            if number == 1 or (number > 1 and choose.random() < _SYNCED_SHARE):
                _sync_unrelated(image)
            if case in chosen:
                self._cut(image, case, f"round {number}, before {call}")
            case += 1
            return PASS

        with self._victim_on_image(decide) as image:
            if case in chosen:
                self._cut(image, case, f"round {number}, at the end")

    def run_with_failure(self, fails_at: int, case: int) -> None:
        """Let one change of the victim fail, and cut the power at its end."""
        number, what = 0, "no change"

        def decide(_: BlockImage, call: Call) -> int:
            nonlocal number, what
            number += 1
            if number != fails_at + 1:
                return PASS
            what = str(call)
            return errno.EIO

        with self._victim_on_image(decide) as image:
            self._cut(image, case, f"after EIO at {what}, at the end")

    @contextlib.contextmanager
    def _victim_on_image(self, decide: Callable[[BlockImage, Call], int]) -> Iterator[BlockImage]:
        """Run the victim on an image up to its end, and keep that for the block."""
        with scratch() as self._scratch, new_image(self._kind, self._scratch) as image:
            folder = image.mount_point / _FOLDER
            folder.mkdir()
            self._victim.prepare(folder, self._seed)
            _sync_all(image)

            def act(say: Say) -> None:
                self._victim.act(folder, self._seed, say)

            def decide_now(call: Call) -> int:
                if _stops:
                    return KILL
                return decide(image, call) if call.changes else PASS

            run_victim(act, folder, decide_now, self._words.append)
            yield image
        if _stops:
            sys.exit(128 + _stops.pop())

    def _cut(self, image: BlockImage, case: int, what: str) -> None:
        # A name of its own: the loop device of the last copy may go later than its mount.
        copy = self._scratch / f"copy-{case}.img"
        image.copy_to(copy)
        self._tally.cases += 1
        words = tuple(self._words)

        def complain(wrong: Wrong, text: str) -> None:
            self._tally.complain(wrong, case, f"{what}: {text}; it had said {list(words)}")

        with removed(copy), mounted(copy, self._scratch / "after", self._kind.options) as found:
            folder = found.mount_point / _FOLDER
            after = Aftermath(folder, self._seed, words, complain, has_lost_memory=True)
            try:
                self._victim.judge(after)
            except (OSError, CheckpointError) as error:
                complain(Wrong.OTHER, f"what is left cannot be judged: {error!r}")


def _count_changes(victim: Victim, seed: int) -> int:
    """Return the power cuts of one round: one before each change, and one at the end."""
    with scratch() as folder:
        (folder / _FOLDER).mkdir()
        victim.prepare(folder / _FOLDER, seed)

        def work(say: Say) -> None:
            victim.act(folder / _FOLDER, seed, say)

        ended = run_victim(work, folder / _FOLDER, lambda _: PASS)
    return sum(call.changes for call in ended.calls) + 1


def _sync_unrelated(image: BlockImage) -> None:
    with (image.mount_point / "unrelated").open("ab") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


def _sync_all(image: BlockImage) -> None:
    """Make all that a victim finds durable."""
    for folder, _, names in os.walk(image.mount_point):
        for name in (".", *names):
            descriptor = os.open(f"{folder}/{name}", os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
