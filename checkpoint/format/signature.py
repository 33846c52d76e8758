"""Signatures: proof that a manifest was written by somebody who has the run's key.

A signature is worth what the digests under it are worth, so whatever is signed
has digests that nobody can forge (`digest`).  This file loads neither NumPy nor HDF5:
the command line looks at keys before anything starts.
"""

from __future__ import annotations

import hashlib
import hmac
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
