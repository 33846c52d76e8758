"""Signatures: proof that the writer of a manifest has the run's key, and the file of that key.

A signature is worth as much as the digests under it, so a signed manifest has digests
that cannot be forged (`digest`).  Other processes get the path and the id of a key, never
the key itself.  Each process that signs or verifies reads the file, and checks by the id
that it still holds the same key.

This file loads neither NumPy nor HDF5, because the command line looks at keys before
anything starts.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from holdfast.checkpoint.errors import KeyUnusable

_FEWEST_KEY_BYTES = 32
"""The length of a sha256; a shorter key would be the weakest part (RFC 2104, section 3)."""
_SIGNATURE_LENGTH = 64  # hexadecimal digits
_KEY_ID_LENGTH = 16
_ID_OF = b"holdfast key id"  # no manifest begins like this, so that no signature is an id

_CHECKSUM_BYTES = 65  # sha256 as text, and a line feed
_SIGNATURE = re.compile(rb"([0-9a-f]{%d}) ([0-9a-f]{%d})\n" % (_KEY_ID_LENGTH, _SIGNATURE_LENGTH))

_LARGEST_KEY_BYTES = 4096
_ROOT = 0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Signature(str, Enum):
    """The outcome of checking a manifest's signature."""

    NONE = "none"
    NOT_CHECKED = "not checked"
    VERIFIED = "verified"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret that signs and verifies; the object's ``repr`` does not show it."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a secret that could be guessed."""
        if len(self.secret) < _FEWEST_KEY_BYTES:
            raise KeyUnusable(
                f"a key needs at least {_FEWEST_KEY_BYTES} bytes, this one has {len(self.secret)}"
            )

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that tell keys apart and give nothing of the secret away."""
        return self.sign(_ID_OF)[:_KEY_ID_LENGTH]

    def sign(self, data: bytes) -> str:
        """Return the HMAC-SHA256 of ``data``, as 64 lower-case hexadecimal digits."""
        return hmac.new(self.secret, data, hashlib.sha256).hexdigest()

    def has_signed(self, data: bytes, signature: str) -> bool:
        """Return whether ``signature`` is that of ``data``, in the same time for both answers."""
        return hmac.compare_digest(self.sign(data).encode(), signature.encode())


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A first line whose sha256 matches, and the id of the key that claims to have signed it."""

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
        raise ValueError("the bytes after its sha256 are no signature: it is damaged or cut short")
    if key is not None:
        _refuse_unsigned(data[: end + _CHECKSUM_BYTES], match, key)
        return Unsealed(body, key.id, Signature.VERIFIED)
    if match is None:
        return Unsealed(body, None, Signature.NONE)
    return Unsealed(body, match[1].decode(), Signature.NOT_CHECKED)


def _refuse_unsigned(data: bytes, match: re.Match[bytes] | None, key: SigningKey) -> None:
    if match is None:
        raise ValueError(f"it is not signed, so readers with key {key.id} do not trust it")
    signed_by, signature = (text.decode() for text in match.groups())
    if signed_by != key.id:
        raise ValueError(f"it is signed with key {signed_by}, not with {key.id}")
    if not key.has_signed(data, signature):
        raise ValueError(
            f"its signature does not match: it was changed without key {key.id}, or it is damaged"
        )


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Where a key lies, and the id of the key that must be in it."""

    path: Path
    key_id: str

    @staticmethod
    def of(path: Path) -> KeyFile:
        """Return the description of the key that ``path`` holds; raises ``KeyUnusable``."""
        return KeyFile(path, read_key(path).id)

    def read(self) -> SigningKey:
        """Return the key; raises ``KeyUnusable``, also if the file now holds another key."""
        key = read_key(self.path)
        if key.id != self.key_id:
            raise KeyUnusable(
                f"key file {self.path} holds key {key.id}, not {self.key_id}; "
                "put back the key that has signed the checkpoints"
            )
        return key


def read_key(path: Path) -> SigningKey:
    """Return the key in a file that belongs to this user or to root and is closed to others.

    Raises ``KeyUnusable`` for any other file.
    """
    try:
        # Opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _refuse_unsafe(path, os.fstat(descriptor))
            return SigningKey(os.read(descriptor, _LARGEST_KEY_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KeyUnusable(
            f"key file {path} cannot be read: {error.strerror or error}; {_how_to_make(path)}"
        ) from error


def _refuse_unsafe(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise KeyUnusable(f"key file {path} is not a regular file; name another path for the key")
    owners = {os.geteuid(), _ROOT}
    if found.st_uid not in owners:
        known = " or ".join(map(str, sorted(owners)))
        raise KeyUnusable(
            f"key file {path} belongs to user {found.st_uid}, not to {known}, so another user "
            "knows the key; copy it to a file of your own"
        )
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise KeyUnusable(
            f"key file {path} has mode {mode:04o}, so others than its owner may use it; "
            f"if it is still secret: chmod 600 {path}"
        )
    if not _FEWEST_KEY_BYTES <= found.st_size <= _LARGEST_KEY_BYTES:
        raise KeyUnusable(
            f"key file {path} has {found.st_size} bytes, a key has {_FEWEST_KEY_BYTES} to "
            f"{_LARGEST_KEY_BYTES}; {_how_to_make(path)}"
        )


def _how_to_make(path: Path) -> str:
    return f"make one: head -c {_FEWEST_KEY_BYTES} /dev/urandom > {path}; chmod 600 {path}"
