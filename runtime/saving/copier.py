"""The copier: a process beside the job that copies whole steps to a second place.

It is a child of the head, and dies with it.  It looks at committed steps alone, so no save, no
step and no writer waits for it, and it can be killed and started anew at any moment.

The newest step goes first, then older ones that the retention keeps; the place is pruned by the
same retention.  A step is compared with its digests before it is sent, and its files are held
open: a prune that removes their names meanwhile takes nothing away.  The manifest goes last.
So a copy that is cut short is no step, and the next copier removes its files.

The head's host copies the files of all hosts, which it sees in the run directory.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointInvalid,
    CheckpointUnreadable,
    CommitRefused,
)
from holdfast.checkpoint.filesystem import PacedFileSystem
from holdfast.checkpoint.names import MANIFEST_NAME, step_name
from holdfast.checkpoint.retention import KnownStep, PrunePlan, Retention, known_step, prune_plan
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import JobError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.checkpoint_events import CopiesTold, StepCopied
from holdfast.runtime.run.files import open_to_read
from holdfast.runtime.run.place import Place, reason_of
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.save_messages import (
    CopyMoves,
    CopyRun,
    EndCopies,
    LookAgain,
    OfCopier,
    PlanSaves,
    ToCopier,
)
from holdfast.runtime.system.channel import Channel, MessageKinds, to_message
from holdfast.runtime.system.codec import decode
from holdfast.runtime.system.own_process import allow_many_files, die_with_parent, name_process

_NICE = 10
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
"""How long a place that fails is left alone."""
_TOLD_EVERY_S = 1.0
_MESSAGES: MessageKinds[ToCopier] = MessageKinds(ToCopier)


def main(control_fd: str, parent: str) -> None:
    """Serve the head, the process ``parent``, at the other end of the descriptor."""
    name_process("holdfast-copier")
    os.nice(_NICE)
    allow_many_files()
    die_with_parent(int(parent))
    CopierProcess(Channel.adopt(int(control_fd))).run()
    os._exit(0)  # threads of libraries may wait for a store that hangs


class CopierProcess:
    """Copies until the head says that the job is over, and tells when the place fails."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._copier: Copier | None = None
        self._url = ""
        self._told_at = self._retry_at = 0.0
        self._pause_s = 0.0
        """Longer with each failure in a row, 0 while the place is well."""
        self._is_asked = self._is_over = False

    def run(self) -> None:
        """Serve until the end."""
        while not self._channel.is_closed:
            for line in self._channel.drain():
                self._take(_MESSAGES.decode(line))
            left_s = self._retry_at - time.monotonic()
            if self._copier is None or not (self._is_over or (self._is_asked and left_s <= 0)):
                waiting = select.poll()  # select(2) knows no descriptor beyond 1023
                waiting.register(self._channel, select.POLLIN)
                waiting.poll(1000 * left_s if self._is_asked else None)
            else:
                has_more = self._work(self._copier)
                if self._is_over and not has_more:
                    break
        lacking = None if self._copier is None else self._copier.lacking
        if lacking is not None:
            self._say(
                f"step {lacking} is in the run directory alone; the next `holdfast run` with "
                "--copy-to copies it (give --again if the run is complete)"
            )

    def _work(self, copier: Copier) -> bool:
        """Copy a step; return whether one was copied, so that there may be more."""
        try:
            copied = copier.work()
        except CommitRefused:  # the directory is not the job's just now, or any more
            copied = None
        except (CheckpointError, JobError, OSError) as error:
            if not self._pause_s:
                self._say(
                    f"none just now: {reason_of(error)}; the job goes on without, and they are "
                    "tried again until it ends"
                )
            self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self._retry_at = time.monotonic() + self._pause_s
            return False
        if copied is not None:
            self._tell(copied)
        if self._pause_s:
            self._say("made again" if copied is None else f"made again, from step {copied.step} on")
        self._pause_s = 0.0
        self._is_asked = copied is not None
        return copied is not None

    def _take(self, message: ToCopier) -> None:
        self._is_asked = True
        match message:
            case CopyRun(config):
                self._url = config.options.copy_to or ""
                self._copier = Copier(config, Place(self._url), self._say, self._moves)
            case PlanSaves() if self._copier is not None:
                self._copier.retention = decode(SavePlan, message.plan.encode()).terms.retention
            case LookAgain(step) if self._copier is not None:
                self._copier.saved(step)
            case EndCopies():
                self._is_over = True

    def _moves(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TOLD_EVERY_S:
            self._told_at = now
            self._tell(CopyMoves())

    def _say(self, text: str) -> None:
        self._tell(CopiesTold(self._url, text))

    def _tell(self, message: OfCopier) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(to_message(message))


class Copier:
    """Copies the steps of one run to one place, one at each call.

    ``say`` takes a sentence on a step that is left out; ``moves`` is called while a file is sent.
    """

    def __init__(
        self,
        config: WorkerConfig,
        place: Place,
        say: Callable[[str], None],
        moves: Callable[[], None] = lambda: None,
    ) -> None:
        self.retention: Retention | None = None
        """None until a launch has told its own: nothing is removed."""
        self._config = config
        self._place = place
        self._say = say
        self._moves = moves
        self._here = CheckpointStore(config.options.run_dir)
        self._same: set[int] = set()
        """Steps that are the same in both places."""
        self._damaged: set[int] = set()
        self._sent: dict[Path, int] = {}
        """Files of the script that are in the place, with their bytes."""

    def saved(self, step: int) -> None:
        """Take note that a step was committed; one of its number may have been another."""
        self._same.discard(step)
        self._damaged.discard(step)

    @property
    def lacking(self) -> int | None:
        """The newest step, if it is not known to be in the place."""
        with contextlib.suppress(CheckpointError):
            return next((s for s in self._here.steps()[:1] if s not in self._same), None)
        return None

    def work(self) -> StepCopied | None:
        """Prune, and copy the newest step that the place lacks; None if it lacks none.

        Raises ``OSError``, ``CheckpointError`` or ``JobError`` if the place fails, and
        ``CommitRefused`` if the run directory is not the job's.
        """
        self._config.ownership.prove()
        record = RunDirectory(self._config.options.run_dir).load_record()
        self._place.name_run(record or self._config.record)
        removed = self._plan(self._place.store.steps()).removed
        for step in (*removed, *self._place.leftovers()):
            self._place.remove(step)
        here, there = self._here.steps(), self._place.store.steps()
        self._same &= set(there)
        if not there:  # it may have been emptied
            self._sent.clear()
        kept = self._plan({*here, *there}).kept
        for step in here:
            if step in kept and step not in self._same | self._damaged:
                if step in there and self._is_same(step):
                    self._same.add(step)
                elif copied := self._copy(step):
                    return copied
        return None

    def _is_same(self, step: int) -> bool:
        mine, its = (
            store.disk.content(store.directory / step_name(step) / MANIFEST_NAME)
            for store in (self._here, self._place.store)
        )
        return mine == its

    def _plan(self, steps: Iterable[int]) -> PrunePlan:
        """Return which of these steps stay, and which go."""
        if self.retention is None:
            return PrunePlan(tuple(steps), ())
        here, run_id = self._here.steps(), self._config.record.run_id
        known = [
            known_step(self._here if step in here else self._place.store, step, run_id)
            if self.retention.has_best
            else KnownStep(step)
            for step in steps
        ]
        return prune_plan(known, self.retention)

    def _copy(self, step: int) -> StepCopied | None:
        """Copy a step whose every byte verifies; one that does not is left out."""
        began, run_dir = time.monotonic(), self._config.options.run_dir
        with HeldFiles(run_dir) as files:
            scan = CheckpointStore(run_dir, files).scan(step)
            try:
                manifest = scan.manifest()  # opens all files
                manifest.refuse_other_run(self._config.record.run_id)
                scan.read_shards(manifest, range(manifest.writers), lambda *_: None)
            except CheckpointUnreadable:
                raise
            except CheckpointInvalid as error:
                if step in self._here.steps():  # else it was pruned just now
                    self._damaged.add(step)
                    self._say(f"step {step} is left out, as it does not verify: {error.reason}")
                return None
            self._place.remove(step)
            self._copy_script_files()
            directory = self._place.store.directory / step_name(step)
            for name in sorted(files.held, key=lambda name: (name == MANIFEST_NAME, name)):
                self._config.ownership.prove()
                self._place.put(files.held[name], directory / name, self._moves)
        self._same.add(step)
        seconds = round(time.monotonic() - began, 6)
        return StepCopied(step, seconds, manifest.nbytes, self._place.url)

    def _copy_script_files(self) -> None:
        """Copy what the script has read and drawn: a launch from a later step counts on it."""
        run = RunDirectory(self._config.options.run_dir)
        for path in (run.script_record_path, *sorted(run.loaded_path.glob("*"))):
            with contextlib.suppress(FileNotFoundError), open_to_read(path) as file:
                size = os.fstat(file.fileno()).st_size
                if self._sent.get(path) != size:
                    self._place.put(file.fileno(), self._place.path / path.relative_to(run.path))
                    self._sent[path] = size


class HeldFiles(PacedFileSystem):
    """The files of a step, which stay readable from their first opening to the end of a block."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.held: dict[str, int] = {}
        """Descriptors, by the names of the files."""

    def __enter__(self) -> HeldFiles:
        """Begin to hold."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all files."""
        for handle in self.held.values():
            os.close(handle)

    def open_read(self, path: Path) -> int:
        """Open a file, or the one that is held under its name once more."""
        if path.name not in self.held:
            self.held[path.name] = super().open_read(path)
        return os.dup(self.held[path.name])


if __name__ == "__main__":
    main(*sys.argv[1:])
