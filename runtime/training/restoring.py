"""The newest valid checkpoint of a run, read by all workers together.

All agree on one step.  Each worker reads and verifies its part of the shards, then sends
it to the others: the file system delivers every byte once.  Digests come first: no byte is
sent before all shards have verified.  Nothing is loaded before all workers have
everything.  If a step fails for one worker, all reject it.  A step that cannot be read just
now is tried again for a while (`joint_retries`), and is not rejected when it is given up.

A restore that has taken no step begins the run only if there is none: not if all are damaged, and
not if one could not be read.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from holdfast.checkpoint.digest import state_sha256
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import Restored, StateReader
from holdfast.checkpoint.tensor import specs_of
from holdfast.recovery.ledger import Cursor
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
from holdfast.runtime.run.script_record import TRAININGS
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
    Trouble,
    Waits,
)
from holdfast.runtime.training.training_job import MICROBATCHES, TrainingJob
from holdfast.runtime.worker.context import WorkerContext

_MOST_NAMED = 3
_READS_BACK = (
    ". If the script reads back what it has written, such as a list of finished trials, it leaves "
    "trainings out: move that file or folder away, and run again; what is complete stays so"
)


class JobRestore:
    """One worker's part in restoring a job; all members of a world take theirs together."""

    def __init__(
        self, context: WorkerContext, job: TrainingJob, state: JobState, waits: Waits = WAITS
    ) -> None:
        self._context = context
        self._job = job
        self._state = state
        self._store = context.open_store()
        self._tries = JointRetries(context, waits)
        self._is_one_of_several = bool(context.config.script_record.largest(TRAININGS))
        self._other_stages: dict[int, Mapping[str, object]] = {}
        """The cursors of checkpoints of other stages, and of those passed over, by step."""

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
        is_first = communicator.rank == 0
        steps = self._agreed_steps(communicator)
        for step in steps:
            restored = self._read(communicator, step, fresh)
            if restored is not None:
                if is_first:
                    generation = self._context.config.generation
                    found = events.Restored(step=step, generation=generation)
                    record(self._context.journal, found)
                    self._tell_of_rejected(step, steps[0])
                    self._tell_of_microbatches(restored.manifest)
                    self._tries.tell_of_newer(step)
                return restored
        lost = [step for step in steps if step not in self._other_stages]
        _refuse_to_begin(self._context.run_dir, lost, self._tries.unread)
        if is_first:  # all others get the state of rank 0
            _begin(self._context, self._job, self._state.replica)
        return None

    def _refuse_intruder(self) -> None:
        """Refuse to restore from, or to say anything of, the checkpoints of another run."""
        try:
            self._context.config.ownership.refuse_taken()
        except OSError as taken:
            raise RunDirectoryBusy(f"{taken}; this job ends, and leaves it alone") from taken

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
            record(self._context.journal, events.Warned(text=text))

    def _tell_of_rejected(self, step: int, newest: int) -> None:
        is_told = newest in {*self._tries.unread, *self._other_stages}
        if newest != step and (not is_told or max(self._tries.damaged, default=step) > step):
            self._tries.tell_of_rejected(step)

    def _agreed_steps(self, communicator: Communicator) -> list[int]:
        """Return the steps that rank 0 finds, newest first."""
        found: list[int] = []

        def list_them() -> None:
            if communicator.rank == 0:
                found[:] = filter(self._job.stage.may_have, self._store.steps())

        self._tries.insist(communicator, list_them)
        agreed: list[int] = json.loads(_from_first(communicator, json.dumps(found)))
        return agreed

    def _read(self, communicator: Communicator, step: int, fresh: Cursor) -> Restored | None:
        """Return the state of a step, or None on all workers if any of them cannot use it."""
        found: list[StateReader] = []

        def open_step() -> None:
            found.append(StateReader.of(self._store, step, self._context.config.run_id))

        def read_part() -> None:
            found[0].allocate()
            found[0].read(range(communicator.rank, found[0].manifest.writers, communicator.size))

        if not self._succeeds(communicator, step, open_step):
            return None
        (reader,) = found
        cursor = reader.manifest.cursor
        is_mine = self._job.stage.is_of(cursor)
        if not is_mine or is_passed_over(cursor, is_followed=self._is_followed(step)):
            self._other_stages[step] = cursor
            return None
        try:
            self._refuse_edit(step, cursor)
            self._check(reader, fresh, is_first=communicator.rank == 0)
        except UsageError as error:
            raise UsageError(f"{error}{_READS_BACK * self._is_one_of_several}") from error
        if not self._succeeds(communicator, step, read_part):
            return None
        for shard in range(reader.manifest.writers):
            for contents in reader.contents(shard):
                view = np.frombuffer(contents, np.uint8)
                communicator.broadcast(view, shard % communicator.size)
        self._context.rejected.discard(step)
        return Restored(reader.state, reader.manifest)

    def _succeeds(self, communicator: Communicator, step: int, attempt: Callable[[], None]) -> bool:
        """Return whether all workers can read; a step that is damaged is remembered as rejected."""
        if self._tries.succeed(communicator, step, attempt):
            return True
        if step not in self._tries.unread:  # else it may be whole
            self._context.rejected.add(step)
        return False

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
        cursor, several = reader.manifest.cursor, self._is_one_of_several
        check_same_record(self._context, step, cursor, is_first=is_first, is_one_of_several=several)
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
    source = str(job.initial)
    record(context.journal, events.InitialWeights(source=source, sha256=sha256))


def _refuse_to_begin(run_dir: Path, lost: Sequence[int], unread: Mapping[int, Trouble]) -> None:
    """Return if the run has no step, so that it may begin; ``lost`` are those that were not taken.

    Raises:
        RecoveryImpossible: all of them are damaged.
        CheckpointsUnread: some of them, or all, may be whole.
    """
    spared = {step: unread[step] for step in lost if step in unread}
    if spared:
        damaged = [step for step in lost if step not in spared]
        raise CheckpointsUnread(_sentence(run_dir, spared, damaged))
    if lost:
        raise RecoveryImpossible(
            f"none of the {len(lost)} checkpoints of {run_dir} is valid; mend them from a copy "
            f"with `holdfast repair {shlex.quote(str(run_dir))} --from COPY`, or start over "
            "with --fresh"
        )


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
