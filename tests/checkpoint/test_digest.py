"""Digests are those of the standard, and of contents only."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.checkpoint.digest import Digest, digest_of, state_sha256
from holdfast.checkpoint.tensor import Tensor

STATE: dict[str, Tensor] = {
    "kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.zeros(4, np.float32),
}


def test_digest_is_xxh3_128() -> None:
    """The value for no bytes is that of the reference implementation (xxHash 0.8)."""
    assert digest_of(b"") == "99aa06d3014798d86001c324468d497f"


def test_digest_in_parts_is_that_of_the_whole() -> None:
    digest = Digest()

    for part in (b"ab", b"", b"cde"):
        digest.update(part)

    assert digest.hexdigest() == digest_of(memoryview(b"abcde"))


def test_state_digest_ignores_order_strides_and_byte_order() -> None:
    other: dict[str, Tensor] = {
        "bias": STATE["bias"].astype(">f4"),
        "kernel": np.asfortranarray(STATE["kernel"]),
    }

    assert state_sha256(other) == state_sha256(STATE)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": np.array([0, 0, 0, -0.0], np.float32)},
        {"bias": np.zeros((4, 1), np.float32)},
        {"bias": np.zeros(4, np.int32)},
        {"more": np.zeros(0, np.float32)},
    ],
    ids=["bits", "shape", "dtype", "name"],
)
def test_state_digest_sees_every_difference(change: dict[str, Tensor]) -> None:
    assert state_sha256(STATE | change) != state_sha256(STATE)


def test_state_digest_is_the_same_everywhere() -> None:
    """A constant, so that a change of the definition cannot go unnoticed."""
    assert state_sha256(STATE) == (
        "d12f6e1e2ce78d65edc3af8e317b9d749fd35e6b8d72f664b636e17b35ae99a7"
    )
