"""The next work of a worker, and all that its vote carries: one table for training and repair.

Theory.  A worker is always in exactly one state, and a state *is* a piece of
work: the trainer does it and reports its end with one event.  The table below
gives the next state.  Nothing else decides.

A transaction is compute, reduce, vote, apply, whether it is an update of the
model or a pass over the validation data.  Nothing is changed before the vote,
and the vote has the same outcome on all survivors, so

    *invariant: between transactions all survivors have committed the same
    transactions, in the same order, to the same bytes.*

A worker whose exchange fails still takes part in the vote, with a "no" (``REFUSING``).
Its peers may have completed the exchange and wait for its vote.  The exchanges of the
other states end with a vote of their own, so ``BROKEN`` is the outcome for all workers
there.  After any failure the way back is the same: repair, catch up, and do the
transaction again.

The script's own code may raise while samples are read and computed.  The worker dies of it, and
another one tries.  If that is the last one, the training ends with the error (``EXHAUSTED``): the
script may catch it, and train another model.

An event that the table does not list for a state raises and changes nothing.

*The vote.*  ``Agree`` is a bitwise *and*.  If every worker must confirm a fact, each sets a bit.
If any worker may ask for an action, each leaves a bit set unless it asks.  A save is committed in
the background of training, by one process for all workers.  Each of them hears the outcome at its
own time.  The bits of each vote tell when all have heard it, and whether any has heard of a
failure.  So all survivors always agree on the save in flight, and it needs no message of its own.
A death abandons the save: the survivors begin another, of the same state if no transaction was
committed since.

*Callbacks* of the user's script run after a commit, and need more than bits.  Every worker runs
every callback with the same values, so as a rule all come to the same effects.  A callback that
looks at a clock or throws dice may not.  So digests of the effects are gathered (``AGREEING``), and
one decision holds for all: a stop that any worker wants is everyone's, and what differs is taken
from rank 0.  A death on the way changes no cursor.  So after the repair ``CATCHING_UP`` leads back
to the agreement that is still due.  A callback may also raise.  An error of one kind on all workers
is the script's own: it ends the training on all of them.  Any other error is that of the workers
that have raised it.

*Digests of the replicas.*  All replicas of a world hold the same bytes after the same step.  So
their digests differ only if one replica's memory was damaged, or its processor has miscomputed.  If
more than half of them agree, those are right: two independent errors do not make the same bytes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntFlag
from types import MappingProxyType

from holdfast.recovery.errors import IllegalTransition

REFUSAL = 0
"""The flags of a worker whose exchange failed: its other bits do not count."""


class StepState(Enum):
    """The work a worker is doing."""

    __hash__ = object.__hash__  # that of Enum is a Python function, and looked up every step

    JOINING = "joining"
    CATCHING_UP = "catching up"
    COMPUTING = "computing"
    GATHERING = "gathering"
    REDUCING = "reducing"
    VOTING = "voting"
    REFUSING = "refusing"
    APPLYING = "applying"
    AGREEING = "agreeing"
    REPAIRING = "repairing"
    FINISHING = "finishing"
    DONE = "done"
    LOST = "lost"


class StepEvent(Enum):
    """The end of a piece of work."""

    __hash__ = object.__hash__  # that of Enum is a Python function, and looked up every step

    FORMED = "a world was agreed on"
    CAUGHT_UP = "everyone has the newest state"
    COMPUTED = "every owned microbatch has its contribution"
    LACKING = "its samples are read by another worker"
    GATHERED = "everyone has the samples"
    REDUCED = "the total is here"
    AGREED = "everyone voted yes"
    APPLIED = "the transaction is committed"
    CALLED = "callbacks have run"
    DECIDED = "everyone has the same effects of callbacks"
    EXHAUSTED = "nothing is left to train"
    SETTLED = "the final checkpoint is committed"
    PENDING = "the final checkpoint is still being written"
    BROKEN = "a member of the world is dead"
    HOPELESS = "repair was tried too often"


_S, _E = StepState, StepEvent

TRANSITIONS = MappingProxyType(
    {
        (_S.JOINING, _E.FORMED): _S.CATCHING_UP,
        (_S.JOINING, _E.BROKEN): _S.REPAIRING,
        (_S.CATCHING_UP, _E.CAUGHT_UP): _S.COMPUTING,
        (_S.CATCHING_UP, _E.CALLED): _S.AGREEING,
        (_S.CATCHING_UP, _E.EXHAUSTED): _S.FINISHING,
        (_S.CATCHING_UP, _E.BROKEN): _S.REPAIRING,
        (_S.COMPUTING, _E.COMPUTED): _S.REDUCING,
        (_S.COMPUTING, _E.LACKING): _S.GATHERING,
        (_S.COMPUTING, _E.EXHAUSTED): _S.FINISHING,
        (_S.GATHERING, _E.GATHERED): _S.COMPUTING,
        (_S.GATHERING, _E.EXHAUSTED): _S.FINISHING,
        (_S.GATHERING, _E.BROKEN): _S.REFUSING,
        (_S.REDUCING, _E.REDUCED): _S.VOTING,
        (_S.REDUCING, _E.BROKEN): _S.REFUSING,
        (_S.VOTING, _E.AGREED): _S.APPLYING,
        (_S.VOTING, _E.BROKEN): _S.REPAIRING,
        (_S.REFUSING, _E.BROKEN): _S.REPAIRING,
        (_S.APPLYING, _E.APPLIED): _S.COMPUTING,
        (_S.APPLYING, _E.CALLED): _S.AGREEING,
        (_S.APPLYING, _E.EXHAUSTED): _S.FINISHING,
        (_S.AGREEING, _E.DECIDED): _S.COMPUTING,
        (_S.AGREEING, _E.CALLED): _S.AGREEING,
        (_S.AGREEING, _E.EXHAUSTED): _S.FINISHING,
        (_S.AGREEING, _E.BROKEN): _S.REPAIRING,
        (_S.REPAIRING, _E.FORMED): _S.CATCHING_UP,
        (_S.REPAIRING, _E.BROKEN): _S.REPAIRING,
        (_S.REPAIRING, _E.HOPELESS): _S.LOST,
        (_S.FINISHING, _E.PENDING): _S.FINISHING,
        (_S.FINISHING, _E.SETTLED): _S.DONE,
        (_S.FINISHING, _E.BROKEN): _S.REPAIRING,
    }
)

OVER = frozenset({StepState.DONE, StepState.LOST})

TOGETHER = frozenset(
    {
        StepState.GATHERING,
        StepState.REDUCING,
        StepState.VOTING,
        StepState.REFUSING,
        StepState.AGREEING,
        StepState.REPAIRING,
        StepState.FINISHING,
    }
)
"""States whose work ends only when the peers do theirs.  If all stay there, nobody comes on."""


def next_state(state: StepState, event: StepEvent) -> StepState:
    """Return the state that follows ``state`` when its work ended with ``event``.

    Raises:
        IllegalTransition: the table does not list the pair.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(
            f"a worker that is {state.value} cannot see the event {event.value!r}"
        ) from None


class Bit(IntFlag):
    """Bits of a vote; each is true of the outcome only if it is true of every vote."""

    STEP_OK = 1
    """My exchange succeeded: the transaction may be applied."""
    NO_SAVE_WANTED = 2
    NO_STOP_WANTED = 4
    SETTLED = 8
    """I know the outcome of the checkpoint in flight."""
    INTACT = 16
    """I know of no failure of the checkpoint in flight."""
    FINITE = 32
    """My slice of the total holds no infinity and no NaN."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a vote, the same for every worker of the world."""

    is_yes: bool
    is_finite: bool
    is_save_wanted: bool
    is_stop_wanted: bool
    save: Bit
    """The two bits about the checkpoint in flight."""


SAVE_BITS = Bit.SETTLED | Bit.INTACT

_STEP_OK, _FINITE, _SAVE_BITS = Bit.STEP_OK.value, Bit.FINITE.value, SAVE_BITS.value
_NO_SAVE_WANTED, _NO_STOP_WANTED = Bit.NO_SAVE_WANTED.value, Bit.NO_STOP_WANTED.value


def ballot(
    *, is_finite: bool, save: Bit, wants_save: bool = False, wants_stop: bool = False
) -> int:
    """Return the flags of a worker whose exchange succeeded."""
    # Plain integers: each operator of IntFlag searches for the member of its result.
    flags = _STEP_OK | (int(save) & _SAVE_BITS)
    if is_finite:
        flags |= _FINITE
    if not wants_save:
        flags |= _NO_SAVE_WANTED
    if not wants_stop:
        flags |= _NO_STOP_WANTED
    return flags


# Cached, because there are few outcomes, and nearly every step has the same one.
@functools.lru_cache(maxsize=256)
def outcome(flags: int) -> Outcome:
    """Return the outcome that the agreed ``flags`` encode."""
    bits = Bit(flags)
    return Outcome(
        is_yes=Bit.STEP_OK in bits,
        is_finite=Bit.FINITE in bits,
        is_save_wanted=Bit.NO_SAVE_WANTED not in bits,
        is_stop_wanted=Bit.NO_STOP_WANTED not in bits,
        save=bits & SAVE_BITS,
    )


def is_save_committed(agreed: Bit) -> bool | None:
    """Return whether the checkpoint in flight is committed; None while it is being written.

    A failure counts once all have heard the outcome: then no process writes the save any
    more, and its memory is free on all workers alike.
    """
    return Bit.INTACT in agreed if Bit.SETTLED in agreed else None


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one worker's callbacks since the last decision."""

    wants_stop: bool
    notes: bytes
    """Digest of what the callbacks remember."""
    state: bytes
    """Digest of the tensors of the replica that they have changed."""
    error: bytes = b""
    """The kind of error that one of them has raised, empty for none."""


NO_EFFECTS = Effects(wants_stop=False, notes=b"", state=b"")


@dataclass(frozen=True, slots=True)
class Decision:
    """What all workers do next, the same for every worker of the world."""

    is_stop_wanted: bool
    shares_notes: bool
    """Whether all take what the callbacks of the first worker remember."""
    shares_state: bool
    """Whether all take the whole state of the first worker."""
    raises: bool = False
    """Whether the callbacks of all workers have raised one kind of error: the training ends."""
    is_divided: bool = False
    """Whether some have raised an error that others have not: they cannot go on."""


def decide(effects: Sequence[Effects]) -> Decision:
    """Return the decision that follows from the ``effects`` of all workers, in rank order."""
    first = effects[0]
    raises = bool(first.error) and all(found.error == first.error for found in effects)
    return Decision(
        raises=raises,
        is_divided=not raises and any(found.error for found in effects),
        is_stop_wanted=any(found.wants_stop for found in effects),
        shares_notes=any(found.notes != first.notes for found in effects),
        shares_state=any(found.state != first.state for found in effects),
    )


def compare_digests(digests: Sequence[bytes]) -> tuple[int, ...]:
    """Return the ranks that differ from the majority of ``digests``, given in rank order.

    All ranks are returned if there is no majority.  Every worker comes to the same ones.
    """
    digest, count = Counter(digests).most_common(1)[0]
    has_majority = 2 * count > len(digests)
    return tuple(n for n, found in enumerate(digests) if found != digest or not has_majority)
