"""Digests: xxh3_128 of the stored bytes, sha256 of a whole state.

xxh3_128 is faster than memory (measured 27 GB/s on one thread), so every byte can be
digested.  It finds accidents, not attackers: a checkpoint with such digests is only as
trustworthy as its directory.
"""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

import xxhash

from holdfast.checkpoint.tensor import Tensors, specs_of, whole_bytes_of

Bytes: TypeAlias = "bytes | bytearray | memoryview"

DIGEST_NAME = "xxh3_128"
"""The kind of all digests of stored bytes, as a manifest names it."""

DIGEST_DIGITS = 32
"""Hexadecimal digits of such a digest."""


class Digest:
    """A running digest; ``update`` releases the GIL for all but tiny buffers."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, data: Bytes) -> None:
        """Take more bytes in."""
        self._state.update(data)

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far, in lower-case hexadecimal digits."""
        return str(self._state.hexdigest())


def digest_of(data: Bytes) -> str:
    """Return the digest of ``data``, in lower-case hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def state_sha256(state: Tensors) -> str:
    """Return the sha256 over name, dtype, shape and bytes of every tensor, in the order of names.

    Two states have the same digest if and only if they restore to the same
    arrays: byte order and strides in memory make no difference.
    """
    digest = hashlib.sha256()
    for spec in specs_of(state):
        digest.update(json.dumps([spec.name, spec.dtype, spec.shape]).encode() + b"\n")
        digest.update(whole_bytes_of(state[spec.name]))
    return digest.hexdigest()
