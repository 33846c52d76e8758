"""The newest valid checkpoint of a run, read by all workers together.

All agree on one step.  Each worker reads and verifies its part of the shards, then sends
it to the others: the file system delivers every byte once.  Digests come first: no byte is
sent before all shards have verified.  Nothing is loaded before all workers have
everything.  If a step fails for one worker, all reject it.  A step that cannot be read just
now is tried again for a while (`joint_retries`), and is not rejected when it is given up.

If there is a second holder, rank 0 has a rejected step mended from it, and all read the step
once more.  A step that only a second holder has is a candidate like any other.  If it is
newer than all steps here, the disk has lost it.

Memory has the snapshots of one host, as its writer keeps them.  Workers of other hosts cannot map
them.  So those on the host of rank 0 read that memory, and the others receive.

A restore that has taken no step begins the run only if there is none: not if all are damaged, and
not if one could not be read.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from holdfast.checkpoint.digest import state_sha256
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import Restored, StateReader
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import specs_of
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.patience import IMPATIENT, Finding, Leftover, leftover
from holdfast.runtime.errors import (
    CheckpointsUnread,
    RecoveryImpossible,
    RunDirectoryBusy,
    UsageError,
)
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.run import events
from holdfast.runtime.run.entries import record
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.saving.ordered_mends import AgentMemory, mends_of
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.training.consistency import (
    StepRecord,
    check_resumed,
    check_same_record,
    check_same_run,
)
from holdfast.runtime.training.initial_weights import load_initial_weights
from holdfast.runtime.training.job_state import JobState, is_passed_over, was_over
from holdfast.runtime.training.joint_retries import (
    AGAIN,
    WAITS,
    JointRetries,
    Target,
    Trouble,
    Waits,
)
from holdfast.runtime.training.training_job import TrainingJob
from holdfast.runtime.worker.context import WorkerContext

_MOST_NAMED = 3


class _Place(Enum):
    """Where a step is read."""

    RUN = "run directory"
    MEMORY = "memory"


class _Candidate(NamedTuple):
    """A step that may be restored; if it is not here, only another holder has it."""

    step: int
    is_here: bool
    is_in_memory: bool

    def has_after(self, place: _Place) -> bool:
        """Return whether another place may be read at once if this one fails."""
        return self.is_in_memory and place is not _Place.MEMORY

    @property
    def was_saved(self) -> bool:
        """Whether it was ever on a disk: snapshots in memory alone are no checkpoint."""
        return self.is_here or not self.is_in_memory


class JobRestore:
    """One worker's part in restoring a job; all members of a world take theirs together."""

    def __init__(
        self, context: WorkerContext, job: TrainingJob, state: JobState, waits: Waits = WAITS
    ) -> None:
        self._context = context
        self._job = job
        self._state = state
        self._store = context.open_store()
        self._memory = AgentMemory(context)
        self._mends = mends_of(context, self._memory)
        # Fixed here: rank 0 may learn later that a holder is useless, and all must act alike.
        self._has_second_holder = self._mends.has_holders
        self._tries = JointRetries(context, waits)
        self._near_first: tuple[int, ...] = ()
        """The ranks on the host of rank 0, whose memory is read."""
        self._other_stages: dict[int, Mapping[str, object]] = {}
        """The cursors of checkpoints of other stages, and of those passed over, by step."""
        self.saved_step = 0
        """The step that was restored, if a disk has it."""

    def run(self, communicator: Communicator, fresh: Cursor) -> Restored | None:
        """Return the newest state that verifies, None if the run has no checkpoint.

        If it is None, the replica of rank 0 has the weights that the job begins with.

        Raises:
            UsageError: the checkpoint belongs to another model, job or (if strict)
                other numerics; the message names what differs.
            RecoveryImpossible: there are checkpoints, and all of them are damaged.
            CheckpointsUnread: there are some that may be whole, and none could be read.
            WorldBroken: a member died.
        """
        self._refuse_intruder()
        self._near_first = self._ranks_near_first(communicator)
        is_first = communicator.rank == 0
        candidates = self._agreed_candidates(communicator)
        for candidate in candidates:
            restored = self._restore(communicator, candidate, fresh)
            if restored is not None:
                if is_first:
                    found = events.Restored(
                        step=candidate.step,
                        generation=self._context.config.generation,
                        on_disk=candidate.step == self.saved_step,
                    )
                    record(self._context.journal, found)
                    self._tell_of_rejected(candidate.step, candidates[0].step)
                    self._tries.tell_of_newer(candidate.step)
                return restored
        candidates = [found for found in candidates if found.step not in self._other_stages]
        lost = [candidate.step for candidate in candidates if candidate.was_saved]
        _refuse_to_begin(self._context.run_dir, lost, self._tries.unread)
        if is_first:  # all others get the state of rank 0
            _begin(self._context, self._job, self._state.replica)
        return None

    def _ranks_near_first(self, communicator: Communicator) -> tuple[int, ...]:
        config = self._context.config
        if not config.hosts:
            return tuple(range(communicator.size))
        hosts = communicator.allgather_bytes(config.host_of[config.worker].encode())
        return tuple(rank for rank, host in enumerate(hosts) if host == hosts[0])

    def _refuse_intruder(self) -> None:
        """Refuse to restore from, or to say anything of, the checkpoints of another run."""
        try:
            self._context.config.ownership.refuse_taken()
        except OSError as taken:
            raise RunDirectoryBusy(f"{taken}; this job ends, and leaves it alone") from taken

    def _tell_of_rejected(self, step: int, newest: int) -> None:
        is_told = newest in {*self._tries.unread, *self._other_stages}
        if newest != step and (not is_told or max(self._tries.damaged, default=step) > step):
            self._tries.tell_of_rejected(step)

    def _agreed_candidates(self, communicator: Communicator) -> list[_Candidate]:
        """Return the steps that rank 0 finds here and at the second holders, newest first."""
        found: list[_Candidate] = []

        def list_them() -> None:
            if communicator.rank == 0:
                found[:] = self._candidates()

        self._tries.insist(communicator, list_them)
        agreed = json.loads(_from_first(communicator, json.dumps(found)))
        return [_Candidate(*found) for found in agreed]

    def _candidates(self) -> list[_Candidate]:
        # The agent answers once it has finished the mends that a dead worker asked for.
        memory = set(self._memory.steps())
        here = set(self._store.steps())
        steps = sorted(here | self._mends.steps(), reverse=True)
        mine = self._job.stage.may_have
        return [_Candidate(step, step in here, step in memory) for step in steps if mine(step)]

    def _restore(
        self, communicator: Communicator, candidate: _Candidate, fresh: Cursor
    ) -> Restored | None:
        """Return the state of a step, after a mend if it needs one; None on all workers alike."""
        step, restored = candidate.step, None
        if candidate.is_here:
            restored = self._read(communicator, candidate, fresh)
        if step in self._other_stages:
            return None
        is_unread = step in self._tries.unread  # it may be whole
        if candidate.is_here and restored is None and not is_unread:
            self._context.rejected.add(step)
        if restored is None and self._is_mended(communicator, step):
            restored = self._read(communicator, candidate, fresh)
        if restored is not None:
            self.saved_step = step
            self._context.rejected.discard(step)
        elif candidate.is_in_memory:
            restored = self._read(communicator, candidate, fresh, _Place.MEMORY)
        return restored

    def _is_mended(self, communicator: Communicator, step: int) -> bool:
        """Return whether rank 0 has had a step made whole, or found so."""
        if not self._has_second_holder:
            return False
        is_whole = communicator.rank == 0 and self._mends.mend(step) is not None
        return bool(json.loads(_from_first(communicator, json.dumps(is_whole))))

    def _read(
        self,
        communicator: Communicator,
        candidate: _Candidate,
        fresh: Cursor,
        place: _Place = _Place.RUN,
    ) -> Restored | None:
        """Return the state of a step, or None on all workers if any of them cannot read it."""
        step, run_id = candidate.step, self._context.config.run_id
        target = self._target(candidate, place)
        patience = IMPATIENT if candidate.has_after(place) else None
        readers = tuple(range(communicator.size))
        if place is _Place.MEMORY:
            readers = self._near_first
        found: list[StateReader] = []

        def open_step() -> None:
            if communicator.rank in readers:
                found.append(StateReader.of(self._store_at(place, step), step, run_id))

        def read_part() -> None:
            found[0].allocate()
            if communicator.rank in readers:
                part, writers = readers.index(communicator.rank), found[0].manifest.writers
                found[0].read(range(part, writers, len(readers)))

        if not self._tries.succeed(communicator, target, open_step, patience):
            return None
        if len(readers) < communicator.size:
            manifest = self._manifest_of_first(communicator, found)
            found[:] = found or [StateReader(manifest)]
        (reader,) = found
        cursor = reader.manifest.cursor
        is_mine = self._job.stage.is_of(cursor)
        if not is_mine or is_passed_over(cursor, is_followed=self._is_followed(step)):
            self._other_stages[step] = cursor
            return None
        self._refuse_edit(step, cursor)
        self._check(reader, fresh, is_first=communicator.rank == 0)
        if not self._tries.succeed(communicator, target, read_part, patience):
            return None
        for shard in range(reader.manifest.writers):
            for contents in reader.contents(shard):
                view = np.frombuffer(contents, np.uint8)
                communicator.broadcast(view, readers[shard % len(readers)])
        return Restored(reader.state, reader.manifest)

    def _manifest_of_first(
        self, communicator: Communicator, found: Sequence[StateReader]
    ) -> Manifest:
        """Return the manifest that rank 0 has read, for workers that only receive the state."""
        mine = found[0].manifest.encode().decode() if communicator.rank == 0 else ""
        return Manifest.decode(_from_first(communicator, mine).encode())

    def _target(self, candidate: _Candidate, place: _Place) -> Target:
        needs_advice = candidate.is_here and not self._has_second_holder
        return Target(candidate.step, place is _Place.MEMORY, needs_advice)

    def _store_at(self, place: _Place, step: int) -> CheckpointStore:
        if place is _Place.MEMORY:
            return self._memory.open(step)
        return self._store

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

    def _check(self, reader: StateReader, fresh: Cursor, *, is_first: bool) -> None:
        """Refuse a state that is not this job's, on all workers alike."""
        specs = specs_of(self._state.tensors(fresh))
        check_same_run(self._context, self._job, specs, reader.manifest)
        config = self._context.config
        step = StepRecord.of(self._state, self._context, to_plain(self._job.numerics))
        check_same_record(self._context, step, reader.manifest.cursor, is_first=is_first)
        before = _numerics_of(reader.manifest)
        if is_first or config.options.strict:
            check_resumed(self._context, before, self._job.numerics)


def _from_first(communicator: Communicator, text: str) -> str:
    """Return the text of rank 0."""
    return communicator.allgather_bytes(text.encode())[0].decode()


def _numerics_of(manifest: Manifest) -> Numerics:
    try:
        return Numerics.from_json(dict(manifest.numerics))
    except ValueError as error:
        raise UsageError(f"checkpoint step {manifest.step}: {error}") from error


def _begin(context: WorkerContext, job: TrainingJob, replica: Replica) -> None:
    """Give a fresh replica the weights that the job begins with, if it names any."""
    if job.initial is None:
        return
    load_initial_weights(replica, job.initial)
    sha256 = state_sha256(replica.state())
    source = str(job.initial.path)
    record(context.journal, events.InitialWeights(source=source, sha256=sha256))


def _refuse_to_begin(run_dir: Path, lost: Sequence[int], unread: Mapping[int, Trouble]) -> None:
    """Return if the run has no step, so that it may begin; ``lost`` are those that were not taken.

    Raises:
        RecoveryImpossible: all of them are damaged.
        CheckpointsUnread: some of them, or all, may be whole.
    """
    spared = {step: unread[step] for step in lost if step in unread}
    findings = [spared[step].finding if step in spared else Finding.DAMAGED for step in lost]
    match leftover(findings):
        case Leftover.IMPOSSIBLE:
            raise RecoveryImpossible(
                f"none of the {len(lost)} checkpoints of {run_dir} is valid; mend them from a copy "
                f"with `holdfast repair {shlex.quote(str(run_dir))} --from COPY`, or start over "
                "with --fresh"
            )
        case Leftover.RUN_AGAIN:
            damaged = [step for step in lost if step not in spared]
            raise CheckpointsUnread(_sentence(run_dir, spared, damaged))
        case Leftover.NOTHING:
            return


def _sentence(run_dir: Path, unread: Mapping[int, Trouble], damaged: Sequence[int]) -> str:
    named = [f"step {step}: {trouble}" for step, trouble in unread.items()][:_MOST_NAMED]
    more = [f"and {len(unread) - len(named)} more"] if len(unread) > len(named) else []
    reasons = "; ".join((*named, *more))
    if not damaged:
        return (
            f"none of the {len(unread)} checkpoints of {run_dir} could be read ({reasons}); {AGAIN}"
        )
    return (
        f"no checkpoint of {run_dir} could be restored: {_steps(damaged)} damaged; "
        f"{_steps(list(unread))} not known to be damaged, but could not be read ({reasons}); "
        "run again when the file system answers"
    )


def _steps(steps: Sequence[int]) -> str:
    """Return steps in words, with the verb that follows."""
    numbers = ", ".join(map(str, steps))
    return f"step {numbers} is" if len(steps) == 1 else f"steps {numbers} are"
