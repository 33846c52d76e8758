"""The key of a run, as commands and processes find it; every fault is an error for the user.

A run keeps the key that it was begun with: its ``RUN.json`` holds the key's id.  So a
job with another key, or without one, is refused before anything starts.  This check guards
against mistakes.  An attacker may change ``RUN.json``, but cannot sign a step by that.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.errors import KeyUnusable
from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.checkpoint.format.signature import SigningKey
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.transient import refusal


def find_key(path: Path | None, run_dir: Path) -> KeyFile | None:
    """Return the description of the key in the user's file, None if no file is named.

    Raises:
        UsageError: the key cannot be used, or lies in the run directory, where an attacker
            could replace it.
    """
    if path is None:
        return None
    if path.resolve().is_relative_to(run_dir.resolve()):
        raise UsageError(
            f"key file {path} lies in the run directory {run_dir}, where any user who can "
            "change checkpoints could replace it; move it elsewhere"
        )
    try:
        return KeyFile.of(path)
    except KeyUnusable as error:
        raise _refusal(error) from error


def key_in(key_file: KeyFile | None) -> SigningKey | None:
    """Return the key that ``find_key`` has found.

    Raises:
        UsageError: the key is no longer there.
    """
    try:
        return None if key_file is None else key_file.read()
    except KeyUnusable as error:
        raise _refusal(error) from error


def refuse_other_key(key_file: KeyFile | None, wanted: str | None, run_dir: Path) -> None:
    """Refuse to resume a run with another key than it was begun with, or without it.

    Raises:
        UsageError: ``wanted``, the id in ``RUN.json``, is not that of the key.
    """
    found = None if key_file is None else key_file.key_id
    if found == wanted:
        return
    if key_file is None:
        raise UsageError(
            f"the run in {run_dir} was begun with key {wanted}; give it with --key-file or "
            "HOLDFAST_KEY_FILE, or begin a new run with --fresh"
        )
    if wanted is not None:
        raise UsageError(
            f"the run in {run_dir} was begun with key {wanted}, {key_file.path} holds key {found}; "
            "give the key file that it was begun with, or begin a new run with --fresh"
        )
    raise UsageError(
        f"RUN.json in {run_dir} names no key, so the run was begun without --key-file, or the file "
        f"was changed; run `holdfast verify --key-file {key_file.path}`, and leave --key-file out "
        "only if no other user can write there"
    )


def _refusal(error: KeyUnusable) -> UsageError:
    """Return the error of a key that cannot be used, or cannot be read just now."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return refusal(Path(cause.filename or "the key file"), cause, str(error))
    return UsageError(str(error))
