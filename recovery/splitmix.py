"""The splitmix64 hash: 64 bits in, 64 well mixed bits out, the same everywhere.

Some values must look random and yet be the same on every worker, machine and library
version.  All of them come from this function.  A library's generator will not do: its
streams may change between releases.

The function is one output of the generator by Steele, Lea and Flood, "Fast
Splittable Pseudorandom Number Generators" (OOPSLA 2014), seeded with the input.
It is a bijection of the 64-bit integers: two inputs never share an output.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WORD = 1 << 64
"""The modulus of all arithmetic here."""

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""The odd number next to 2**64 divided by the golden ratio: the generator's increment."""

_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB


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


def chain(*parts: int) -> int:
    """Return one 64-bit hash of several integers, in which their order matters."""
    state = 0
    for part in parts:
        state = splitmix64(state ^ (part % WORD))
    return state
