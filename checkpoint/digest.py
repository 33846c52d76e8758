"""Digests: xxh3_128 of what is stored, sha256 of a whole state.

xxh3_128 is faster than memory (measured 27 GB/s on one thread), so that digesting
is never a reason to skip it.  It finds accidents, not attackers: a checkpoint is
only as trustworthy as the directory that it lies in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TypeAlias

import xxhash

from holdfast.checkpoint.layout import specs_of
from holdfast.checkpoint.tensor import Tensor, whole_bytes_of

Bytes: TypeAlias = "bytes | bytearray | memoryview"

DIGEST_NAME = "xxh3_128"
DIGEST_LENGTH = 32  # hexadecimal digits


class Digest:
    """A running xxh3_128; ``update`` releases the GIL for all but tiny buffers."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, data: Bytes) -> None:
        """Take more bytes in."""
        self._state.update(data)

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far, as 32 lower-case hexadecimal digits."""
        return str(self._state.hexdigest())


def digest_of(data: Bytes) -> str:
    """Return the xxh3_128 of ``data``, as 32 lower-case hexadecimal digits."""
    digest = Digest()
    digest.update(data)
    return digest.hexdigest()


def state_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over name, dtype, shape and bytes of every tensor, in the order of names.

    Two states have the same digest if and only if they restore to the same
    arrays: byte order and strides in memory make no difference.
    """
    digest = hashlib.sha256()
    for spec in specs_of(state):
        digest.update(json.dumps([spec.name, spec.dtype, spec.shape]).encode() + b"\n")
        digest.update(whole_bytes_of(state[spec.name]))
    return digest.hexdigest()
