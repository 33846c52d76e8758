"""A mirror: another copy of a run directory, as ``--repair-from`` names it.

It is the usual second holder.  It is often on another machine's disk.  If the server of a
network file system is gone, a call hangs instead of failing.  So a thread of its own
reads the mirror.  The mirror is given up when *one call* has not returned for a while; a
whole mend may take longer.  When the call does return, it fails, and so does every later
call of this process.  So the thread commits nothing after the worker has gone on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.disk.disk import Watch, unwatched
from holdfast.checkpoint.disk.filesystem import LocalFileSystem
from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.mend import Holders, MendResult, mend_step
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.witnessed_time import witnessed_s

_CALL_WITHIN_S = 60.0
_LOOK_S = 0.5

_Result = TypeVar("_Result")


class MirrorUnusable(CheckpointError):
    """A mirror is no copy of the run directory, or cannot be read."""


class Mirror:
    """Mends the checkpoints of one run from a mirror of its directory."""

    def __init__(
        self,
        here: CheckpointStore,
        path: Path,
        run_id: str,
        call_within_s: float = _CALL_WITHIN_S,
        *,
        watch: Watch = unwatched,
    ) -> None:
        """Take ``path`` for a mirror; ``watch`` is told that it reads, or is waited for."""
        self._path = path
        self._watch = watch
        self._run_id = run_id
        self._call_within_s = call_within_s
        self._files = _WatchedFiles(path)
        # If the run has a key, the mirror's checkpoints must be signed with it as well.
        self._holders = Holders(
            here, CheckpointStore(path, self._files, here.key), self._refuse_if_given_up
        )
        self._holders.there.disk.watch(watch)

    @property
    def name(self) -> str:
        """Its path."""
        return str(self._path)

    def steps(self) -> tuple[int, ...]:
        """Return the steps of this run that it has, newest first.

        Raises ``CheckpointError`` if the mirror is not of this run, or cannot be read.
        """
        return self._within_bounds(self._steps)

    def mend(self, step: int) -> MendResult:
        """Make ``step`` of the run whole, and return once it verifies.

        Raises ``CheckpointError`` if the step cannot be mended; then nothing has changed.
        """
        return self._within_bounds(lambda: mend_step(self._holders, step, run_id=self._run_id))

    def _steps(self) -> tuple[int, ...]:
        there = self._holders.there
        try:
            with self._files.call():
                is_directory = self._path.is_dir()
        except OSError as error:
            raise MirrorUnusable(f"{self._path} cannot be read: {error.strerror}") from error
        if not is_directory:
            raise MirrorUnusable(f"{self._path} is not a directory; give a copy of this run")
        steps = there.steps()
        found = self._run_id_there(steps)
        if found not in (None, self._run_id):
            raise MirrorUnusable(
                f"{self._path} holds run {found}, not {self._run_id}; give a copy of this run"
            )
        return steps

    def _run_id_there(self, steps: tuple[int, ...]) -> str | None:
        """Return the id of the run that it mirrors, None if that cannot be read."""
        try:
            with self._files.call():
                record = RunDirectory(self._path).load_record()
            if record is not None:
                return record.run_id
            return self._holders.there.scan(steps[0]).manifest_alone().run_id if steps else None
        except (OSError, UsageError, CheckpointInvalid):
            return None  # each step's manifest says it too

    def _refuse_if_given_up(self) -> None:
        """Raise ``MirrorUnusable`` once nobody waits for a mend any more."""
        if self._files.is_given_up:
            raise MirrorUnusable(f"{self._path} was given up before its mend was complete")

    def _within_bounds(self, work: Callable[[], _Result]) -> _Result:
        """Return what ``work`` returns, unless a call of it hangs."""
        result: Future[_Result] = Future()
        threading.Thread(
            target=_settle, args=(result, work), name="holdfast-mirror", daemon=True
        ).start()
        while not wait([result], min(_LOOK_S, self._call_within_s)).done:
            seconds = self._files.waits_for_s()
            if seconds:
                self._watch(0)  # that wait has a bound of its own
            if seconds > self._call_within_s:
                self._files.give_up()
                raise MirrorUnusable(
                    f"{self._path} has not answered for {self._call_within_s:g} s; "
                    "look at its disk, or at the network"
                )
        return result.result()


def _settle(result: Future[_Result], work: Callable[[], _Result]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # raised again in the thread that waits
        result.set_exception(error)


class _WatchedFiles(LocalFileSystem):
    """A file system for reading that knows how long its current call has taken."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._since: float | None = None
        self.is_given_up = False

    def waits_for_s(self) -> float:
        """Return the seconds since the current call began, 0 if there is none."""
        since = self._since
        return 0.0 if since is None else witnessed_s() - since

    def give_up(self) -> None:
        """Let every further call fail."""
        self.is_given_up = True

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Time the block, a call that may hang; raise ``OSError`` once given up."""
        self._refuse_if_given_up()
        self._since = witnessed_s()
        try:
            yield
        finally:
            self._since = None
        self._refuse_if_given_up()

    def _refuse_if_given_up(self) -> None:
        if self.is_given_up:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def open_read(self, path: Path) -> int:
        """Open a regular file for reading."""
        with self.call():
            return super().open_read(path)

    def size(self, handle: int) -> int:
        """Return the bytes of an open file."""
        with self.call():
            return super().size(handle)

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``; return how many bytes came."""
        with self.call():
            return super().read(handle, buffer, offset)

    def list(self, path: Path) -> tuple[str, ...]:
        """Return the names in a directory."""
        with self.call():
            return super().list(path)

    def is_directory(self, path: Path) -> bool:
        """Return whether ``path`` is a directory itself."""
        with self.call():
            return super().is_directory(path)
