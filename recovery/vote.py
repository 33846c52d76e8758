"""The bit field of a vote: one agreement tells each worker what the others report and want.

``Agree`` is a bitwise *and*.  If every worker must confirm a fact, each sets a bit.  If
any worker may ask for an action, each leaves a bit set unless it asks.

A save is committed in the background of training, by one process for all workers.  Each of
them hears the outcome at its own time.  The bits of each vote tell when all have heard it,
and whether any has heard of a failure.  So all survivors always agree on the save in flight,
and it needs no message of its own.  A death abandons the save: the survivors begin another, of
the same state if no transaction was committed since.

Callbacks of the script need more than bits.  Every worker runs every callback with the same
values, so as a rule all come to the same effects.  A callback that looks at a clock or
throws dice may not.  So digests of the effects are gathered, and one decision holds for
all: a stop that any worker wants is everyone's, and what differs is taken from rank 0.

A callback may also raise.  An error of one kind on all workers is the script's own: it ends the
training on all of them.  Any other error is that of the workers that have raised it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntFlag


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
    NO_DRAIN_WANTED = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a vote, the same for every worker of the world."""

    is_yes: bool
    is_finite: bool
    is_save_wanted: bool
    is_stop_wanted: bool
    is_drain_wanted: bool
    save: Bit
    """The two bits about the checkpoint in flight."""


SAVE_BITS = Bit.SETTLED | Bit.INTACT

_STEP_OK, _FINITE, _SAVE_BITS = Bit.STEP_OK.value, Bit.FINITE.value, SAVE_BITS.value
_NO_SAVE_WANTED, _NO_STOP_WANTED = Bit.NO_SAVE_WANTED.value, Bit.NO_STOP_WANTED.value
_NO_DRAIN_WANTED = Bit.NO_DRAIN_WANTED.value


@dataclass(frozen=True, slots=True)
class Wishes:
    """The requests of an agent to its worker."""

    save: bool = False
    stop: bool = False
    drain: bool = False
    """A user waits for the save, so the run directory has to have it."""


def ballot(*, is_finite: bool, wishes: Wishes, save: Bit) -> int:
    """Return the flags of a worker whose exchange succeeded."""
    # Plain integers: each operator of IntFlag searches for the member of its result.
    flags = _STEP_OK | (int(save) & _SAVE_BITS)
    if is_finite:
        flags |= _FINITE
    if not wishes.save:
        flags |= _NO_SAVE_WANTED
    if not wishes.stop:
        flags |= _NO_STOP_WANTED
    if not wishes.drain:
        flags |= _NO_DRAIN_WANTED
    return flags


REFUSAL = 0
"""The flags of a worker whose exchange failed: its other bits do not count."""


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
        is_drain_wanted=Bit.NO_DRAIN_WANTED not in bits,
        save=bits & SAVE_BITS,
    )


class SavePhase(Enum):
    """The phase of the checkpoint in flight."""

    WRITING = "writing"
    COMMITTED = "committed"
    FAILED = "failed"


def after_vote(phase: SavePhase, agreed: Bit) -> SavePhase:
    """Return the phase after a vote whose outcome has the bits ``agreed``.

    A failure counts once all have heard the outcome: then no process writes the save any
    more, and its memory is free on all workers alike.
    """
    if phase is not SavePhase.WRITING or Bit.SETTLED not in agreed:
        return phase
    return SavePhase.COMMITTED if Bit.INTACT in agreed else SavePhase.FAILED


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
