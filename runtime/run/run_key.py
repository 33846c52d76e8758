"""The key of a run, as its commands and processes find it; whatever is wrong is the user's to mend.

A run has the key that it was begun with: its ``RUN.json`` holds the key's id, so that
another key, or none, is refused before anything starts.  That is for people who make a
mistake; what an attacker writes into ``RUN.json`` makes no unsigned step a signed one.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.errors import KeyUnusable
from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.checkpoint.format.signature import SigningKey
from holdfast.runtime.errors import UsageError


def find_key(path: Path | None, run_dir: Path) -> KeyFile | None:
    """Return which key is in the file that the user names, None if no file is named.

    Raises:
        UsageError: it cannot be used, or lies where whoever it is to keep out may replace it.
    """
    if path is None:
        return None
    if path.resolve().is_relative_to(run_dir.resolve()):
        raise UsageError(
            f"key file {path} lies in the run directory {run_dir}, where whoever can change "
            "checkpoints could replace it; move it elsewhere"
        )
    try:
        return KeyFile.of(path)
    except KeyUnusable as error:
        raise UsageError(str(error)) from error


def key_in(key_file: KeyFile | None) -> SigningKey | None:
    """Return the key that ``find_key`` has found.

    Raises:
        UsageError: it is there no longer.
    """
    try:
        return None if key_file is None else key_file.read()
    except KeyUnusable as error:
        raise UsageError(str(error)) from error


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
        f"RUN.json in {run_dir} names no key, so the run was begun without --key-file, or somebody "
        f"has changed it; see what `holdfast verify --key-file {key_file.path}` says, and leave "
        "--key-file out only if nobody else can write there"
    )
