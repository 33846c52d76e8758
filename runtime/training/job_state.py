"""The whole state of one worker: what a checkpoint holds, and a peer receives.

After a round of callback hosts all take over one set of effects (`agree_on_effects`).  Nothing is
changed before everything has arrived.  So after a death on the way the survivors agree on the round
again.

`Rest` is what a worker would save if it had to leave just now, in the middle of a step or of the
script.  Between two commits the state does not change, so it is read when it is saved.  Code of the
script that runs after a commit may change all of it: weights, what callbacks remember, their files.
So the state is held as it was before that code.  A run that resumes runs the code again, for the
same commit (`Due`).  Holding costs references only: TensorFlow writes into no buffer that is held.
"""

from __future__ import annotations

import functools
import json
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.manifest import GIVES_WAY
from holdfast.checkpoint.tensor import Tensors, digest_of
from holdfast.recovery.event import CheckpointCommitted, WorkerStopped
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import Decision, Effects, decide
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.recovery.world import WorkerId
from holdfast.runtime.data.feed import Pipelines
from holdfast.runtime.exchange.membership import Communicator, Membership, WorldBroken
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.model.step_facts import StepFacts, value_of
from holdfast.runtime.saving.saver import Saver
from holdfast.runtime.script.calls import random_states
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.worker_status import HaltOrder, WorkerHalted, WorkerStatus
from holdfast.runtime.training.callback_host import CallbackHost, Commit, Due, Notes
from holdfast.runtime.training.progress import Progress
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords

NO_STATE = -1
"""Version of a worker that holds no state yet."""

FAILED = -2
"""Version of a worker whose script has failed to begin its training."""

_CARD = struct.Struct("<?BBB")
"""Whether a stop is wanted, and the lengths of the two digests and of the kind of an error."""

_FIRST = 0

_CURSOR = "cursor/"
_NOTES = "companion"
"""The field of a manifest's cursor."""
_IS_OVER = "companion is over"
_RANDOM = "random states"


class TrainingState:
    """The tensors of replica, callback host and cursor by name, and the notes that belong to them.

    The notes are those of the callback host and of the pipelines that are read.
    """

    COMPANION = "companion/"
    """Begins the names of the callback host's tensors."""

    def __init__(
        self, replica: Replica, callback_host: CallbackHost, pipelines: Pipelines | None = None
    ) -> None:
        self.replica = replica
        self.callback_host = callback_host
        self._pipelines = pipelines or Pipelines()
        self._ended: Mapping[str, Any] | None = None
        self._ended_at = -1
        self.saved: Mapping[str, object] = {}
        """The fields of the manifest that the state was read from."""

    @functools.cached_property
    def facts(self) -> StepFacts | None:
        """What the step was made of at first, None for a replica that does not tell."""
        facts: Callable[[], StepFacts] | None = getattr(self.replica, "facts", None)
        return facts and facts()

    @functools.cached_property
    def made(self) -> Mapping[str, str]:
        """The values of the weights that the script has made; asked before others are loaded."""
        state = self.replica.state().items()
        return {n: value_of(v) for n, v in state if not n.startswith("optimizer/")}

    @property
    def begin(self) -> str:
        """The digest of the weights that the script has made."""
        return digest_of(repr(list(self.made.items())).encode())

    def tensors(self, cursor: Cursor) -> dict[str, npt.NDArray[np.generic]]:
        """Return all tensors, in order of names; the arrays may alias the live state."""
        tensors = dict(self.replica.state()) | cursor.tensors()
        prefix = self.COMPANION
        tensors |= {prefix + name: value for name, value in self.callback_host.tensors().items()}
        return {name: tensors[name] for name in sorted(tensors)}

    def load(self, tensors: Tensors, *, is_own: bool = False) -> Cursor:
        """Load all tensors, unless they come from here; return the cursor among them."""
        if is_own:
            return Cursor.from_tensors(tensors)
        model, callback_host = {}, {}
        for name, value in tensors.items():
            if name.startswith(self.COMPANION):
                callback_host[name.removeprefix(self.COMPANION)] = value
            elif not name.startswith(_CURSOR):
                model[name] = value
        self.replica.load(model)
        self.callback_host.load(callback_host)
        return Cursor.from_tensors(tensors)

    def notes(self) -> Notes:
        """Return what is to be known, beside the tensors, when the training goes on from here."""
        return {**self.callback_host.notes(), **self._pipelines.notes()}

    def resume(self, cursor: Cursor, notes: Notes | None) -> None:
        """Go on at ``cursor`` with ``notes``, or begin without any; the tensors are loaded."""
        self._pipelines.resume(notes)
        self.callback_host.restore(cursor, notes)

    def fields(self, *, is_complete: bool) -> dict[str, object]:
        """Return the fields of a manifest's cursor that hold the notes.

        At the end of a stage they hold what its hooks have left the generators in.  An end by an
        error counts only if a later stage follows: else the script may be mended, and go on.
        """
        notes = self.notes()
        if not notes:
            return {}
        fields: dict[str, object] = {_NOTES: dict(notes), _IS_OVER: self.callback_host.is_over}
        if is_complete and self.callback_host.error is not None:
            fields[GIVES_WAY] = True
        return fields | {_RANDOM: random_states()} if is_complete else fields

    def restored(self, step: int, cursor: Mapping[str, object]) -> None:
        """Remember the fields of the manifest of ``step``, from which the state is read."""
        found = cursor.get(_RANDOM)
        self._ended = found if isinstance(found, Mapping) else None
        self._ended_at = step
        self.saved = cursor

    def random_at_end(self, step: int) -> Mapping[str, Any] | None:
        """Return the generators' states at the end of a stage that nobody has trained here.

        It was complete at ``step`` when it was restored; None for any other.
        """
        return self._ended if step == self._ended_at else None


def notes_of(cursor: Mapping[str, object]) -> Notes | None:
    """Return the notes that a manifest's cursor holds, None if it holds none."""
    notes = cursor.get(_NOTES)
    return notes if isinstance(notes, Mapping) else None


def is_passed_over(cursor: Mapping[str, object], *, is_followed: bool) -> bool:
    """Return whether an error has ended the stage of this cursor, and no later stage follows it."""
    return cursor.get(GIVES_WAY) is True and not is_followed


def was_over(cursor: Mapping[str, object]) -> bool:
    """Return whether the callback host had ended the stage before this cursor was saved."""
    return cursor.get(_IS_OVER) is True


def share_state(communicator: Communicator, source: int, state: Tensors) -> Tensors:
    """Return the state of rank ``source``, once all of it has arrived; changes nothing.

    Raises:
        WorldBroken: a member died; ``state`` is unchanged.
    """
    received: dict[str, npt.NDArray[np.generic]] = {}
    for name, value in state.items():
        buffer = np.array(value, order="C", copy=True)
        communicator.broadcast(buffer, source)
        received[name] = buffer
    return received


def share_notes(communicator: Communicator, source: int, notes: Notes | None) -> Notes | None:
    """Return the notes of rank ``source``, None if it has none.

    Raises:
        WorldBroken: a member died.
    """
    text = json.dumps(notes).encode()
    size = np.array([len(text)], np.int64)
    communicator.broadcast(size, source)
    buffer = np.empty(int(size[0]), np.uint8)
    if communicator.rank == source:
        buffer[:] = np.frombuffer(text, np.uint8)
    communicator.broadcast(buffer, source)
    shared: Notes | None = json.loads(buffer.tobytes())
    return shared


def agree_on_effects(
    membership: Membership, state: TrainingState, cursor: Cursor, turns: WorkerStatus
) -> None:
    """Let all callback hosts have the same effects of the round that has run; run the next one.

    A round is code of the script, and may take as long as it likes: no peer has to help.

    Raises:
        WorldBroken: a member died, or cannot go on; nothing is changed on any worker.
        Exception: that of the round, if other workers have none of its kind.
    """
    callback_host = state.callback_host
    with turns.needing_no_peer():
        callback_host.lead(is_first=membership.is_first)
        card = _encode(callback_host.effects()) + callback_host.message()
    turns.enter(Activity.WAIT)  # a slow callback of a peer is the peer's
    cards = membership.together(lambda: membership.communicator.allgather_bytes(card))
    turns.enter(Activity.CALLBACKS)
    found = [_decode(card) for card in cards]
    decision = decide([effects for effects, _ in found])
    if decision.is_divided:
        raise callback_host.error or WorldBroken("the script has raised an error on a peer alone")
    notes: Notes | None = None
    if decision.shares_notes or decision.shares_state:
        tensors, notes = membership.together(lambda: _share(membership, state, cursor, decision))
        if tensors is not None:
            state.load(tensors)
    with turns.needing_no_peer():
        callback_host.decided(decision, found[_FIRST][1], notes)


def _share(
    membership: Membership, state: TrainingState, cursor: Cursor, decision: Decision
) -> tuple[Tensors | None, Notes | None]:
    communicator = membership.communicator
    notes = share_notes(communicator, _FIRST, state.callback_host.notes())
    if not decision.shares_state:
        return None, notes
    return share_state(communicator, _FIRST, state.tensors(cursor)), notes


def _encode(effects: Effects) -> bytes:
    parts = (effects.notes, effects.state, effects.error)
    return _CARD.pack(effects.wants_stop, *map(len, parts)) + b"".join(parts)


def _decode(card: bytes) -> tuple[Effects, bytes]:
    """Return the effects of a card, and the message after them."""
    wants_stop, *lengths = _CARD.unpack_from(card)
    rest, parts = card[_CARD.size :], []
    for length in lengths:
        parts.append(rest[:length])
        rest = rest[length:]
    return Effects(wants_stop, *parts), rest


@dataclass(frozen=True, slots=True)
class _Before:
    """A state as it was before code of the script began to run after a commit."""

    cursor: Cursor
    state: Tensors
    fields: Mapping[str, object]
    words: str


class _Now(Enum):
    """What holds of the state at this moment."""

    NONE = "it is that of another worker, and not yet whole here"
    AS_SAVED = "nothing was committed since it was saved"
    LIVE = "it changes with the next commit"


class Rest:
    """What a training loop would save.  The loop calls all but ``card`` and ``save``."""

    def __init__(
        self,
        context: WorkerContext,
        state: TrainingState,
        progress: Progress,
        saver: Saver,
        records: LoopRecords,
        plan: WorkPlan,
        fields: Callable[..., dict[str, object]],
    ) -> None:
        self._context = context
        self._state = state
        self._progress = progress
        self._saver = saver
        self._records = records
        self._plan = plan
        self._fields = fields
        self._now = _Now.AS_SAVED
        self._before: _Before | None = None

    def hold(self, commit: Commit) -> None:
        """Hold the state as it is, before code of the script runs after ``commit``."""
        cursor = commit.cursor
        validation = commit.validation if commit.work is Work.EVALUATE else None
        state = {
            # Callbacks write into what they keep.
            name: np.array(value) if name.startswith(TrainingState.COMPANION) else value
            for name, value in self._state.tensors(cursor).items()
        }
        fields = Due(commit.work, validation).into(self._fields(is_complete=False))
        self._before = _Before(cursor, state, fields, _words_of(commit))

    def settle(self) -> None:
        """The code of the script has run, and all have agreed on what came of it."""
        self._now, self._before = _Now.LIVE, None

    def restored(self, *, is_saved: bool) -> None:
        """Another state was loaded, from a checkpoint or from another worker."""
        self._now, self._before = _Now.AS_SAVED if is_saved else _Now.NONE, None

    def describe_held(self, worker: WorkerId) -> WorkerHalted:
        """Return what there is to save."""
        before, cursor = self._before, self._progress.cursor
        if before is not None:
            cursor = before.cursor
        is_known = before is not None or self._now is not _Now.NONE
        is_saved = before is None and (self._now is not _Now.LIVE or self._saver.has(cursor))
        return WorkerHalted(
            worker,
            version=cursor.version if is_known else NO_STATE,
            is_settled=before is None,
            saves=self._context.newest_save,
            is_saved=is_saved,
            step=cursor.step,
            words=self._words(cursor) if before is None else before.words,
        )

    def save(self, order: HaltOrder) -> str:
        """Save this worker's part and wait for the end; return why it failed, "" if it did not."""
        before, began = self._before, time.monotonic()
        if before is None:
            cursor = self._progress.cursor
            before = _Before(cursor, self._state.tensors(cursor), self._fields(), "")
        self._records.flush()  # the journal is never behind a checkpoint
        cursor, state, fields = before.cursor, before.state, before.fields
        failure = self._saver.save_halted(cursor.step, state, fields, order)
        if not failure and not order.part:
            worker, generation = self._context.config.worker, self._context.page.generation
            stopped = WorkerStopped(worker, cursor.step, generation=generation)
            self._context.journal.record(stopped)
            seconds = round(time.monotonic() - began, 6)
            self._context.report(CheckpointCommitted(worker, cursor.step, seconds))
        return failure

    def _words(self, cursor: Cursor) -> str:
        """Return what is done again when the run goes on from ``cursor``."""
        following = self._plan.next_work(cursor)
        again = ""
        if following is Work.EVALUATE:
            again = f"the validation of epoch {self._plan.epoch_of(cursor)} is done again"
        elif following is Work.TRAIN:
            again = f"step {cursor.step + 1}, which had begun, is done again"
        if self._now is _Now.LIVE and not self._saver.has(cursor):
            return again
        if cursor.step == 0:
            return "stopped before the first step was complete, so there was nothing to save"
        return f"stopped at step {cursor.step}, which was saved before" + (again and f"; {again}")


def _words_of(commit: Commit) -> str:
    if commit.has_ended_epoch:
        return f"the callbacks at the end of epoch {commit.epoch} are run again"
    return f"the callbacks after step {commit.cursor.step} are run again"
