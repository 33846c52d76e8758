"""The samples of each microbatch of a step, and the hash that all chance comes from.

The order is a pure function of the seed: no state is carried from step to step. So a
worker that joins, adopts or resumes knows every microbatch at once. The position in the
order is a single number in the cursor of a checkpoint.

An epoch visits the samples in the order of their hashed keys, ``splitmix64(base + i *
gamma)``. Keys of one epoch are distinct: the hash is a bijection and gamma is odd. So
every sorting algorithm gives the same order, and no release of NumPy can change it.

``index`` is the zero-based number of the update: the step counter before it.

Some values must look random and yet be the same on every worker, machine and library
version.  All of them come from splitmix64: 64 bits in, 64 well mixed bits out, and no two
inputs share an output.  A library's generator will not do: its streams may change between
releases.  The function is one output of the generator by Steele, Lea and Flood, "Fast
Splittable Pseudorandom Number Generators" (OOPSLA 2014), seeded with the input.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

WORD = 1 << 64
"""The modulus of all arithmetic here."""

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""The odd number next to 2**64 divided by the golden ratio: the generator's increment."""

_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB

# The first part of each hash chain, so that two uses of one seed never draw the same bits.
_FOR_PERMUTATION = 1
_FOR_MICROBATCH = 2

_FIT_IN_32_BITS = 1 << 32

_Permutation: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order of a training job: every epoch visits each sample once.

    ``global_batch`` samples make a step; the last batch of an epoch may be shorter.  Unless
    ``is_shuffled``, all epochs visit the samples in their own order, as validation does.
    """

    seed: int
    samples: int
    global_batch: int
    microbatches: int
    is_shuffled: bool = True

    def __post_init__(self) -> None:
        """Refuse counts below one, and seeds beyond 64 bits."""
        if min(self.samples, self.global_batch, self.microbatches) < 1:
            raise ValueError(
                f"samples ({self.samples}), global_batch ({self.global_batch}) and microbatches"
                f" ({self.microbatches}) must each be at least 1"
            )
        if not 0 <= self.seed < WORD:
            raise ValueError(f"seed must be at least 0 and below 2**64, got {self.seed}")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that visit every sample once."""
        return -(-self.samples // self.global_batch)

    def epoch_of(self, index: int) -> int:
        """Return the zero-based epoch that update ``index`` belongs to."""
        return index // self.steps_per_epoch

    def batch(self, index: int) -> npt.NDArray[np.int64]:
        """Return the sample ids of update ``index``, in the order of its microbatches."""
        return self._between(index, *self._bounds(index))

    def batches(self, updates: range) -> npt.NDArray[np.int64]:
        """Return the sample ids of some updates, which are at least one."""
        return np.concatenate([self.batch(index) for index in updates])

    def batch_size(self, index: int) -> int:
        """Return the number of samples of batch ``index``."""
        start, stop = self._bounds(index)
        return stop - start

    def microbatch(self, index: int, m: int) -> npt.NDArray[np.int64]:
        """Return the sample ids of microbatch ``m`` of update ``index``.

        A batch is cut like ``numpy.array_split``: its first microbatches may have one
        sample more, and with few samples the last ones are empty.
        """
        _check_microbatch(self.microbatches, index, m)
        start, stop = self._bounds(index)
        first, last = _cut(stop - start, self.microbatches, m)
        return self._between(index, start + first, start + last)

    def microbatch_seed(self, index: int, m: int) -> int:
        """Return 63 random bits for microbatch ``m`` of update ``index``.

        Dropout and augmentation draw from them, so their results do not depend on the worker.
        """
        return _microbatch_seed(self, index, m)

    def _bounds(self, index: int) -> tuple[int, int]:
        """Return the positions within the epoch ``start <= position < stop`` of a batch."""
        if index < 0:
            raise ValueError(f"the index of an update must be at least 0, got {index}")
        start = index % self.steps_per_epoch * self.global_batch
        return start, min(start + self.global_batch, self.samples)

    def _between(self, index: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the sample ids at these positions of the epoch of update ``index``."""
        if not self.is_shuffled:
            return np.arange(start, stop, dtype=np.int64)
        order = _permutation(self.seed, self.samples, self.epoch_of(index))
        return order[start:stop].astype(np.int64)


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order of a job whose batches come from a pipeline: their sizes are not known before.

    ``steps_per_epoch`` batches make an epoch.
    """

    seed: int
    steps_per_epoch: int
    microbatches: int

    def bounds(self, samples: int, m: int) -> tuple[int, int]:
        """Return the places ``start <= place < stop`` of microbatch ``m`` in a batch."""
        return _cut(samples, self.microbatches, m)

    def microbatch_seed(self, index: int, m: int) -> int:
        """Return 63 random bits for microbatch ``m`` of update ``index``."""
        return _microbatch_seed(self, index, m)


def _microbatch_seed(order: SampleOrder | BatchOrder, index: int, m: int) -> int:
    _check_microbatch(order.microbatches, index, m)
    return chain(index, m, after=_seed_of_microbatches(order.seed)) >> 1


@functools.lru_cache(maxsize=2)  # of training and validation, several times a step
def _seed_of_microbatches(seed: int) -> int:
    return chain(_FOR_MICROBATCH, seed)


# Two epochs: a step of the new one may be prepared while the old one's last step is redone.
@functools.lru_cache(maxsize=2)
def _permutation(seed: int, samples: int, epoch: int) -> _Permutation:
    """Return the read-only order of an epoch; takes 4 bytes a sample, 8 beyond 2**32 samples."""
    keys = np.arange(samples, dtype=np.uint64)
    keys *= np.uint64(GOLDEN_GAMMA)
    keys += np.uint64(chain(_FOR_PERMUTATION, seed, epoch))
    order = np.argsort(splitmix64_inplace(keys))
    narrow: _Permutation = order.astype(np.uint32 if samples <= _FIT_IN_32_BITS else np.uint64)
    narrow.flags.writeable = False
    return narrow


def _cut(samples: int, parts: int, part: int) -> tuple[int, int]:
    """Return the places of one of ``parts`` parts, as ``numpy.array_split`` cuts samples."""
    size, longer = divmod(samples, parts)
    start = part * size + min(part, longer)
    return start, start + size + (part < longer)


def _check_microbatch(microbatches: int, index: int, m: int) -> None:
    if index < 0 or not 0 <= m < microbatches:
        raise ValueError(f"there is no microbatch {m} (of {microbatches}) in update {index}")


def generator_seeds(seed: int, generators: int) -> npt.NDArray[np.int64]:
    """Return states of shape ``(generators, 2)``, each number in ``[0, 2**31)``.

    TensorFlow draws with both numbers of a state.  Keras increases the second one at each
    draw.  Numbers of 31 bits are valid as int32 and as uint32.
    """
    words = [chain(seed, index) for index in range(generators)]
    pairs = [(word >> 33, (word >> 1) & 0x7FFFFFFF) for word in words]
    return np.array(pairs, dtype=np.int64).reshape(generators, 2)


def splitmix64(value: int) -> int:
    """Return the hash of one integer, which is taken modulo 2**64."""
    mixed = (value + GOLDEN_GAMMA) % WORD
    mixed = (mixed ^ (mixed >> 30)) * _FIRST_FACTOR % WORD
    mixed = (mixed ^ (mixed >> 27)) * _SECOND_FACTOR % WORD
    return mixed ^ (mixed >> 31)


def splitmix64_inplace(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Replace each of ``values`` by its hash, and return the same array."""
    shifted = np.empty_like(values)
    values += np.uint64(GOLDEN_GAMMA)
    for shift, factor in ((30, _FIRST_FACTOR), (27, _SECOND_FACTOR)):
        values ^= np.right_shift(values, np.uint64(shift), out=shifted)
        values *= np.uint64(factor)
    values ^= np.right_shift(values, np.uint64(31), out=shifted)
    return values


def chain(*parts: int, after: int = 0) -> int:
    """Return one 64-bit hash of several integers, in which their order matters.

    ``after`` is the hash of those before them.
    """
    state = after
    for part in parts:
        state = splitmix64(state ^ (part % WORD))
    return state
