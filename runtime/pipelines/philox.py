"""The seeds that ``Dataset.shuffle`` draws for its passes, computed without reading the passes.

A shuffle that reshuffles draws two 32-bit numbers for each pass, with the generator
Philox4x32-10 (Salmon et al., SC 2011).  TensorFlow's key is the shuffle's first seed, and the
upper half of its counter is the second one.  So pass 500 has the order that 500 passes of a
plain ``fit`` would lead to.
"""

from __future__ import annotations

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 0xFFFFFFFF
_DRAWS_PER_BLOCK = 4


def pass_seeds(seed: int, seed2: int, number: int) -> tuple[int, int]:
    """Return both seeds of pass ``number`` (from 0) of a shuffle with these 64-bit seeds."""
    first = 2 * number
    block = _block(first // _DRAWS_PER_BLOCK, seed2 % 2**64, seed % 2**64)
    place = first % _DRAWS_PER_BLOCK
    return block[place], block[place + 1]


def _block(index: int, upper: int, key: int) -> list[int]:
    """Return the four numbers of one block of the generator."""
    counter = [index & _WORD, index >> 32, upper & _WORD, upper >> 32]
    keys = [key & _WORD, key >> 32]
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]
        counter = [
            (high >> 32) ^ counter[1] ^ keys[0],
            high & _WORD,
            (low >> 32) ^ counter[3] ^ keys[1],
            low & _WORD,
        ]
        keys = [(word + step) & _WORD for word, step in zip(keys, _KEY_STEPS, strict=True)]
    return counter
