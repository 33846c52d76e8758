"""The lines below a manifest's JSON: its sha256, and the signature of whoever has the key.

::

    {"format": …}                              one line of JSON
    <sha256>                                   of the line above; finds accidents
    <id of the key> <HMAC-SHA256>              of both lines above, if they are signed

Invariant: with a key, nothing that is not signed with it is ever parsed.  Without
one nobody can say whether the last line is right, so no more is asked of it than its form.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from holdfast.checkpoint.format.signature import (
    KEY_ID_LENGTH,
    SIGNATURE_LENGTH,
    Signature,
    SigningKey,
)

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
