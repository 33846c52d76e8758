"""A file or directory of the user's that appears whole under its name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.checkpoint.disk.filesystem import LocalFileSystem
from holdfast.runtime.errors import JobError, ProgramError, UsageError
from holdfast.runtime.run.own_file import sync, sync_names

_SAVED_MODEL = "saved_model.pb"
"""A directory with this file in it may be replaced; other directories are the user's."""

_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What a file system answers that has no hard links, such as FAT."""


def publish(target: Path, write: Callable[[Path], None], *, is_forced: bool) -> None:
    """Let ``write`` make a draft beside ``target``, make it durable, and rename it.

    Raises:
        UsageError: the target exists and may not be replaced, or cannot be written.
        ProgramError: ``write`` failed for another reason.
    """
    refuse_existing(target, is_forced=is_forced)
    try:
        with _folder_beside(target) as folder:
            draft = folder / target.name  # Keras looks at the suffix
            write(draft)
            _sync_tree(draft)
            _replace(draft, target, is_forced=is_forced)
            sync_names(target.parent)
    except OSError as error:
        raise _unwritable(target, error.strerror or str(error)) from error
    except JobError:
        raise
    except Exception as error:
        raise ProgramError(
            f"{target} could not be made: {type(error).__name__}: {error}"
        ) from error


@contextlib.contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """Make a private folder beside the target, on its file system, and remove it at the end.

    Others may write to the target's directory.  They can neither guess the folder's name
    nor put a link into it, which the library that writes the draft would follow.
    """
    folder = Path(tempfile.mkdtemp(prefix=".holdfast-export-", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_existing(target: Path, *, is_forced: bool) -> None:
    """Raise ``UsageError`` if the target may not be written, before any work is done."""
    if not target.parent.is_dir():
        raise _unwritable(target, f"{target.parent} is not a directory")
    if not os.path.lexists(target):
        return
    if not is_forced:
        raise UsageError(f"{target} exists; choose another --to, or replace it with --force")
    if target.is_dir() and not (target / _SAVED_MODEL).is_file():
        raise UsageError(f"{target} is a directory, and not of a SavedModel; choose another --to")


def _replace(draft: Path, target: Path, *, is_forced: bool) -> None:
    """Give the draft its name; move a directory in its place away first."""
    if not is_forced:
        _place(draft, target)
    elif target.is_dir() and not target.is_symlink():
        old = draft.with_name("old")
        target.rename(old)
        try:
            draft.rename(target)
        except OSError:
            old.rename(target)
            raise
    else:
        draft.replace(target)


def _place(draft: Path, target: Path) -> None:
    """Give the draft a name that nothing has, not even since a moment ago."""
    if not draft.is_dir():
        # On NFS a file's rename replaces what is there; a second name for it does not.
        try:
            os.link(draft, target)
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
        else:
            return
    LocalFileSystem().rename_noreplace(draft, target)


def _sync_tree(path: Path) -> None:
    if path.is_dir():
        for child in path.iterdir():
            _sync_tree(child)
    sync(path)


def _unwritable(target: Path, reason: str) -> UsageError:
    return UsageError(f"{target} cannot be written: {reason}; choose another --to")
