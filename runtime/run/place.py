"""A place of copies: a directory of an object store, or of another disk, named by a URL.

It has the layout of a run directory: ``RUN.json`` and ``checkpoints/step-…``.  An object store has
no directories and no rename, so here the manifest is what a rename is on a disk: it is written
last and removed first.  A step without one does not exist, and its files are leftovers.

`Place` is the file system that `CheckpointStore` asks for, as far as it reads.  So every reader of
checkpoints reads a place as well: digests decide, and an object that was damaged is found.

fsspec knows the protocols, and finds credentials where their own tools do.  A call of a store may
hang for ever.  So a thread makes it, and is given up when nothing has moved for a while: what asks
waits no longer than that.
"""

from __future__ import annotations

import concurrent.futures
import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.filesystem import DirectoryName, FileSystem
from holdfast.checkpoint.names import MANIFEST_NAME, STORE_NAME, step_name, step_of
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.place_url import PlacePath
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.system.daemon_executor import DaemonExecutor

ANSWERS_WITHIN_S = 30.0
"""A store that moves nothing for so long counts as hanging."""

_BLOCK_BYTES = 8 << 20
"""What is asked for at once: small enough for a slow link to move within the bound."""

_T = TypeVar("_T")


class Place(FileSystem):
    """One place of copies.

    All calls raise ``OSError`` alone, whose text is the store's.
    """

    def __init__(self, url: str, within_s: float = ANSWERS_WITHIN_S) -> None:
        """Prepare to talk to a store; nothing is sent.

        Raises:
            UsageError: what speaks its protocol is not installed.
        """
        super().__init__()
        self.url = url
        self.path = PlacePath(url)
        self.store = CheckpointStore(self.path, self)
        self._within_s = within_s
        self._moved = 0
        """Grows with all that moves."""
        self._thread: DaemonExecutor | None = None
        self._numbers = itertools.count()
        self._open: dict[int, _OpenObject] = {}
        import fsspec  # few jobs have a place

        own = {"auto_mkdir": True} if url.startswith("file:") else {"use_listings_cache": False}
        try:
            self._files, self._base = fsspec.url_to_fs(url, skip_instance_cache=True, **own)
        except ImportError as error:
            extra = url.partition(":")[0]
            raise UsageError(
                f"{url} needs a library that is not installed ({error}); "
                f"`pip install 'holdfast-mpi[{extra}]'` installs it"
            ) from error

    def record(self) -> RunRecord | None:
        """Return the record of the run whose copies these are, None if there is none.

        Raises:
            OSError: it cannot be read now.
            UsageError: it is no record.
        """
        path = RunDirectory(self.path).record_path
        try:
            return RunRecord.decode(self._ask(self._files.cat_file, self._key(path)))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(f"{path} is no run record: {error}; give another URL") from error

    def name_run(self, record: RunRecord) -> None:
        """Say whose copies these are; raises ``UsageError`` if they are another run's."""
        found = self.record()
        self.refuse_others(found, record)
        if found != record:
            key = self._key(RunDirectory(self.path).record_path)
            self._ask(self._files.pipe_file, key, record.encode())

    def refuse_others(self, theirs: RunRecord | None, ours: RunRecord | None) -> None:
        """Raise ``UsageError`` unless these copies, of the record ``theirs``, may be ours.

        ``ours`` is None if the run directory has none, so that this run is taken.
        """
        other = "; give this run a URL of its own by --copy-to, or remove what is there"
        if theirs is None and self.store.steps():
            raise UsageError(f"{self.url} holds checkpoints, and no RUN.json tells whose{other}")
        if theirs is not None and ours is not None and ours.run_id != theirs.run_id:
            its = f"{self.url} holds run {theirs.run_id}"
            raise UsageError(f"{its}, and this is run {ours.run_id}{other}")

    def runs(self) -> tuple[Path, ...]:
        """Return the places here and below that have the record of a run, by name."""
        name = RunDirectory(self.path).record_path.name
        found = [self.path / key for key in self._sizes(self.path)]
        return tuple(sorted(path.parent for path in found if path.name == name))

    def script_files(self) -> tuple[Path, ...]:
        """Return the files here that a script of the run has made in its run directory."""
        there = RunDirectory(self.path)
        found = [there.loaded_path / name for name in self._sizes(there.loaded_path)]
        if self._ask(self._files.exists, self._key(there.script_record_path)):
            found.append(there.script_record_path)
        return tuple(found)

    def put(self, handle: int, path: Path, told: Callable[[], None] = lambda: None) -> None:
        """Make an object of an open file's content; ``told`` is called while it moves."""
        from fsspec.callbacks import Callback

        def moved(*_: object) -> None:
            self._moved += 1
            told()

        watch = Callback()
        watch.relative_update = watch.absolute_update = moved
        source = f"/proc/self/fd/{handle}"  # its name may be gone meanwhile
        key, put = self._key(path), self._files.put_file
        self._ask(lambda: put(source, key, callback=watch, chunksize=_BLOCK_BYTES))
        told()

    def remove(self, step: int) -> None:
        """Remove a step, its manifest first; raises nothing if it is not there."""
        directory = self.store.directory / step_name(step)
        names = sorted(self._sizes(directory), key=lambda name: name != MANIFEST_NAME)
        for name in names:
            self._ask(self._files.rm_file, self._key(directory / name))
        if names and self.url.startswith("file:"):  # elsewhere it is gone with its files
            self._ask(self._files.rmdir, self._key(directory))

    def leftovers(self) -> tuple[int, ...]:
        """Return the steps of which there are files, and no manifest."""
        names = self._sizes(self.store.directory)
        steps = {step_of(name.partition("/")[0]): f"{name.partition('/')[0]}/" for name in names}
        return tuple(
            step
            for step, folder in steps.items()
            if step is not None and f"{folder}{MANIFEST_NAME}" not in names
        )

    def list(self, path: Path) -> tuple[str, ...]:
        """Return the names in a directory; a step without a manifest is none."""
        found = self._sizes(path)
        files = {name for name in found if "/" not in name}
        folders = {name.partition("/")[0] for name in found} - files
        if path.name == STORE_NAME:
            folders = {name for name in folders if f"{name}/{MANIFEST_NAME}" in found}
        return tuple(sorted([*files, *map(DirectoryName, folders)]))

    def is_directory(self, path: Path) -> bool:
        """Return whether there is anything below a path."""
        return bool(self._sizes(path))

    def open_read(self, path: Path) -> int:
        """Look for an object, and return a handle to read it by."""
        key = self._key(path)
        size = int(self._ask(self._files.info, key)["size"])
        handle = next(self._numbers)
        self._open[handle] = _OpenObject(key, size)
        return handle

    def size(self, handle: int) -> int:
        """Return the bytes of an object."""
        return self._open[handle].size

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``, as far as one block goes; 0 at the end."""
        found = self._open[handle]
        if not 0 <= offset - found.start < len(found.block):
            stop = min(offset + _BLOCK_BYTES, found.size)
            block = b""
            if offset < stop:
                block = self._ask(self._files.cat_file, found.key, start=offset, end=stop)
            found.start, found.block = offset, block
        part = memoryview(found.block)[offset - found.start :][: len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def uncache(self, handle: int) -> None:
        """Do nothing: every object comes from the store."""

    def close(self, handle: int) -> None:
        """Forget a handle."""
        self._open.pop(handle, None)

    def _key(self, path: Path) -> str:
        return "/".join((self._base, *path.relative_to(self.path).parts))

    def _sizes(self, path: Path) -> dict[str, int]:
        """Return all objects below a path, with their bytes."""
        key = self._key(path)
        found = self._ask(self._files.find, key, detail=True)
        return {
            name[len(key) :].lstrip("/"): int(each["size"] or 0)
            for name, each in found.items()
            if name.startswith(f"{key}/")
        }

    def _ask(self, call: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
        """Let a thread make a call, and wait for it as long as something moves."""
        if self._thread is None:
            self._thread = DaemonExecutor(1, "holdfast-place")
        future = self._thread.submit(call, *arguments, **named)
        before = -1
        while before != self._moved:
            before = self._moved
            concurrent.futures.wait([future], self._within_s)
            if future.done():
                break
        else:
            self._thread = None  # the call may never end
            reason = f"it has not answered for {self._within_s:.0f} s"
            raise OSError(errno.ETIMEDOUT, reason, self.url)
        self._moved += 1
        error = future.exception()
        if error is not None:
            raise _as_os_error(error) from error
        return future.result()


@dataclass(slots=True)
class _OpenObject:
    """An object that is read, and the block of it that was read last."""

    key: str
    size: int
    start: int = 0
    block: bytes = b""


def _as_os_error(error: BaseException) -> OSError:
    """Return what a library has raised as the error of a call."""
    text = " ".join(str(error).split()) or type(error).__name__
    for kind, number in ((FileNotFoundError, errno.ENOENT), (PermissionError, errno.EACCES)):
        if isinstance(error, kind):
            return OSError(number, text)
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return OSError(errno.EIO, text)


def reason_of(error: BaseException) -> str:
    """Return what a store has answered, without the advice for disks."""
    cause = error.__cause__ if isinstance(error, StorageFailed) else error
    return (cause.strerror if isinstance(cause, OSError) else None) or str(error)
