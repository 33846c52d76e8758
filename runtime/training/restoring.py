"""All workers get the newest state: that of a peer, or of the newest valid checkpoint of the run.

One routine gives the state to starts, resumes and laggards.  The source is the lowest rank among
those that have committed most.  If no worker has a state yet, rank 0 is the source.  It loads the
newest valid checkpoint, or keeps the state that its model was built with.  So disk, network and a
fresh start are one path.  A death anywhere in it is repaired like any other.  A worker that begins
alone, or with the same weights as all others, holds the newest state already.

A checkpoint is read by all workers together: from the memory of the hosts that saved it, as far
as that is still whole, else from the disk.  The candidates are the steps that rank 0 lists,
newest first.  Each worker reads and verifies its part of the shards, then sends it to the others:
the file system delivers every byte once, to all hosts alike.  Digests come first: no byte is sent
before all shards have verified.  Nothing is loaded before all workers have everything.  If a step
fails for one worker, all reject it.

A read that fails is tried again by one rule (`Patience`).  A worker alone may have too
many open files, or a stale handle.  All wait for it: what one cannot read is read by none.  Only
those whose read has failed make it again.  Each wait is followed by an exchange, so a death breaks
the world here as anywhere else, and repair begins the restore anew.  A wait is work that needs no
peer: the page tells the agent so.  A step that is given up then may be whole, and is not rejected.

A restore that has taken no step begins the run only if there is none: not if all are damaged, and
not if one could not be read.

*Patience.*  A step is given up for good only if it is *proved* damaged: one worker has seen a wrong
byte.  A call that failed proves nothing.  File servers fail over within minutes, and open
files come back when others are closed.  So all workers wait together and try again, for a
bounded time.  Then an older step is better than none, and the job says what it has left.

All workers see the findings of all, and the seconds of rank 0: they decide alike, without
another message.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from holdfast.checkpoint.errors import (
    TRANSIENT,
    CheckpointError,
    CheckpointInvalid,
    CheckpointUnreadable,
    StorageFailed,
)
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import STORE_NAME, step_name
from holdfast.checkpoint.reader import Restored, StateReader
from holdfast.checkpoint.tensor import Tensors, state_sha256
from holdfast.runtime.errors import (
    CheckpointsUnread,
    RecoveryImpossible,
    RunDirectoryBusy,
    UsageError,
)
from holdfast.runtime.exchange.membership import Communicator, Membership
from holdfast.runtime.model.replica import first_cursor
from holdfast.runtime.run import events
from holdfast.runtime.run.checkpoint_events import Rejected, Unreadable
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.script_record import TRAININGS
from holdfast.runtime.saving.agent_saver import images_in_memory
from holdfast.runtime.saving.saver import Saver
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import RequestFlag
from holdfast.runtime.training.callback_host import Due, Notes
from holdfast.runtime.training.consistency import Mine, check_resumed, compare
from holdfast.runtime.training.initial_weights import load_initial_weights
from holdfast.runtime.training.job_state import (
    NO_STATE,
    is_passed_over,
    notes_of,
    share_notes,
    share_state,
    was_over,
)
from holdfast.runtime.training.training_job import MICROBATCHES


class ReadFinding(IntEnum):
    """What a worker has found of a step; of several findings, the largest counts."""

    FINE = 0
    TRANSIENT = 1
    """The call failed in a way that may be gone at the next one."""
    UNREADABLE = 2
    """The call failed in a way that will last, such as a missing permission."""
    DAMAGED = 3

    @property
    def is_unread(self) -> bool:
        """Whether the step may still be whole."""
        return self in (ReadFinding.TRANSIENT, ReadFinding.UNREADABLE)


@dataclass(frozen=True, slots=True)
class Patience:
    """The bounds: one restore waits for ``whole_s``, and tries each step ``least_tries`` times."""

    whole_s: float = 180.0
    """A Lustre or NFS server fails over in one to three minutes."""
    first_nap_s: float = 0.5
    longest_nap_s: float = 10.0
    """A death, or a wish to stop, is heard of after the nap."""
    least_tries: int = 3
    """For older steps, when the newest has used up the time; a stale handle needs one."""
    clock: Callable[[], float] = witnessed_s
    sleep: Callable[[float], None] = time.sleep

    def nap_s(self, worst: ReadFinding, tries: int, spent_s: float) -> float | None:
        """Return how long to wait before the next try, None to give the step up.

        ``worst`` is the worst finding of all workers at the last of so many ``tries``, and
        ``spent_s`` are the seconds that the restore has spent on failing ones.
        """
        if worst is not ReadFinding.TRANSIENT:
            return None
        doublings = min(tries - 1, 16)  # no float is too small for that
        nap_s = min(self.first_nap_s * 2.0**doublings, self.longest_nap_s)
        left_s = self.whole_s - spent_s
        if left_s > 0:
            return min(nap_s, max(left_s, self.first_nap_s))
        return nap_s if tries < self.least_tries else None


PATIENT = Patience()

_AGAIN = "nothing is known to be damaged: run again when the file system answers"
_MOST_NAMED = 3
_READS_BACK = (
    ". If the script reads back what it has written, such as a list of finished trials, it leaves "
    "trainings out: move that file or folder away, and run again; what is complete stays so"
)


@dataclass(frozen=True, slots=True)
class Shared:
    """The newest state and its notes."""

    tensors: Tensors
    notes: Notes | None
    is_own: bool = False
    """Whether the replica holds it already: the tensors are those of the cursor alone."""
    is_restored: bool = False
    """Whether it was read from a checkpoint."""
    due: Due | None = None
    """The commit whose callbacks have still to run."""


def share_newest(membership: Membership, mine: Mine, saver: Saver) -> Shared:
    """Return the newest state; if no member has one, read it from the disk or build it.

    The lowest rank that has committed most has it.

    Raises:
        ProgramError: nothing was saved, and the workers have built other weights.
        WorldBroken: a member died; nothing is changed.
    """
    communicator, state = membership.communicator, mine.state
    is_own, newest = communicator.size == 1, max(membership.versions)
    source = membership.versions.index(newest)
    if newest == NO_STATE:
        fresh = first_cursor(state.replica, mine.job.stage.begin)
        mine = replace(mine, cursor=fresh)
        restored = JobRestore(mine, communicator).run()
        if restored is not None:
            step, cursor_saved = restored.manifest.step, restored.manifest.cursor
            saver.saved_step = step
            state.restored(step, cursor_saved)
            due = Due.of(cursor_saved)
            return Shared(restored.state, notes_of(cursor_saved), is_restored=True, due=due)
        if mine.job.initial is None:  # which rank 0 alone has read
            compare(membership, mine, weights=True)
            is_own = True
    saver.share_saved_step(source)
    notes = None
    if newest != NO_STATE:  # else nobody has any
        notes = share_notes(communicator, source, state.notes())
    # A copy of weights that all have already, to load it again, takes its time.
    own = mine.cursor.tensors() if is_own else state.tensors(mine.cursor)
    return Shared(share_state(communicator, source, own), notes, is_own=is_own)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a worker could not read; ``seconds`` and ``tries`` are those of all workers together."""

    finding: ReadFinding = ReadFinding.FINE
    reason: str = ""
    number: int = 0
    path: str = ""
    seconds: float = 0.0
    tries: int = 1
    is_other_runs: bool = False
    """Whether the step is rejected only because another run has saved it."""

    @property
    def error(self) -> str:
        """The name of the error number, or "no errno"."""
        return errno.errorcode.get(self.number, "no errno")

    def __str__(self) -> str:
        return f"{self.reason}; tried {self.tries} times in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class _Try:
    """What a worker tells the others after a try."""

    trouble: Trouble
    spent_s: float
    is_stop_wanted: bool
    steps: tuple[int, ...]
    """The candidates, of rank 0."""
    held: tuple[int, ...] = ()
    """The shards whose files are in the memory of its host."""


class JobRestore:
    """One worker's part in restoring a job; all members of a world take theirs together."""

    def __init__(
        self, mine: Mine, communicator: Communicator, patience: Patience = PATIENT
    ) -> None:
        self._mine = mine
        self._context = mine.context
        self._job = mine.job
        self._communicator = communicator
        self._store = mine.context.open_store()
        self._repair = RunDirectory(mine.context.run_dir).command("repair", "--from", "COPY")
        self._patience = patience
        self._spent_s = 0.0
        self._steps: tuple[int, ...] = ()
        self._images: Mapping[int, memoryview] = {}
        """The files of the step at hand that are in this host's memory."""
        self._holders: list[tuple[int, ...]] = []
        """The shards whose files are in the memory of each worker's host."""
        self._troubles: dict[int, Trouble] = {}
        """Of the steps that were given up; those that are not damaged may be whole."""
        self._is_one_of_several = bool(mine.context.config.script_record.largest(TRAININGS))
        self._other_stages: dict[int, Mapping[str, object]] = {}
        """The cursors of checkpoints of other stages, and of those passed over, by step."""

    def run(self) -> Restored | None:
        """Return the newest state that verifies, None if the run has no checkpoint.

        If it is None, the replica of rank 0 has the weights that the job begins with.

        Raises:
            UsageError: the checkpoint belongs to another model, job or (if strict)
                other numerics; the message names what differs.  Or the checkpoints cannot be
                listed, and waiting would not help.
            RecoveryImpossible: there are checkpoints, and all of them are damaged.
            CheckpointsUnread: there are some that may be whole, and none could be read; or the
                job was asked to stop, and could only wait.
            WorldBroken: a member died.
        """
        self._refuse_intruder()
        self._list_steps()
        for step in self._steps:
            restored = self._read(step)
            if restored is not None:
                if self._is_first:
                    self._tell_of_restored(restored.manifest)
                return restored
        self._refuse_to_begin()
        if self._is_first:  # all others get the state of rank 0
            self._begin()
        return None

    @property
    def _is_first(self) -> bool:
        return self._communicator.rank == 0

    def _refuse_intruder(self) -> None:
        """Refuse to restore from, or to say anything of, the checkpoints of another run."""
        try:
            self._context.config.ownership.refuse_taken()
        except OSError as taken:
            raise RunDirectoryBusy(f"{taken}; this job ends, and leaves it alone") from taken

    def _list_steps(self) -> None:
        """Let all workers have the steps that rank 0 finds, newest first."""

        def list_them() -> None:
            if self._is_first:
                self._steps = tuple(filter(self._job.stage.may_have, self._store.steps()))

        trouble = self._try("the list of checkpoints", list_them)
        if trouble is not None and trouble.finding is ReadFinding.TRANSIENT:
            raise CheckpointsUnread(f"{trouble}; {_AGAIN}")
        if trouble is not None:
            raise UsageError(trouble.reason)

    def _read(self, step: int) -> Restored | None:
        """Return the state of a step, or None on all workers if any of them cannot use it."""
        found: list[StateReader] = []
        communicator = self._communicator

        def open_step() -> None:
            found.append(StateReader(self._store, step, self._context.config.record.run_id))
            self._images = images_in_memory(self._context, found[0].manifest)

        def read_part() -> None:
            found[0].allocate()
            mine = [shard for shard, rank in enumerate(readers) if rank == communicator.rank]
            found[0].read(mine, self._images)

        if not self._succeeds(step, open_step):
            return None
        (reader,) = found
        readers = readers_of(reader.manifest.writers, self._holders)
        cursor = reader.manifest.cursor
        is_mine = self._job.stage.is_of(cursor)
        if not is_mine or is_passed_over(cursor, is_followed=self._is_followed(step)):
            self._other_stages[step] = cursor
            return None
        try:
            self._refuse_edit(step, cursor)
            check_resumed(
                self._mine,
                reader.manifest,
                is_first=self._is_first,
                is_one_of_several=self._is_one_of_several,
            )
        except UsageError as error:
            raise UsageError(f"{error}{_READS_BACK * self._is_one_of_several}") from error
        if not self._succeeds(step, read_part):
            return None
        for shard in range(reader.manifest.writers):
            for contents in reader.contents(shard):
                view = np.frombuffer(contents, np.uint8)
                communicator.broadcast(view, readers[shard])
        self._context.rejected.discard(step)
        return Restored(reader.state, reader.manifest)

    def _succeeds(self, step: int, attempt: Callable[[], None]) -> bool:
        """Return whether all workers can read; a step that is damaged is remembered as rejected."""
        trouble = self._try(f"checkpoint step {step}", attempt)
        if trouble is None:
            return True
        self._troubles[step] = trouble
        if self._is_first:
            self._tell(step, trouble)
        if not trouble.finding.is_unread:
            self._context.rejected.add(step)
        return False

    def _try(self, what: str, attempt: Callable[[], None]) -> Trouble | None:
        """Try until all workers succeed; return what is wrong if ``what`` they read is given up."""
        patience = self._patience
        mine, before_s, began = _trouble_of(attempt), self._spent_s, patience.clock()
        for count in itertools.count(1):
            tries = self._exchange(mine)
            spent_s = tries[0].spent_s
            if count == 1:  # the first try is no waiting, however long it takes
                began, first_s = patience.clock(), spent_s
            worst = max((found.trouble for found in tries), key=lambda trouble: trouble.finding)
            if worst.finding is ReadFinding.FINE:
                self._steps = tries[0].steps
                self._holders = [found.held for found in tries]
                break
            trouble = replace(worst, seconds=spent_s - first_s, tries=count)
            nap_s = patience.nap_s(worst.finding, count, spent_s)
            if nap_s is None:
                return trouble
            if any(found.is_stop_wanted for found in tries):
                raise CheckpointsUnread(f"told to stop: {what}: {trouble}; {_AGAIN}")
            if count == 1 and self._is_first:
                self._context.notify(
                    f"{what} cannot be read just now: {trouble.reason}; all workers wait and try "
                    f"again, for {patience.whole_s:.0f} s in all"
                )
            with self._context.page.needing_no_peer():
                patience.sleep(nap_s)
            if mine.finding is not ReadFinding.FINE:
                mine = _trouble_of(attempt)
            self._spent_s = before_s + patience.clock() - began
        return None

    def _exchange(self, mine: Trouble) -> list[_Try]:
        """Return the tries of all workers, in rank order; each tells its own trouble."""
        is_stop_wanted = bool(self._context.page.requests & RequestFlag.STOP)
        told = _Try(mine, self._spent_s, is_stop_wanted, self._steps, tuple(self._images))
        return [decode(_Try, found) for found in self._communicator.allgather_bytes(encode(told))]

    def _refuse_edit(self, step: int, saved: Mapping[str, object]) -> None:
        """Refuse a stage that begins elsewhere now, or is longer after the next one has begun.

        What a later stage has saved was trained from the old end of the earlier one.  A stage
        that a callback has ended does not count as longer, nor one that comes to its error again.
        """
        stage, run_dir = self._job.stage, self._context.run_dir
        if not stage.begins_as(saved):
            raise UsageError(
                f"training {stage.number} of the script begins at step {stage.begin} now, and at "
                f"another one in the run in {run_dir}: an earlier training of the script has "
                "changed; start over with --fresh, or choose another --run-dir"
            )
        others = self._other_stages.values()
        is_early = was_over(saved) or any(stage.was_cut_off_at(step, found) for found in others)
        if self._is_followed(step) and step < self._job.work_plan.steps and not is_early:
            raise UsageError(
                f"training {stage.number} of the script has ended at step {step} of the "
                f"run in {run_dir}, and the next one has begun; the script asks for "
                f"{self._job.work_plan.steps} steps now: ask for as many as before, start over "
                "with --fresh, or choose another --run-dir"
            )

    def _is_followed(self, step: int) -> bool:
        """Return whether a later stage has begun at ``step``."""
        others = self._other_stages.values()
        return any(self._job.stage.is_followed_at(step, cursor) for cursor in others)

    def _begin(self) -> None:
        """Give a fresh replica the weights that the job begins with, if it names any."""
        source, replica = self._job.initial, self._mine.state.replica
        if source is not None:
            load_initial_weights(replica, source)
            sha256 = state_sha256(replica.state())
            self._context.journal.record(events.InitialWeights(source=str(source), sha256=sha256))

    def _refuse_to_begin(self) -> None:
        """Return if the run has no step, so that it may begin.

        Raises:
            RecoveryImpossible: all of them are damaged.
            CheckpointsUnread: some of them, or all, may be whole.
        """
        run_dir = self._context.run_dir
        unread = {step: found for step, found in self._troubles.items() if found.finding.is_unread}
        damaged = [step for step in self._troubles if step not in unread]
        named = [f"step {step}: {found}" for step, found in unread.items()][:_MOST_NAMED]
        more = [f"and {len(unread) - len(named)} more"] if len(unread) > len(named) else []
        reasons = "; ".join((*named, *more))
        if unread and damaged:
            raise CheckpointsUnread(
                f"no checkpoint of {run_dir} could be restored: {_steps(damaged)} damaged; "
                f"{_steps(unread)} not known to be damaged, but could not be read ({reasons}); "
                "run again when the file system answers"
            )
        if unread:
            raise CheckpointsUnread(
                f"none of the {len(unread)} checkpoints of {run_dir} could be read ({reasons}); "
                f"{_AGAIN}"
            )
        if damaged:
            raise RecoveryImpossible(
                f"none of the {len(damaged)} checkpoints of {run_dir} is valid; mend them from a "
                f"copy with {self._repair}, or start over with --fresh"
            )

    def _tell(self, step: int, trouble: Trouble) -> None:
        """Record why a step was given up; a step that may be whole is not rejected."""
        reason, place = trouble.reason, self._context.run_dir / STORE_NAME / step_name(step)
        if trouble.finding is ReadFinding.DAMAGED:
            self._context.journal.record(Rejected(step=step, reason=reason))
            lost, other = f"without a copy, remove {place}", f"move {place} to where that run is"
            advice = other if trouble.is_other_runs else lost
            self._context.notify(f"checkpoint step {step} was rejected: {reason}; {advice}")
            return
        unread = Unreadable(
            step=step,
            reason=reason,
            seconds=round(trouble.seconds, 3),
            tries=trouble.tries,
            path=trouble.path,
            error=trouble.error,
        )
        self._context.journal.record(unread)

    def _tell_of_restored(self, saved: Manifest) -> None:
        """Record from where training goes on; say why it is no newer step, if there is one."""
        step, generation = saved.step, self._context.config.generation
        self._context.journal.record(events.StepRestored(step=step, generation=generation))
        goes_on = f"training goes on from checkpoint step {step}"
        unread = [s for s, found in self._troubles.items() if found.finding.is_unread]
        rejected = [s for s in self._troubles if s not in unread]
        damaged = [s for s in rejected if not self._troubles[s].is_other_runs]
        if damaged:
            self._context.notify(
                f"{goes_on}, because step {damaged[0]} is damaged; to mend that from a copy, stop "
                f"the job: {self._repair}"
            )
        elif self._steps[0] in rejected:
            self._context.notify(goes_on)
        self._tell_of_microbatches(saved)
        for newer in unread:
            self._context.notify(
                f"{goes_on}, because the newer step {newer} could not be read: "
                f"{self._troubles[newer]}; it is not known to be damaged, and stays"
            )

    def _tell_of_microbatches(self, saved: Manifest) -> None:
        """Say that other microbatches follow on this step than came before it, if any step does."""
        before, now = saved.cursor.get(MICROBATCHES), self._job.microbatches
        is_over = saved.step >= self._job.work_plan.steps or was_over(saved.cursor)
        if before != now and not is_over:
            text = (
                f"the run had --microbatches {before} up to step {saved.step}, and has {now} from "
                "there on: its bytes are those of a run that changes there"
            )
            self._context.notify(text)
            self._context.journal.record(events.Warned(text=text))


def readers_of(shards: int, holders: Sequence[Collection[int]]) -> list[int]:
    """Return the rank that reads each shard: one of those that have it in memory, if there are any.

    ``holders`` has the shards of each rank.  Ranks of a host are neighbours: all hosts read alike.
    """
    near: dict[int, list[int]] = {}
    for rank, held in enumerate(holders):
        for shard in held:
            near.setdefault(shard, []).append(rank)
    found = []
    for shard in range(shards):
        usual = shard * len(holders) // shards
        ranks = near.get(shard, [usual])
        found.append(usual if usual in ranks else ranks[shard % len(ranks)])
    return found


def _trouble_of(attempt: Callable[[], None]) -> Trouble:
    """Make one try; return why it failed, if it did."""
    try:
        attempt()
    except (CheckpointUnreadable, StorageFailed) as error:
        finding = ReadFinding.TRANSIENT if error.errno in TRANSIENT else ReadFinding.UNREADABLE
        reason = error.reason if isinstance(error, CheckpointUnreadable) else str(error)
        return Trouble(finding, reason, error.errno, str(error.path or ""))
    except CheckpointInvalid as error:
        return Trouble(ReadFinding.DAMAGED, error.reason, is_other_runs=error.is_other_runs)
    except CheckpointError as error:
        return Trouble(ReadFinding.DAMAGED, str(error))
    except MemoryError:
        reason = "there is not enough memory (ENOMEM)"
        return Trouble(ReadFinding.TRANSIENT, reason, errno.ENOMEM)
    return Trouble()


def _steps(steps: Iterable[int]) -> str:
    """Return steps in words, with the verb that follows."""
    numbers = [str(step) for step in steps]
    return f"step {numbers[0]} is" if len(numbers) == 1 else f"steps {', '.join(numbers)} are"
