"""The next work of a worker: one table for training, evaluation and repair.

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

Callbacks of the user's script run after a commit.  They may look at a clock or throw dice,
so their effects are agreed on (``AGREEING``, `recovery.vote`) before the next
transaction.  A death on the way changes no cursor.  So after the repair ``CATCHING_UP``
leads back to the agreement that is still due.

The script's own code may raise while samples are read and computed.  The worker dies of it, and
another one tries.  If that is the last one, the training ends with the error (``EXHAUSTED``): the
script may catch it, and train another model.

An event that the table does not list for a state raises and changes nothing.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

from holdfast.recovery.errors import IllegalTransition


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
