"""Signatures: proof that a manifest was written by somebody who has the run's key.

A signature is worth what the digests under it are worth, so whatever is signed
has digests that nobody can forge (`digest`).  This file loads neither NumPy nor HDF5:
the command line looks at keys before anything starts.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from enum import Enum

from holdfast.checkpoint.errors import KeyUnusable

FEWEST_KEY_BYTES = 32
"""As many as a sha256 has; fewer would be the weakest part (RFC 2104, section 3)."""
SIGNATURE_LENGTH = 64  # hexadecimal digits
KEY_ID_LENGTH = 16
_ID_OF = b"holdfast key id"  # no manifest begins like this, so that no signature is an id


class Signature(str, Enum):
    """What a reader knows of who wrote a manifest."""

    NONE = "none"
    NOT_CHECKED = "not checked"
    VERIFIED = "verified"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret that signs and verifies; it is in no text that this object makes of itself."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a secret that could be guessed."""
        if len(self.secret) < FEWEST_KEY_BYTES:
            raise KeyUnusable(
                f"a key needs at least {FEWEST_KEY_BYTES} bytes, this one has {len(self.secret)}"
            )

    @property
    def id(self) -> str:
        """What tells keys apart and gives nothing away: 16 hexadecimal digits."""
        return self.sign(_ID_OF)[:KEY_ID_LENGTH]

    def sign(self, data: bytes) -> str:
        """Return the HMAC-SHA256 of ``data``, as 64 lower-case hexadecimal digits."""
        return hmac.new(self.secret, data, hashlib.sha256).hexdigest()

    def has_signed(self, data: bytes, signature: str) -> bool:
        """Return whether ``signature`` is that of ``data``; takes the same time either way."""
        return hmac.compare_digest(self.sign(data).encode(), signature.encode())


_CHECKSUM_BYTES = 65  # sha256 as text, and a line feed
_SIGNATURE = re.compile(rb"([0-9a-f]{%d}) ([0-9a-f]{%d})\n" % (KEY_ID_LENGTH, SIGNATURE_LENGTH))


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A first line that may be parsed, and the id of the key that is said to have signed it."""

    body: bytes
    signed_by: str | None
    signature: Signature


def seal(body: bytes, key: SigningKey | None) -> bytes:
    """Return ``body``, a line with its line feed, and the lines below it."""
    data = body + _checksum(body)
    return data if key is None else data + f"{key.id} {key.sign(data)}\n".encode()


def unseal(data: bytes, key: SigningKey | None) -> Unsealed:
    """Return what ``seal`` was given; raises ``ValueError`` if it was not, or not with ``key``."""
    end = data.find(b"\n") + 1
    body, checksum = data[:end], data[end : end + _CHECKSUM_BYTES]
    if checksum != _checksum(body):
        raise ValueError("its sha256 does not match: it is damaged or cut short")
    signature = data[end + _CHECKSUM_BYTES :]
    match = _SIGNATURE.fullmatch(signature)
    if signature and match is None:
        raise ValueError("what follows its sha256 is no signature: it is damaged or cut short")
    if key is not None:
        _refuse_unsigned(data[: end + _CHECKSUM_BYTES], match, key)
        return Unsealed(body, key.id, Signature.VERIFIED)
    if match is None:
        return Unsealed(body, None, Signature.NONE)
    return Unsealed(body, match[1].decode(), Signature.NOT_CHECKED)


def _refuse_unsigned(data: bytes, match: re.Match[bytes] | None, key: SigningKey) -> None:
    if match is None:
        raise ValueError(f"it is not signed, so it is not trusted by who has key {key.id}")
    signed_by, signature = (text.decode() for text in match.groups())
    if signed_by != key.id:
        raise ValueError(f"it is signed with key {signed_by}, not with {key.id}")
    if not key.has_signed(data, signature):
        raise ValueError(
            f"its signature does not match: somebody without key {key.id} has changed it, "
            "or it is damaged"
        )


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"
