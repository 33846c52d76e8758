"""A damaged checkpoint made whole from a second holder, instead of being given up.

A restore asks for a mend.  The process that mends is the
one that commits.  A failure of a second holder is reported, and never fails the job.

The usual second holder is a mirror: another copy of the run directory, as ``--repair-from`` names
it.  It is often on another machine's disk.  If the server of a network file system is gone, a call
hangs instead of failing.  So a thread of its own reads the mirror.  The mirror is given up when
*one call* has not returned for a while; a whole mend may take longer.  When the call does return,
it fails, and so does every later call of this process.  So the thread commits nothing after the
worker has gone on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from holdfast.checkpoint.disk import Watch, unwatched
from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.repair import Holders, MendResult, mend_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.checkpoint_events import Mended, MendFailed, StoreRemoved
from holdfast.runtime.run.entries import record
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.witnessed_time import witnessed_s

_CALL_WITHIN_S = 60.0
_LOOK_S = 0.5
_Result = TypeVar("_Result")


class Report(Protocol):
    """Takes events and sentences; neither call raises or waits for long."""

    def record(self, event: str, /, **fields: object) -> None:
        """Write an event into the journal."""

    def notify(self, text: str) -> None:
        """Show one line to the user."""

    def disk_moved(self, change: int) -> None:
        """Take note of what the disk is busy with, as `disk.Watch` says; any thread may."""


def tell_removal(report: Report, store: CheckpointStore, newest: int) -> None:
    """Tell that the steps of a store before ``newest``, or before older new ones, are gone."""
    directory, step = str(store.directory), newest
    with contextlib.suppress(CheckpointError):
        step = min(store.steps(), default=newest)
    record(report, StoreRemoved(directory=directory, step=step))
    report.notify(
        f"{directory} was removed, or its disk unmounted: it has no checkpoint before step {step}"
    )


def tell_failure(report: Report, holder: str, step: int | None, reason: str) -> None:
    """Tell that a step, or any step if it is None, was not mended from a holder."""
    record(report, MendFailed(reason=reason, holder=holder, step=step))
    what = "no checkpoint" if step is None else f"checkpoint step {step}"
    verb = "can be" if step is None else "was not"
    report.notify(f"{what} {verb} mended from {holder}: {reason}")


class Holder(Protocol):
    """Another place that may have what a run directory has lost."""

    @property
    def name(self) -> str:
        """The holder's name in messages."""

    def steps(self) -> tuple[int, ...]:
        """Return the steps of this run that it has; raise ``CheckpointError`` if it is useless."""


class SecondHolder(Holder, Protocol):
    """A holder from which this process mends."""

    def mend(self, step: int) -> MendResult | None:
        """Make a step of the run directory whole; return None if the holder lacks the step.

        Raises ``CheckpointError`` if the step cannot be mended.
        """


_Some = TypeVar("_Some", bound=Holder)


class KnownHolders(Generic[_Some]):
    """The second holders of a run, as far as they have been of use."""

    def __init__(self, report: Report, holders: tuple[_Some, ...]) -> None:
        self._report = report
        self._holders = holders

    @property
    def has_holders(self) -> bool:
        """Whether the run has a second holder; the same on all workers."""
        return bool(self._holders)

    def steps(self) -> frozenset[int]:
        """Return the steps that any holder has; a useless holder is not asked again."""
        found: set[int] = set()
        useful = []
        for holder in self._holders:
            try:
                found.update(holder.steps())
                useful.append(holder)
            except CheckpointError as error:
                tell_failure(self._report, holder.name, None, str(error))
        self._holders = tuple(useful)
        return frozenset(found)


class Mender(KnownHolders[SecondHolder]):
    """Asks the second holders of a run, one after the other, and reports each outcome."""

    def mend(self, step: int) -> MendResult | None:
        """Make a step whole from the first holder that can; return None if none of them can."""
        for holder in self._holders:
            try:
                result = holder.mend(step)
            except CheckpointError as error:
                tell_failure(self._report, holder.name, step, str(error))
            else:
                if result is not None:
                    self._tell(holder, result)
                    return result
        return None

    def _tell(self, holder: SecondHolder, result: MendResult) -> None:
        if not result.faults:
            return  # it is whole: the fault was gone at this reading
        mended = Mended(
            step=result.step,
            taken=result.taken,
            parts=result.parts,
            holder=holder.name,
            bad_name=result.bad_name,
        )
        record(self._report, mended)
        aside = f"; the damaged one is now {result.bad_name}" if result.bad_name else ""
        self._report.notify(
            f"checkpoint step {result.step} was mended, {result.taken} of {result.parts} parts "
            f"from {holder.name}{aside}"
        )


def mirrors(
    store: CheckpointStore, repair_from: Path | None, run_id: str, watch: Watch = unwatched
) -> tuple[Mirror, ...]:
    """Return the mirrors that the user has named of the run in ``store``."""
    return () if repair_from is None else (Mirror(store, repair_from, run_id, watch=watch),)


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
        self._holders = Holders(here, CheckpointStore(path, self._files), self._refuse_if_given_up)
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
