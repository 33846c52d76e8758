"""The versions of the format: which one is signed, and how each digests.

A step without a signature follows version 1, to the byte.  A step with a signature is of
version 2, so that a reader of version 1 refuses it and can say why.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from holdfast.checkpoint.errors import CommitRefused
from holdfast.checkpoint.format.digest import DigestKind
from holdfast.checkpoint.format.fields import Fields
from holdfast.checkpoint.format.signature import SigningKey

FORMAT = "holdfast-checkpoint"


class Version(IntEnum):
    """The version of one manifest and of the shards that belong to it."""

    PLAIN = 1
    SIGNED = 2

    @property
    def digest(self) -> DigestKind:
        """The kind of all digests: sha256 under a signature, because xxh3_128 can be forged."""
        return DigestKind.SHA256 if self is Version.SIGNED else DigestKind.XXH3_128

    @staticmethod
    def with_key(key: SigningKey | None) -> Version:
        """Return the version that a writer with ``key``, or without a key, writes."""
        return Version.PLAIN if key is None else Version.SIGNED

    @staticmethod
    def of_digests(kinds: Iterable[DigestKind]) -> Version:
        """Return the version whose shards have digests of this kind.

        Raises ``CommitRefused`` if there is more than one kind.
        """
        (kind, *others) = sorted(set(kinds))
        if others:
            raise CommitRefused(
                f"some shards have digests {kind.value}, others {others[0].value}; "
                "give all workers the same key file"
            )
        return next(version for version in Version if version.digest is kind)

    @staticmethod
    def decode(fields: Fields, *, is_signed: bool) -> Version:
        """Return the version that a manifest states; ``ValueError`` if its fields contradict."""
        name, number, digest = (
            fields.text("format"),
            fields.integer("version"),
            fields.text("digest"),
        )
        if name != FORMAT:
            raise ValueError(f"its format is {name!r}, this version reads {FORMAT!r}")
        if number not in set(Version):
            raise ValueError(f"its version is {number}, this version reads 1 and 2")
        version = Version(number)
        if digest != version.digest:
            raise ValueError(
                f"its digest is {digest!r}, version {number} has {version.digest.value!r}"
            )
        if is_signed != (version is Version.SIGNED):
            raise ValueError(
                f"its version is {number}, but it is {'' if is_signed else 'not '}signed"
            )
        return version
