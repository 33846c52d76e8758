"""The proof that every sample of an epoch was applied exactly once, and the position of a job.

Each microbatch reports the number of its samples and a fingerprint of their ids. Both
travel through the same reduction as its gradient, so they are in the total if, and only
if, the gradient is. The total of an epoch is compared with the whole data set.

The fingerprint is the sum of a hash of each id, modulo 2**64. This is the multiset hash
AdHash (Bellare and Micciancio, EUROCRYPT 1997; Clarke et al., ASIACRYPT 2003). Order and
grouping do not change it, but a missing sample or a sample used twice does. The hash of
one id is a bijection, so one sample in another's place is always seen. Several errors at
once go unseen with a chance of 2**-64. The ledger guards against mistakes, not against
an opponent who chooses ids.

Gradients are float32, which holds whole numbers exactly only up to 2**24. So the
fingerprint travels as eight lanes of one byte each: 255 times 65,000 microbatches is
still below 2**24. The sample count is one lane: a global batch may have 2**24 samples.

The cursor of a job is its committed transactions, with the ledger and the sums of the
current epoch.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from holdfast.recovery.errors import LedgerUnreadable
from holdfast.recovery.order import WORD, splitmix64_inplace

LANES = 9
"""Elements that the ledger adds to a gradient vector: a count and eight bytes."""

MAX_MICROBATCHES = 65_000
"""With this many microbatches the lanes of a step still add up exactly: 255 * 65,000 < 2**24."""

_LANES = struct.Struct(f"={LANES}f")
_MAX_EXACT = 1 << 24

MAX_SAMPLES_OF_A_SUM = _MAX_EXACT
"""A global batch, or a whole set of validation data, is counted in one lane."""
_CHUNK_SAMPLES = 1 << 20
_MAX_TABLE_SAMPLES = 1 << 22
"""32 MiB of hashes."""

# The method ``sum`` is Python code around this ufunc, and doubles its time on cold caches.
_sum = np.add.reduce

Sums = npt.NDArray[np.float64]

MOST_TURNS = 1024
"""An update takes fewer turns."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Samples applied in an epoch so far, and the fingerprint of their ids."""

    samples: int = 0
    fingerprint: int = 0

    def record(self, samples: int, fingerprint: int) -> Ledger:
        """Return the ledger with an applied step of ``samples`` samples added."""
        if samples < 0 or not 0 <= fingerprint < WORD:
            raise ValueError(f"cannot record {samples} samples with fingerprint {fingerprint}")
        return Ledger(self.samples + samples, (self.fingerprint + fingerprint) % WORD)

    def covers(self, samples_in_epoch: int) -> bool:
        """Return whether the ids 0 to ``samples_in_epoch - 1`` were each recorded once."""
        if self.samples != samples_in_epoch:
            return False
        return self.fingerprint == fingerprint_of_run(0, samples_in_epoch)

    def holds(self, ids: npt.NDArray[np.int64]) -> bool:
        """Return whether these ids were each recorded once, and no others."""
        return self == Ledger(len(ids), fingerprint(ids))


def fingerprint(ids: npt.ArrayLike) -> int:
    """Return the sum of the hashes of ``ids`` modulo 2**64; 0 for no ids."""
    hashes = splitmix64_inplace(np.array(ids, dtype=np.int64).view(np.uint64))
    return int(np.add.reduce(hashes, axis=None))


@functools.lru_cache(maxsize=1 << 14)  # epochs have the same runs
def fingerprint_of_run(first: int, stop: int) -> int:
    """Return the fingerprint of the ids ``first <= id < stop``, in little memory."""
    total = 0
    for start in range(first, stop, _CHUNK_SAMPLES):
        total += fingerprint(np.arange(start, min(start + _CHUNK_SAMPLES, stop), dtype=np.int64))
    return total % WORD


class FingerprintTable:
    """The hashes of all ids of a data set, ready to look up: hashing is too slow for a step."""

    def __init__(self, samples: int) -> None:
        """Hash all ids below ``samples``, unless the table would exceed 32 MiB."""
        self._hashes: npt.NDArray[np.uint64] | None = None
        if samples <= _MAX_TABLE_SAMPLES:
            self._hashes = splitmix64_inplace(np.arange(samples, dtype=np.uint64))

    def fingerprint(self, ids: npt.NDArray[np.int64]) -> int:
        """Return the same number as the function ``fingerprint``."""
        if self._hashes is None:
            return fingerprint(ids)
        return int(_sum(self._hashes[ids]))


def write_lanes(vector: npt.NDArray[np.float32], samples: int, fingerprint: int) -> None:
    """Write count and fingerprint as lanes, which may be summed, to the end of ``vector``.

    The vector is contiguous.
    """
    if not 0 <= samples <= _MAX_EXACT or not 0 <= fingerprint < WORD:
        raise ValueError(
            f"{samples} samples with fingerprint {fingerprint} do not fit the lanes:"
            f" a microbatch may have up to {_MAX_EXACT} samples"
        )
    octets = fingerprint.to_bytes(8, "little")
    _LANES.pack_into(vector.data, vector.nbytes - _LANES.size, samples, *octets)


def from_lanes(lanes: npt.NDArray[np.float32]) -> tuple[int, int]:
    """Return the count and the fingerprint that the summed lanes encode.

    Raises ``LedgerUnreadable`` when they are not whole numbers that float32 can hold.
    """
    values: list[float] = lanes.tolist()
    numbers = _whole(values)
    if len(numbers) != LANES or not 0 <= min(numbers) <= max(numbers) <= _MAX_EXACT:
        raise LedgerUnreadable(
            f"ledger lanes {values} are not {LANES} whole numbers up to {_MAX_EXACT}:"
            " the reduced vector is damaged"
        )
    fingerprint = 0
    for octet in reversed(numbers[1:]):
        fingerprint = (fingerprint << 8) + octet
    return numbers[0], fingerprint % WORD


def _whole(values: list[float]) -> list[int]:
    """Return ``values`` as integers, or an empty list if one of them is not whole."""
    try:
        numbers = [int(value) for value in values]
    except (ValueError, OverflowError):  # NaN and infinity
        return []
    return numbers if numbers == values else []


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """Committed transactions, and the ledger and metric sums of the current epoch.

    The sums are added in double precision, in the order of the steps. So they have the
    same bits on every worker and in every run.
    """

    step: int
    evaluations: int
    ledger: Ledger
    sums: Sums
    turn: int = 0
    """Transactions of the update in hand that are committed: an update may take several turns."""
    is_cut: bool = False
    """Whether the epoch in hand has ended before its last update, because a callback host wants so.

    It is not kept: the callback host knows it.
    """

    @staticmethod
    def start(metrics: int, step: int = 0) -> Cursor:
        """Return the cursor of a job that begins at ``step``, with room for ``metrics`` sums."""
        return Cursor(step, 0, Ledger(), np.zeros(metrics, np.float64))

    @property
    def version(self) -> int:
        """Grows with each committed transaction: the larger one has the newer state."""
        return (self.step + self.evaluations) * MOST_TURNS + self.turn

    def after_step(self, samples: int, fingerprint: int, sums: Sums) -> Cursor:
        """Return the cursor after one more update of the model."""
        ledger = self.ledger.record(samples, fingerprint)
        return Cursor(self.step + 1, self.evaluations, ledger, self.sums + sums)

    def after_turn(self, turn: int, sums: Sums) -> Cursor:
        """Return the cursor within an update, after a turn that is not its last."""
        return replace(self, turn=turn, sums=self.sums + sums)

    def after_evaluation(self) -> Cursor:
        """Return the cursor after one more pass over the validation data."""
        return replace(self, evaluations=self.evaluations + 1)

    def after_cut(self) -> Cursor:
        """Return the cursor when the epoch in hand has ended after its last update."""
        return replace(self, is_cut=True)

    def at_epoch_start(self) -> Cursor:
        """Return the cursor with an empty ledger and empty sums."""
        return Cursor(self.step, self.evaluations, Ledger(), np.zeros_like(self.sums))

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the cursor as named arrays, for checkpoints and broadcasts.

        The turn is not among them, because the replica's state has it.
        """
        return {
            "cursor/evaluations": np.array(self.evaluations, np.int64),
            "cursor/ledger": np.array([self.ledger.samples, self.ledger.fingerprint], np.uint64),
            "cursor/step": np.array(self.step, np.int64),
            "cursor/sums": self.sums.copy(),
        }

    @staticmethod
    def from_tensors(tensors: Mapping[str, npt.NDArray[np.generic]]) -> Cursor:
        """Return the cursor that the method ``tensors`` has made into arrays."""
        samples, fingerprint = (int(value) for value in tensors["cursor/ledger"])
        return Cursor(
            int(tensors["cursor/step"]),
            int(tensors["cursor/evaluations"]),
            Ledger(samples, fingerprint),
            np.array(tensors["cursor/sums"], np.float64),
        )
