"""A key's file on the disk, and the description of it that other processes get.

Other processes get the path and the id, never the key itself.  Each process that signs
or verifies reads the file, and checks by the id that it still holds the same key.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import KeyUnusable
from holdfast.checkpoint.format.signature import FEWEST_KEY_BYTES, SigningKey

LARGEST_KEY_BYTES = 4096
_ROOT = 0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Where a key lies, and the id of the key that must be in it."""

    path: str
    key_id: str

    @staticmethod
    def of(path: Path) -> KeyFile:
        """Return the description of the key that ``path`` holds; raises ``KeyUnusable``."""
        return KeyFile(str(path), read_key(path).id)

    def read(self) -> SigningKey:
        """Return the key; raises ``KeyUnusable``, also if the file now holds another key."""
        key = read_key(Path(self.path))
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
            return SigningKey(os.read(descriptor, LARGEST_KEY_BYTES))
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
    if not FEWEST_KEY_BYTES <= found.st_size <= LARGEST_KEY_BYTES:
        raise KeyUnusable(
            f"key file {path} has {found.st_size} bytes, a key has {FEWEST_KEY_BYTES} to "
            f"{LARGEST_KEY_BYTES}; {_how_to_make(path)}"
        )


def _how_to_make(path: Path) -> str:
    return f"make one: head -c {FEWEST_KEY_BYTES} /dev/urandom > {path}; chmod 600 {path}"
