"""The directory of a job's checkpoints: staging, commit, listing, and the removal of names.

Invariant: *visible means complete*.  A directory gets its name ``step-…`` after every
file in it, and the names of those files, are durable.  So a reader that sees a step sees
all of it, before or after a power cut.  The digests find damage that a disk does later.

A save goes: staging directory → shards, synced → manifest, synced → directory synced →
renamed to the step → parent synced → acknowledged.  The first save of a step wins.
Any failure before the rename leaves only staging behind, which is never read.  Older
checkpoints are not touched.

A whole directory is removed in the same spirit: it is renamed first, and emptied afterwards.
So a step stops being visible at once and as a whole.  A save that was given up can no
longer be committed: the rename of a killed process may be carried out late, and finds
nothing under the old name.  Without this it could make a directory visible as a step that
is being emptied.  A removal that is cut short is completed by the next ``remove_hidden``.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointInvalid,
    CheckpointUnreadable,
    CommitRefused,
    StorageFailed,
)
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header, Manifest, ShardRecord
from holdfast.checkpoint.names import (
    MANIFEST_NAME,
    STORE_NAME,
    StagingName,
    is_removed,
    shard_name,
    step_name,
    step_of,
)
from holdfast.checkpoint.scan import Scan, tell_difference
from holdfast.checkpoint.tensor import ShardLayout, Tensors

_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY})


class CheckpointStore:
    """The checkpoints of one run directory.

    Any number of processes may hold a store of the same directory.  Only the coordinator
    of the job's current generation stages, commits and prunes.
    """

    def __init__(self, run_dir: Path, filesystem: FileSystem | None = None) -> None:
        self._run_dir = run_dir
        self.directory = self._run_dir / STORE_NAME
        self.disk = Disk(filesystem if filesystem is not None else FileSystem(self._run_dir))
        """The file system of the store; ``disk.new_downgrades`` tells the guarantees it lacks."""
        self._making = threading.Lock()
        self._is_anchored = False
        self._was_removed = False
        self.doubtful: set[int] = set()
        """Steps that are visible, though no save may rely on them: their renames may be lost."""

    def staging(self, step: int, generation: int, attempt: int) -> Staging:
        """Name the staging directory of a save; the first writer makes it."""
        return Staging(self, StagingName(step, generation, attempt))

    def next_attempt(self, header: Header) -> int:
        """Return the first attempt, from 1, above every attempt with a staged or bad directory."""
        parsed = (StagingName.parse(n, "tmp", "bad") for n in self.names())
        taken = [
            name.attempt
            for name in parsed
            if name and (name.step, name.generation) == (header.step, header.generation)
        ]
        return max(taken, default=0) + 1

    def steps(self) -> tuple[int, ...]:
        """Return the committed steps, newest first; a listed step may still be damaged."""
        found = map(step_of, self._listed(self.disk.directories))
        return tuple(sorted((step for step in found if step is not None), reverse=True))

    def names(self) -> tuple[str, ...]:
        """Return all names in the store's directory, none if there is no such directory."""
        return self._listed(self.disk.names)

    def _listed(self, listing: Callable[[Path], tuple[str, ...]]) -> tuple[str, ...]:
        try:
            return listing(self.directory)
        except StorageFailed as failure:
            if failure.errno != errno.ENOENT:
                raise
            return ()

    def scan(self, step: int) -> Scan:
        """Return the way to read a committed step."""
        return Scan(self.disk, self.directory / step_name(step), step)

    def clean_staging(self, below_generation: int) -> tuple[str, ...]:
        """Remove the staging of dead generations; returns a reason for each one that is left.

        Only for the coordinator of ``below_generation`` or later.
        """
        reasons: list[str] = []
        with noting(reasons):
            for name in self.names():
                save = StagingName.parse(name, "tmp")
                if save is not None and save.generation < below_generation:
                    with noting(reasons):
                        remove_staging(self.disk, self.directory / name, save.removed_name)
        return tuple(reasons)

    def make_directory(self) -> None:
        """Make the store's directory durable once, and again after it was removed.

        Threads that write shards may call it at once.  A removal may have taken the run
        directory, too, and the journal may have made that again: both names are synced then.
        """
        with self._making:
            if self._is_anchored:
                if self.disk.is_directory(self.directory):
                    return
                self._is_anchored, self._was_removed = False, True
            for path in (self._run_dir, self.directory):
                is_new = not self.disk.is_directory(path) and self.disk.make_directory(path)
                self._anchor(path, is_new=is_new)
            if not self.disk.is_directory(self.directory):
                error = OSError(errno.ENOTDIR, "it is a link or a file, not a directory")
                raise StorageFailed("use", self.directory, error)
            self._is_anchored = True

    def take_removal(self) -> bool:
        """Return whether the directory was made again since this was asked last."""
        was_removed, self._was_removed = self._was_removed, False
        return was_removed

    def _anchor(self, path: Path, *, is_new: bool) -> None:
        try:
            self.disk.fsync_directory(path.parent, is_outside=True)
        except StorageFailed:
            if is_new:
                # Syncing the same entry again may claim success without effect.
                with contextlib.suppress(StorageFailed):
                    self.disk.remove_empty(path)
            raise


class Staging:
    """A checkpoint that is being written, and is never read before it is committed."""

    def __init__(self, store: CheckpointStore, name: StagingName) -> None:
        self._store = store
        self._disk = store.disk
        self._name = name

    @property
    def path(self) -> Path:
        """The staging directory."""
        return self._store.directory / str(self._name)

    def open(self) -> None:
        """Make the directory, unless another writer of the save has."""
        self._store.make_directory()
        self._disk.make_directory(self.path)

    def write_shard(
        self, state: Tensors, layout: ShardLayout, writer: int, header: Header
    ) -> ShardRecord:
        """Write one writer's shard and make it durable; ``state`` may not change meanwhile.

        The state is not copied.  Digests are of its memory, and are taken as it is written.  So any
        damage on the way to the disk makes the checkpoint fail its verification.

        Raises ``CheckpointError`` and leaves no shard behind if anything fails.
        Safe in a background thread: the large calls release the GIL.
        """
        self._refuse_other_save(header.step, header.generation)
        # A process that only lists or restores checkpoints must not load HDF5.
        from holdfast.checkpoint.image import lay_out_shard

        image = lay_out_shard(layout, writer, header.run_id)
        contents = image.contents(state)
        described: list[ShardRecord] = []
        # Writers need not wait for each other: a shard's own O_EXCL keeps saves apart.
        self.open()
        self._disk.write_durably(
            self.path / shard_name(writer, layout.writers),
            image.buffers(contents, header),
            beside=lambda: described.append(image.describe(contents, header)),
        )
        return described[0]

    def write_image(self, image: memoryview, record: ShardRecord, writers: int) -> None:
        """Make the shard in a snapshot durable, if the snapshot still agrees with its record.

        It replaces what an earlier try has left.
        Raises ``CheckpointError`` and leaves no shard behind if anything fails.
        """
        self.open()
        path = self.path / shard_name(record.index, writers)
        self._disk.remove_file(path)
        self._disk.write_durably(path, [image], beside=lambda: record.check(image))

    def commit(self, manifest: Manifest) -> Path:
        """Make the checkpoint visible and durable; returns its directory.

        If the step is committed already and verifies, that checkpoint stays and this
        staging is removed; ``disk.new_downgrades`` tells if its state is another one.  A
        damaged checkpoint is moved aside, and so is one that gives way.  Raises
        ``CheckpointError`` if the new checkpoint is not durable; then it was not saved.
        """
        self._refuse_other_save(manifest.step, manifest.generation)
        self._refuse_incomplete(manifest)
        data = manifest.encode()
        self._disk.remove_file(self.path / MANIFEST_NAME)  # what an earlier try has left
        self._disk.write_durably(self.path / MANIFEST_NAME, [memoryview(data)])
        self._disk.fsync_directory(self.path)
        target = self._store.directory / step_name(manifest.step)
        if self._wins(target, manifest):
            self._settle(target, manifest.step)
        else:
            self._disk.fsync_directory(self._store.directory)
            self.abandon()
        return target

    def abandon(self) -> None:
        """Remove the staging directory as far as possible; a prune gets the rest."""
        with contextlib.suppress(StorageFailed):
            remove_staging(self._disk, self.path, self._name.removed_name)

    def _refuse_other_save(self, step: int, generation: int) -> None:
        if (step, generation) != (self._name.step, self._name.generation):
            raise CommitRefused(
                f"step {step} of generation {generation} does not belong in {self._name}; "
                "stage it in a directory of its own"
            )

    def _refuse_incomplete(self, manifest: Manifest) -> None:
        for shard in manifest.shards:
            path = self.path / shard_name(shard.index, manifest.writers)
            with self._disk.reading(path) as file:
                size = file.size()
            if size != shard.size:
                raise CommitRefused(
                    f"shard {shard.index} of step {manifest.step} has {size} bytes, its writer "
                    f"reported {shard.size}; save the step again"
                )

    def _wins(self, target: Path, manifest: Manifest) -> bool:
        """Rename to ``target``; return False if a checkpoint stays that is there already."""
        try:
            self._disk.rename(self.path, target)
        except StorageFailed as failure:
            if failure.errno not in _EXISTS:
                raise
            if self._stays(target, manifest):
                return False
            with self.moving_aside(target):
                self._disk.rename(self.path, target)
        return True

    @contextlib.contextmanager
    def moving_aside(self, target: Path) -> Iterator[None]:
        """Move a step aside that gives way, and put it back if ours cannot take its place."""
        aside = self._store.directory / self._name.bad_name
        self._disk.rename(target, aside)
        try:
            # Without this sync, a power cut could keep the second rename and lose this one.
            self._disk.fsync_directory(target.parent)
            yield
        except CheckpointError:
            with contextlib.suppress(CheckpointError):
                self._disk.rename(aside, target)
            raise

    def _stays(self, target: Path, manifest: Manifest) -> bool:
        if manifest.step in self._store.doubtful:
            return False
        try:
            found = self._store.scan(manifest.step).verify()
        except CheckpointUnreadable:
            # It may be whole: neither rely on it nor move it aside.
            raise
        except CheckpointInvalid:
            return False
        if found.run_id != manifest.run_id:
            raise CommitRefused(
                f"step {manifest.step} in {target.parent} belongs to run {found.run_id}, not to "
                f"{manifest.run_id}; use another run directory"
            )
        if found.gives_way and not manifest.gives_way:
            return False
        difference = tell_difference(self._store.scan(manifest.step), found, manifest)
        if difference is not None:
            self._disk.record_downgrade(difference)
        return True

    def _settle(self, target: Path, step: int) -> None:
        """Make the rename durable, or take it back: a failed save leaves no step behind.

        After a failed sync, the next sync of the directory may claim success although
        the rename is not durable.  A later attempt would find the step and call it saved,
        so the step must not stay.
        """
        try:
            self._disk.fsync_directory(target.parent)
        except StorageFailed:
            try:
                self._disk.rename(target, self.path)
            except StorageFailed:  # the first failure counts
                self._store.doubtful.add(step)
            raise
        self._store.doubtful.discard(step)


def hide(disk: Disk, directory: Path, hidden_name: str) -> Path | None:
    """Give a directory its hidden name, and return that; None if the directory is not there."""
    hidden = directory.with_name(hidden_name)
    try:
        try:
            disk.rename(directory, hidden)
        except StorageFailed as failure:
            if failure.errno not in _EXISTS:
                raise
            disk.remove_tree(hidden)  # an earlier removal of the same name was cut short
            disk.rename(directory, hidden)
    except StorageFailed as failure:
        if failure.errno != errno.ENOENT:
            raise
        return None
    return hidden


def remove_staging(disk: Disk, staging: Path, hidden_name: str) -> None:
    """Remove a save that was never committed; a power cut may bring its name back, but empty."""
    hidden = hide(disk, staging, hidden_name)
    if hidden is not None:
        disk.remove_tree(hidden)


def remove_hidden(store: CheckpointStore, reasons: list[str]) -> None:
    """Remove what is hidden in a store, once a power cut can bring no step's old name back."""
    hidden = [name for name in store.names() if is_removed(name)]
    if hidden:
        store.disk.fsync_directory(store.directory)
    for name in hidden:
        with noting(reasons):
            store.disk.remove_tree(store.directory / name)


@contextlib.contextmanager
def noting(reasons: list[str]) -> Iterator[None]:
    """Note the failure of a call as a reason, and go on."""
    try:
        yield
    except StorageFailed as failure:
        reasons.append(str(failure))
